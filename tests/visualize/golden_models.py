"""Small models, each with something in it that a text or a drawing may get wrong; test_golden.py says what they look like.

Line numbers of this file stand in the golden drawings: refresh those after an edit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fxbucket.passes import Boundary, at_op, every_n_nodes


@torch.library.custom_op("golden::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[: x.shape[0] // 2].clone(), x[x.shape[0] // 2 :].clone()


@halves.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x[: x.shape[0] // 2]), torch.empty_like(x[x.shape[0] // 2 :])


def two_axes(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A batch of sequences."""
    return torch.softmax((x * mask.unsqueeze(-1)).sum(1), dim=-1)


def derived_sizes(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Sizes that are computed from one axis, one of them returned."""
    longer = torch.cat([x, x, x[:1]])
    flat = torch.sigmoid(longer).reshape(-1)
    return flat[: x.shape[0] // 2], longer.shape[0] * 4


def mutation(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Writes to an argument, through a view, before and after a cut."""
    cache[: x.shape[0]].copy_(x)
    x = torch.sigmoid(x)
    cache.mul_(2)
    return cache[: x.shape[0]] + x


def tuple_boundary(x: torch.Tensor) -> torch.Tensor:
    """A boundary op that gives two tensors."""
    front, back = torch.ops.golden.halves(x.relu())
    return torch.cat([back, front]) + 1


def higher_order(x: torch.Tensor) -> torch.Tensor:
    """A branch that the data decides, with two graphs inside the graph."""
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + 1


@dataclass(frozen=True)
class Case:
    """A model, a call of it, and what is done with it."""

    model: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    axes: Mapping[str, str | list[str]]
    boundary: Boundary
    sizes: Mapping[str, int]


CASES = (
    Case(
        two_axes,
        (torch.ones(6, 5, 4), torch.ones(6, 5)),
        {"batch": ["x.shape[0]", "mask.shape[0]"], "time": ["x.shape[1]", "mask.shape[1]"]},
        at_op("aten::sum"),
        {"batch": 2, "time": 128},
    ),
    Case(derived_sizes, (torch.ones(6, 4),), {"rows": "x.shape[0]"}, at_op("aten::sigmoid"), {"rows": 8}),
    Case(mutation, (torch.ones(6, 4), torch.zeros(32, 4)), {"rows": "x.shape[0]"}, at_op("aten::sigmoid"), {"rows": 8}),
    Case(tuple_boundary, (torch.ones(6, 4),), {"rows": "x.shape[0]"}, at_op("golden::halves"), {"rows": 8}),
    Case(higher_order, (torch.ones(6, 4),), {"rows": "x.shape[0]"}, every_n_nodes(2), {"rows": 8}),
)
