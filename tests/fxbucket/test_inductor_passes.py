"""Results that are copies in eager are copies in what Inductor makes, whatever it finds out about the ops that made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional

import fxbucket
from fxbucket.inductor_passes import _copying
from tests.equality import assert_equals_eager

COPIES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda b: b * 1,
    lambda b: b + 0,
    lambda b: b - 0,
    lambda b: b / 1,
    lambda b: b * torch.ones_like(b),
    lambda b: torch.ones_like(b) * b,
    lambda b: b / torch.ones_like(b),
    lambda b: b + torch.zeros_like(b),
    lambda b: (b * torch.ones_like(b)).view(-1)[1:],
    lambda b: ((b + torch.zeros_like(b)) * torch.ones_like(b)).t(),
    lambda b: b.clone(),
    lambda b: b**1,
    lambda b: torch.cat([b]),
    lambda b: b.to(b.dtype, copy=True),
    lambda b: b.repeat(1, 1),
    lambda b: functional.pad(b, (0, 0)),
    lambda b: functional.dropout(b, 0.0, training=True),
    lambda b: torch.slice_scatter(torch.zeros_like(b), b),
    lambda b: b.flip(0).flip(0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("is_argument", "needs_grad"), [(False, True), (True, False)])
def test_a_copy_keeps_its_value_where_a_later_piece_writes_to_what_it_is_of(is_argument: bool, needs_grad: bool):
    def model(x: torch.Tensor, b: torch.Tensor) -> Any:
        written = b if is_argument else x.detach() + 1
        copies = [copy(written) for copy in COPIES]
        twice = [x * torch.ones_like(x), x + torch.zeros_like(x), torch.relu(x) * torch.ones_like(x)]
        gate = torch.sigmoid(x)
        written.add_(1)
        return copies, twice, gate, written

    compiled = fxbucket.compile(
        model, axes={"t": ["x.shape[0]", "b.shape[0]"]}, sizes={"t": [4]}, splitting_ops=["aten::sigmoid"]
    )
    for rows in (4, 5):
        x, b = torch.randn(rows, 3, requires_grad=needs_grad), torch.randn(rows, 3)
        others = x.detach().clone().requires_grad_(needs_grad), b.clone()
        assert_equals_eager(compiled, model, (x, b), others, tolerance=1e-6)


def traced(function: Callable[..., Any], *args: torch.Tensor) -> fx.GraphModule:
    return torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(*args)


def targets(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def remove_products(module: fx.GraphModule, *_: Any) -> None:
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        node.replace_all_uses_with(node.args[0])
        node.args[0].meta.update(node.meta)
        module.graph.erase_node(node)


def test_a_copy_stands_where_a_result_s_memory_went_and_nowhere_else():
    module = traced(lambda x: (torch.relu(x * 1), (x * 1).view(-1)), torch.randn(2, 3))
    before = {node: node.meta["val"] for node in module.graph.find_nodes(op="placeholder")}
    _copying(remove_products)(module, (), ())
    assert targets(module) == ["aten.relu.default", "aten.clone.default", "aten.view.default"]
    assert all(node.meta["val"] is value for node, value in before.items())
    x = torch.randn(2, 3)
    module.recompile()
    positive, flat = module(x)
    assert torch.equal(positive, x.relu())
    assert torch.equal(flat, x.view(-1))
    assert flat.data_ptr() != x.data_ptr()


def test_a_graph_from_which_nothing_is_removed_stays_as_it_is():
    module = traced(lambda x: (x * 2 + 1, x / 3), torch.randn(2, 3))
    before = module.code
    _copying(lambda *_: None)(module, (), ())
    module.recompile()
    assert module.code == before
