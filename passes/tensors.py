"""What is known of a tensor without its data, and a fake tensor built from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxbucket.passes.symbolic import FakeTensorMode, ShapeEnv, without_guards


def is_autograd_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no history in autograd; unlike ``is_leaf`` this answers for every tensor.

    A view of a multi-output op whose base was written to refuses to tell; it surely has a history.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


@dataclass(frozen=True)
class TensorFacts:
    """Everything of a strided tensor but its data and its storage.

    Attributes:
        dtype: its dtype.
        device: its device.
        sizes: numbers, or symbolic numbers, of elements.
        strides: in elements.
        offset: where it begins in its storage, in elements.
        requires_grad: whether autograd follows it.
        is_leaf: whether it has no history in autograd.
        is_parameter: whether it is an ``nn.Parameter``.
        is_conj: whether it is read as its conjugate.
        is_neg: whether it is read as its negative.
    """

    dtype: torch.dtype
    device: torch.device
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    requires_grad: bool
    is_leaf: bool
    is_parameter: bool
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorFacts:
        """Return the facts of a strided tensor."""
        return TensorFacts(
            tensor.dtype,
            tensor.device,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.storage_offset(),
            tensor.requires_grad,
            is_autograd_leaf(tensor),
            isinstance(tensor, torch.nn.Parameter),
            tensor.is_conj(),
            tensor.is_neg(),
        )


def span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements of memory lie between a tensor's first and its last, both included."""
    return 0 if 0 in sizes else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def build_plain(facts: TensorFacts, length: Any, mode: FakeTensorMode) -> torch.Tensor | None:
    """Return a fake tensor with these facts over a storage of its own of ``length`` bytes, the quick way.

    ``None`` where only :func:`build_tensor` will do: the storage is longer than the tensor needs or begins elsewhere, a
    number is symbolic, or the tensor has a history in autograd. Most values of a graph are plain, and this takes a third.
    """
    numbers = (*facts.sizes, *facts.strides, facts.offset, length)
    if any(type(number) is not int for number in numbers) or facts.offset or facts.is_conj or facts.is_neg:
        return None
    if (facts.requires_grad and not facts.is_leaf) or torch.is_inference_mode_enabled():
        return None
    if span(facts.sizes, facts.strides) * facts.dtype.itemsize != length:
        return None
    with mode:
        built = torch.empty_strided(facts.sizes, facts.strides, dtype=facts.dtype, device=facts.device)
        if facts.is_parameter:
            return torch.nn.Parameter(built, requires_grad=facts.requires_grad)
    return built.requires_grad_() if facts.requires_grad else built


def flat_storage(length: Any, device: torch.device, mode: FakeTensorMode, env: ShapeEnv | None) -> torch.Tensor:
    """Return a fake tensor of ``length`` bytes, as a storage for :func:`build_tensor`."""
    with mode, torch.no_grad(), torch.inference_mode(False), without_guards(env):
        return torch.empty((length,), dtype=torch.uint8, device=device)


def build_tensor(facts: TensorFacts, storage: torch.Tensor, mode: FakeTensorMode, env: ShapeEnv | None) -> torch.Tensor:
    """Return a fake tensor with these facts over a storage; numbers that are symbolic must be of ``env``."""
    with mode, torch.no_grad(), torch.inference_mode(False), without_guards(env):
        built = torch.empty((0,), dtype=facts.dtype, device=facts.device)
        if facts.requires_grad and not facts.is_leaf:
            # AOTAutograd hides a write to a leaf from autograd, so an inner value must not look like one.
            with torch.enable_grad():
                built = built.requires_grad_().clone()
        built.set_(storage.untyped_storage(), facts.offset, facts.sizes, facts.strides)
        if facts.is_conj:
            built = torch._conj(built)
        if facts.is_neg:
            built = torch._neg_view(built)
        if facts.is_parameter:
            built = torch.nn.Parameter(built, requires_grad=facts.requires_grad)
        elif facts.requires_grad and facts.is_leaf:
            built.requires_grad_()
    return built
