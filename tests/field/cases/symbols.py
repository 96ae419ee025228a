"""Faults of sizes: which symbol is which, what holds for it, and sizes that are no symbol at all."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.field.case import Made, case


def _product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.sigmoid(x @ y.t())
    return table.sum(0) / x.shape[0], table.mean(1) * y.shape[0]


@case("pytorch/pytorch#186373", "pytorch/pytorch#129456", "huggingface/diffusers#11327")
def equal_by_chance() -> Made:
    """Two sizes that have nothing to do with each other are equal in the first call.

    Fault: both share one symbol, and with it one key of the look-up. Right: a call of (6, 9) is not served by what was
    compiled for (6, 6).
    """
    sizes = ((6, 6), (6, 9), (4, 9), (9, 4), (9, 9))
    return _product, [(torch.randn(a, 4), torch.randn(b, 4)) for a, b in sizes]


@case("vllm-project/vllm#50046", "vllm-project/vllm#9715")
def two_free_axes() -> Made:
    """Two axes that vary on their own.

    Fault: the second one was given the size of the first. Right: (4, 4) and (4, 7) are two entries.
    """

    def model(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        grid = torch.sigmoid(x[:, None] + 10 * t[None, :])
        return grid.reshape(-1), torch.arange(x.shape[0] * t.shape[0], dtype=torch.float32) * grid.flatten()

    return model, [(torch.randn(n), torch.randn(m)) for n, m in ((5, 8), (4, 4), (4, 7), (8, 5))]


def _rows(order: tuple[int, ...]) -> Made:
    def model(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sigmoid(x @ weight)
        return y, y.sum(), y.argmax(-1), x.new_zeros(x.shape[0], 2)

    weight = torch.randn(3, 3)
    return model, [(torch.randn(n, 3), weight) for n in order]


@case("pytorch/pytorch#135430", "pytorch/pytorch#95370", "pytorch/pytorch#197095", "vllm-project/vllm#38933")
def one_and_zero_rows() -> Made:
    """Sizes 1 and 0, where broadcasting has rules of its own, after a capture of more rows.

    Fault: a crash, or the capture of many rows. Right: one row is one row, no rows sum to 0.
    """
    return _rows((5, 1, 0, 2, 1))


@case("pytorch/pytorch#135430", "vllm-project/vllm#38933")
def one_row_first() -> Made:
    """The same with one row first, so that the first capture is the special one."""
    return _rows((1, 5, 0, 1, 2))


def _right_branch(_: int, outputs: Any, arguments: Any) -> None:
    rows = arguments[0].shape[0]
    assert bool((outputs.abs() > 50).all()) is (rows > 8)
    assert bool((outputs < 0).all()) is (rows % 4 == 0)


@case("vllm-project/vllm#20394", "vllm-project/vllm#26199", "vllm-project/vllm#28094", holds=_right_branch)
def branch_on_size() -> Made:
    """Python branches on a size.

    Fault: one capture for all sizes with its guards dropped, so that the other branch's graph answers. Right: more than 8
    rows add 100, else 1; a multiple of 4 negates.
    """

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x)
        y = y + 100 if x.shape[0] > 8 else y + 1
        return -y if x.shape[0] % 4 == 0 else y

    return model, [(torch.randn(n, 2),) for n in (6, 12, 13, 8, 7, 16, 2)]


class _Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 3, 3, 2, 1)
        self.second = nn.Conv1d(3, 2, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        length = x.shape[-1]
        half = length // 2
        ends = torch.sigmoid(x[..., :half]) + x[..., length - half :]
        short = self.second(torch.sigmoid(self.first(x)))
        return ends, short, short.shape[-1] * half


def _halves_are_exact(_: int, outputs: Any, arguments: Any) -> None:
    length = arguments[0].shape[-1]
    assert outputs[0].shape[-1] == length // 2
    assert outputs[1].shape[-1] == math.ceil(math.ceil(length / 2) / 2)


@case(
    "pytorch/pytorch#102068",
    "pytorch/pytorch#101793",
    "pytorch/pytorch#128053",
    "pytorch/pytorch#108877",
    axis="x.shape[2]",
    holds=_halves_are_exact,
)
def floor_and_ceil() -> Made:
    """Half of a length, and lengths that strided convolutions leave.

    Fault: floor and ceil were taken for exact division. Right: equal for odd and even lengths.
    """
    return _Strided().eval(), [(torch.randn(2, 2, n),) for n in (9, 8, 33, 15, 4)]


class _Selected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = mask.nonzero().flatten()
        y = torch.sigmoid(self.expert(x[chosen]))
        return x.index_add(0, chosen, y), y * 2


@case(
    "pytorch/pytorch#194166",
    "pytorch/pytorch#165421",
    "pytorch/pytorch#116703",
    "pytorch/pytorch#117268",
    "SandAI-org/MagiCompiler#29",
    unbacked=True,
)
def data_dependent_rows() -> Made:
    """The number of true rows, which only the data decides, crosses a cut.

    Fault: a guard on it, or a number written in its place. Right: equal to eager, for no rows and for all rows too.
    """
    some = [(torch.randn(n, 3), torch.arange(n) % every == 0) for n, every in ((6, 2), (9, 3), (4, 1))]
    return _Selected().eval(), [*some, (torch.randn(5, 3), torch.zeros(5, dtype=torch.bool))]


@case("pytorch/pytorch#135796", "pytorch/pytorch#151122", "pytorch/functorch#470")
def plain_arguments() -> Made:
    """None, bool and int arguments among tensors; dicts, lists, None and one tensor twice among the outputs.

    Fault: an argument that is no tensor switched dynamic shapes off, and the first size was baked in. Right: values and
    structure are eager's.
    """

    def model(x: torch.Tensor, bias: Any = None, flag: bool = True, k: int = 2) -> dict[str, Any]:
        h = x.repeat(k)
        if bias is not None:
            h = h + bias
        gate = torch.sigmoid(h) if flag else h
        return {"h": gate, "aux": [gate * 2, None, (gate, flag)], "n": x.shape[0] * k}

    r = torch.randn
    return model, [
        (r(4), None, True, 2),
        (r(6), None, True, 2),
        (r(6), r(1), True, 2),
        (r(6), r(12), False, 2),
        (r(3), None, False, 3),
    ]
