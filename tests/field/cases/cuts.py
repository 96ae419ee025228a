"""Faults of cuts: what crosses one, what lies around one, and what pieces look like afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fxbucket.backend import Backend
from tests.field.case import Made, Model, case


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        shape = x.shape
        h = torch.sigmoid(self.up(x.reshape(-1, shape[-1])))
        return self.down(h).view(shape), shape[0] * shape[1]


@case("vllm-project/vllm#31043", "vllm-project/vllm#36038", "vllm-project/vllm#30910")
def size_crosses_a_cut() -> Made:
    """A ``torch.Size`` is taken before the boundary and used after it.

    Fault: a container leaves a piece whose compiler gives tensors and ints only. Right: the output has the argument's shape.
    """
    return _Block().eval(), [(torch.randn(b, n, 4),) for b, n in ((2, 5), (3, 5), (3, 8), (2, 2))]


@case(
    "vllm-project/vllm#24915",
    "vllm-project/vllm#28533",
    "vllm-project/vllm#37363",
    splitting_ops=("aten::topk", "torch.split"),
)
def boundary_with_several_results() -> Made:
    """Boundary ops give tuples; one item is used twice, one never.

    Fault: a piece takes a tuple, or two pieces need each other. Right: each item reaches who reads it.
    """

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2 + 1
        values, indices = torch.topk(y, 2, dim=-1)
        weights = values.softmax(-1)
        first, _, last = torch.split(y, [1, 2, 3], dim=-1)
        mixed = (weights * values).sum(-1) + indices.sum(-1) + first.squeeze(-1)
        return mixed, last + values[:, :1], indices

    return model, [(torch.randn(n, 6),) for n in (5, 9, 2)]


def _no_empty_piece(backend: Backend) -> None:
    for program in backend.programs:
        assert all(piece.body for piece in program.pieces)


@case(
    "vllm-project/vllm#36595",
    "vllm-project/vllm#28044",
    "vllm-project/vllm#35251",
    "vllm-project/vllm#36682",
    inspect=_no_empty_piece,
)
def adjacent_boundaries() -> Made:
    """Boundaries side by side, first and last, and only an allocation between two of them.

    Fault: an empty piece, or the allocation moved behind the write to it: silently wrong where a splitter reorders. Right:
    equal to eager, and no piece is empty.
    """

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(torch.sigmoid(x))
        buffer = torch.empty_like(y)
        z = torch.sigmoid(y.view(-1))
        buffer.copy_(z.view_as(buffer))
        return torch.sigmoid(buffer)

    return model, [(torch.randn(n, 3),) for n in (4, 6, 2)]


class _Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            before = self.first(x)
            after = self.second(torch.sigmoid(before))
            with torch.autocast("cpu", enabled=False):
                nested = self.second(torch.sigmoid(x))
        return before, after, nested, self.third(x)


def _dtypes_of_the_regions(_: int, outputs: Any, __: Any) -> None:
    assert [output.dtype for output in outputs] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]


@case(
    "pytorch/pytorch#101624",
    "pytorch/pytorch#111794",
    "pytorch/pytorch#112231",
    "pytorch/pytorch#179804",
    "huggingface/transformers#42747",
    tolerance=5e-2,
    holds=_dtypes_of_the_regions,
)
def autocast_over_a_cut() -> Made:
    """An autocast region, and a disabled one in it, go over the boundary.

    Fault: entering and leaving fall into different pieces. Right: bfloat16 before and after the boundary, float32 in the
    disabled region and after all.
    """
    return _Mixed().eval(), [(torch.randn(n, 4),) for n in (3, 6, 2)]


@case(
    "pytorch/pytorch#90737",
    "pytorch/pytorch#145033",
    "pytorch/pytorch#93609",
    "Lightning-AI/lightning-thunder#2429",
    axis="x.shape[0]",
)
def shape_changed_in_place() -> Made:
    """Ops that change a tensor's shape in place, on both sides of the boundary.

    Fault: metadata of the old shape, or none. Right: equal to eager, and after each pass every node tells what it gives.
    """

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        y = x.clone()
        y.transpose_(0, 1)
        z = torch.sigmoid(y)
        z.unsqueeze_(0)
        return y + 1, z.squeeze(0) * y, z.shape[1]

    return model, [(torch.randn(n, 3),) for n in (4, 6, 3)]


HOSTILE = "la<b>|{\"q\": 'z\\n'}\n&amp; \u2192"
"""Everything that a label of a drawing could trip over."""


@torch.library.custom_op("fxbucket_field::tag", mutates_args=())
def tag(x: torch.Tensor, name: str) -> torch.Tensor:
    return x.clone()


@tag.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


def labelled_chain(num_steps: int) -> Model:
    """Return a model of a tagged value and a chain of steps, each fourth of them a boundary."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.fxbucket_field.tag(torch.einsum("ab,cb->ac", x, x), HOSTILE)
        for i in range(num_steps):
            y = torch.sigmoid(y) + i if i % 4 == 0 else y * 0.5 + 0.1
        return y

    return model


@case("pytorch/pytorch#147884", "pytorch/pytorch#193695", "xflr6/graphviz#92", "xflr6/graphviz#105", "apache/hamilton#1200")
def hostile_labels() -> Made:
    """A string argument of metacharacters, which drawings must survive too.

    Fault: the drawing does not parse, or nodes are missing in it. Right: the call is equal to eager; a drawing of a longer
    chain parses, and shows each node once.
    """
    return labelled_chain(5), [(torch.randn(n, 3),) for n in (3, 5)]
