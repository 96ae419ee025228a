from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

import fxbucket
from fxbucket.passes.nodes import SHAPE_CHANGERS, TRIVIAL_OPS, is_item_of_container, is_scalar_arithmetic, is_trivial


def nodes_of(model: Any, *args: Any) -> list[fx.Node]:
    program = fxbucket.capture(model, *args, dynamic=["x.shape[0]"])
    return [node for node in program.capture.module.graph.nodes if node.op.startswith("call")]


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x.view(-1),
        lambda x: x.t()[None].expand(3, -1, -1),
        lambda x: x[1:, ..., None],
        lambda x: x.split(2, dim=1)[1],
        lambda x: x.new_empty(x.shape[0] * 2, x.size(1)),
        lambda x: torch.transpose(x, 0, 1).unsqueeze(-1),
        lambda x: x.detach(),
    ],
)
def test_views_allocations_and_size_arithmetic_move_no_data(model: Any):
    nodes = nodes_of(model, torch.randn(4, 6))
    assert nodes
    assert all(is_trivial(node) for node in nodes)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x + 1,
        lambda x: x.clone(),
        lambda x: x[[0, 1]],
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x.add_(1),
        lambda x: x.contiguous(),
        lambda x: x.reshape(-1),
    ],
)
def test_what_may_move_data_is_not_trivial(model: Any):
    assert not all(is_trivial(node) for node in nodes_of(model, torch.randn(4, 6)))


def test_items_of_containers_are_told_from_items_of_tensors():
    nodes = nodes_of(lambda x: x.split(2, dim=1)[1][0] * x.shape[0], torch.randn(4, 6))
    taking = [node for node in nodes if node.target is operator.getitem]
    assert [is_item_of_container(node) for node in taking] == [True, False]
    assert not any(is_item_of_container(node) for node in nodes if node.target is not operator.getitem)


def test_floats_and_bools_of_sizes_are_scalar_arithmetic_and_ints_are_not():
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * (x.shape[0] / 3) + (x.shape[0] * 2)

    kinds = {node.name: is_scalar_arithmetic(node) for node in nodes_of(model, torch.randn(4, 6))}
    assert sum(kinds.values()) == 1
    assert next(name for name, scalar in kinds.items() if scalar).startswith("truediv")


def test_every_named_op_exists():
    assert [name for name in TRIVIAL_OPS if not hasattr(torch.ops.aten, name.removeprefix("aten::"))] == []
    assert [name for name in SHAPE_CHANGERS if not hasattr(torch.Tensor, name)] == []
