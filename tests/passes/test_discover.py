from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Discover, Program
from fxbucket.passes.captured import Placeholder, value_of
from fxbucket.passes.discover import cheapest_use, uses_of
from fxbucket.passes.symbolic import expression_of


def discovered(model: Any, *args: Any, dynamic: list[str]) -> Program:
    return Discover()(fxbucket.capture(model, *args, dynamic=dynamic))


def places(program: Program, source: str) -> list[tuple[str, int, Any]]:
    """Return ``(field, dim, expression)`` of the uses in the argument that torch calls ``source``."""
    (index,) = [held.index for held in program.capture.placeholders if held.source == source]
    return [(use.field, use.dim, use.expression) for use in program.uses if use.placeholder == index]


def test_sizes_and_strides_that_depend_on_a_symbol_are_found():
    program = discovered(lambda x: x + 1, torch.randn(4, 8).t(), dynamic=["x.shape[0]"])
    symbol = program.capture.axis("x.shape[0]").symbol
    assert places(program, "L['x']") == [("size", 0, symbol), ("stride", 1, symbol)]


def test_a_stride_that_is_a_product_of_symbols_is_an_expression():
    program = discovered(lambda x: x + 1, torch.randn(4, 5, 6), dynamic=["x.shape[1]", "x.shape[2]"])
    one, two = (program.capture.axis(f"x.shape[{dim}]").symbol for dim in (1, 2))
    assert places(program, "L['x']") == [("size", 1, one), ("size", 2, two), ("stride", 0, one * two), ("stride", 1, two)]


def test_an_int_argument_is_a_use_by_its_value():
    program = discovered(lambda x, n: x + n, torch.randn(4), 3, dynamic=["n"])
    assert places(program, "L['n']") == [("value", -1, program.capture.axis("n").symbol)]
    assert places(program, "L['x']") == []


def test_a_symbol_is_read_from_an_int_before_a_size_and_from_a_size_before_a_stride():
    program = discovered(lambda x: x + 1, torch.randn(4, 8).t(), dynamic=["x.shape[0]"])
    symbol = program.capture.axis("x.shape[0]").symbol
    assert symbol is not None
    fields = [use.field for use in program.uses if use.expression == symbol]
    best = cheapest_use(program, symbol)
    assert best is not None
    assert best.field == min(fields, key=["value", "size", "stride", "offset"].index)


def test_a_symbol_within_an_expression_only_cannot_be_looked_up_there():
    program = discovered(lambda x: x + 1, torch.randn(4, 5), dynamic=["x.shape[0]"])
    symbol = program.capture.axis("x.shape[0]").symbol
    assert symbol is not None
    only_within = replace(program, uses=tuple(replace(use, expression=2 * symbol) for use in program.uses))
    assert cheapest_use(program, symbol) is not None
    assert cheapest_use(only_within, symbol) is None


def test_a_graph_without_symbols_has_no_use():
    program = fxbucket.capture(lambda x: x + 1, torch.randn(4))
    assert Discover()(program).uses == ()


def test_discover_needs_no_pieces_and_changes_none(captured: Program):
    before = str(captured)
    first, second = Discover()(captured), Discover()(captured)
    assert first == second
    assert first.pieces == captured.pieces == ()
    assert captured.uses == ()
    assert str(captured) == before


@settings(max_examples=settings().max_examples // 3)
@given(st.permutations(range(3)), st.lists(st.integers(2, 5), min_size=3, max_size=3), st.integers(0, 2))
def test_uses_are_exactly_the_numbers_that_change_with_the_axis(order: list[int], sizes: list[int], dim: int):
    """A tensor of any dim order: every number that a use names evaluates to what the tensor has, and no other varies."""
    torch.compiler.reset()
    x = torch.empty(sizes).permute(order)
    program = discovered(lambda x: x + 1, x, dynamic=[f"x.shape[{dim}]"])
    found = {(field, at) for field, at, _ in places(program, "L['x']")}
    (node,) = [node for node in program.capture.module.graph.nodes if node.name == "l_x_"]
    fake = value_of(node)
    numbers = [*(("size", at, size) for at, size in enumerate(fake.shape))]
    numbers += [("stride", at, stride) for at, stride in enumerate(fake.stride())]
    assert found == {(field, at) for field, at, number in numbers if not isinstance(expression_of(number), int)}
    assert ("size", dim) in found


def test_uses_of_one_argument_carry_its_position():
    program = fxbucket.capture(lambda x: x + 1, torch.randn(4), dynamic=["x.shape[0]"])
    node = next(node for node in program.capture.module.graph.nodes if node.name == "l_x_")
    uses = list(uses_of(Placeholder(7, "l_x_", "L['x']", "input"), value_of(node)))
    assert [(use.placeholder, use.field, use.dim) for use in uses] == [(7, "size", 0)]
    assert list(uses_of(Placeholder(7, "n", "L['n']", "input"), 5)) == []
