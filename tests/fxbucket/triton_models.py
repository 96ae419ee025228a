"""Kernels and models that call them; without a GPU, Triton's interpreter runs what Dynamo captures as on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def add_rows(x, y, out, n, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + places, tl.load(x + places, mask=places < n) + tl.load(y + places, mask=places < n), mask=places < n)


def subtract_rows(x, y, out, n, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + places, tl.load(x + places, mask=places < n) - tl.load(y + places, mask=places < n), mask=places < n)


def kernel_of(function: Callable[..., None]) -> JITFunction:
    kernel = JITFunction(function)
    if DEVICE == "cpu":
        kernel.run = InterpretedFunction(function).run
    return kernel


add_kernel, subtract_kernel, interpreted = kernel_of(add_rows), kernel_of(subtract_rows), InterpretedFunction(add_rows)


def launch(kernel: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), block=16)
    return out


@torch.library.triton_op("triton_tests::add", mutates_args=())
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(torch.library.wrap_triton(add_kernel), x, y)


@torch.library.triton_op("triton_tests::interpreted", mutates_args=())
def add_interpreted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(interpreted, x, y)


add_interpreted.register_fake(lambda x, y: torch.empty_like(x))


def two_layers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(add_kernel, launch(add_kernel, x.sin(), y).cos().sin(), y).cos()


def two_kernels(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(subtract_kernel, launch(add_kernel, x.sin(), y).cos().sin(), y).cos()


def subtracted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(subtract_kernel, x.sin(), y).cos()


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    add_kernel[(triton.cdiv(x.numel(), 16),)](x, y, x, x.numel(), block=16)
    return x.cos()


def with_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return add(x.sin(), y).cos()


def with_interpreted_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return add_interpreted(x.sin(), y).cos()


EXPECTED: dict[Callable[..., torch.Tensor], Callable[..., torch.Tensor]] = {
    two_layers: lambda x, y: ((x.sin() + y).cos().sin() + y).cos(),
    two_kernels: lambda x, y: ((x.sin() + y).cos().sin() - y).cos(),
    subtracted: lambda x, y: (x.sin() - y).cos(),
    in_place: lambda x, y: (x + y).cos(),
    with_op: lambda x, y: (x.sin() + y).cos(),
    with_interpreted_op: lambda x, y: (x.sin() + y).cos(),
}
"""What torch's own ops make of the arguments of each model."""
