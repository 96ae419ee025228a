from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxbucket
from fxbucket.passes.identities import forward_identities
from tests.equality import assert_equals_eager


def names(module: torch.fx.GraphModule) -> list[str]:
    return [getattr(n.target, "__name__", str(n.target)) for n in module.graph.nodes if n.op.startswith("call")]


def graph(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(lambda x: call(x) + 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.dropout(x, 0.5, False),
        lambda x: F.dropout(x, training=False),
        lambda x: F.dropout(x, p=0.0),
        lambda x: F.dropout(x, 0),
        lambda x: F.dropout(input=x, training=False),
        lambda x: F.dropout2d(x, training=False),
        lambda x: F.alpha_dropout(x, 0.5),
        lambda x: torch.dropout(x, 0.5, False),
        lambda x: torch.dropout(x, p=0.5, train=False),
    ],
)
def test_a_dropout_that_drops_nothing_is_its_argument(call: Callable[[torch.Tensor], torch.Tensor]):
    module, _ = forward_identities(graph(call))
    assert names(module) == ["add"]
    x = torch.randn(1, 2, 3, 4)
    assert torch.equal(module(x), call(x) + 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.dropout(x),
        lambda x: F.dropout(x, 0.5, True),
        lambda x: F.alpha_dropout(x, 0.5, True),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: torch.sigmoid(x),
        lambda x: x.contiguous(),
    ],
)
def test_any_other_op_stays_and_the_graph_is_the_same_object(call: Callable[[torch.Tensor], torch.Tensor]):
    given = graph(call)
    module, written = forward_identities(given)
    assert module is given
    assert written == frozenset()


def test_the_graph_that_was_given_is_not_changed():
    given = graph(lambda x: F.dropout(x, training=False))
    before = str(given.graph)
    module, _ = forward_identities(given)
    assert module is not given
    assert str(given.graph) == before


def writes_through(x: torch.Tensor) -> Any:
    y = F.dropout(x, training=False)
    y.add_(1)
    return x * 2


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_write_through_such_a_result_reaches_the_argument(compiler: str):
    compiled = fxbucket.compile(writes_through, sizes={"x.shape[0]": [4]}, compiler=compiler)
    for rows in (4, 5):
        x = torch.randn(rows)
        assert_equals_eager(compiled, writes_through, (x,), (x.clone(),))
    (program,) = compiled.programs
    assert [program.capture.placeholders[position].source for position in program.capture.written] == ["L['x']"]
