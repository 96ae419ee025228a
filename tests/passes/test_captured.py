from __future__ import annotations

import pytest
import sympy
import torch

import fxbucket
from fxbucket.passes import Program
from fxbucket.passes.buckets import Range
from fxbucket.passes.captured import Axis, tensors_in, value_of
from fxbucket.passes.errors import AxisError

S0, S1 = (sympy.Symbol(name, integer=True) for name in ("s0", "s1"))


def test_an_axis_is_found_by_its_name_and_by_every_expression():
    program = fxbucket.capture(
        lambda x, y: x + y, torch.randn(4), torch.randn(4), axes={"rows": ["x.shape[0]", "y.shape[0]"]}
    )
    axis = program.capture.axis("rows")
    assert axis.expressions == ("x.shape[0]", "y.shape[0]")
    assert program.capture.axis("x.shape[0]") is axis
    assert program.capture.axis("y.shape[0]") is axis


def test_an_axis_that_the_capture_does_not_have_is_an_error_with_the_nearest(captured: Program):
    with pytest.raises(AxisError, match=r"'x.shape\[1\]' is not an axis of this capture.*'x.shape\[0\]'"):
        captured.capture.axis("x.shape[1]")


def test_hints_are_the_sizes_of_the_call_that_was_captured_and_ranges_hold_them(captured: Program):
    rows, columns, n = (captured.capture.axis(name).symbol for name in ("x.shape[0]", "k", "n"))
    assert captured.capture.hints == {rows: 8, columns: 6, n: 5}
    ranges = captured.capture.ranges
    assert ranges.keys() == captured.capture.hints.keys()
    assert ranges[rows] == Range(2)  # type: ignore[index]
    assert all(hint in ranges[symbol] for symbol, hint in captured.capture.hints.items())


@pytest.mark.parametrize(
    ("expression", "equal", "symbol", "symbols", "fixed"),
    [
        (S0, (), S0, (S0,), False),
        (2 * S0, (), None, (), False),
        (4, (), None, (), True),
        (S0, (S1,), S0, (S0, S1), False),
        (S0, (2 * S1, 7), S0, (S0,), False),
    ],
)
def test_an_axis_is_a_symbol_an_expression_or_a_number(
    expression: sympy.Basic | int,
    equal: tuple[sympy.Basic | int, ...],
    symbol: sympy.Symbol | None,
    symbols: tuple[sympy.Symbol, ...],
    fixed: bool,
):
    axis = Axis("b", ("x.shape[0]",), expression, Range(2), 4, equal=equal)
    assert axis.symbol == symbol
    assert axis.symbols == symbols
    assert axis.is_fixed is fixed


def test_the_value_of_a_node_is_its_example_value_before_its_val(captured: Program):
    node = next(node for node in captured.capture.module.graph.nodes if node.op == "call_function")
    assert value_of(node) is node.meta["example_value"]
    graph = torch.fx.Graph()
    bare = graph.placeholder("x")
    assert value_of(bare) is None
    bare.meta["val"] = 3
    assert value_of(bare) == 3
    bare.meta["example_value"] = 0
    assert value_of(bare) == 0


def test_tensors_are_found_in_nests_left_to_right():
    a, b, c = torch.empty(1), torch.empty(2), torch.empty(3)
    assert [id(found) for found in tensors_in({"x": (a, [None, b]), "y": {"z": c}, "n": 3})] == [id(a), id(b), id(c)]
    assert list(tensors_in(3)) == []
