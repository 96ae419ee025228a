from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import fxbucket
from fxbucket.passes import Pipeline, Program, Split, Verify, at_op, every_n_nodes
from fxbucket.passes.regions import (
    RegionWriter,
    State,
    exit_functions,
    function_name,
    is_region_node,
    opens_level,
    states_of,
)

BOUNDARY = at_op("aten::sigmoid")


def cut(model: Any, *args: Any, boundary: Any = BOUNDARY) -> Program:
    return Pipeline([Split(boundary), Verify()])(fxbucket.capture(model, *args, dynamic=["x.shape[0]"]))


def region_calls(program: Program) -> list[list[str]]:
    return [[function_name(node) for node in piece.body if is_region_node(node)] for piece in program.pieces]


def in_autocast(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.sigmoid(x @ x.t())
        z = y @ x
    return z, z.float() @ x.t()


def test_every_piece_in_an_autocast_region_enters_and_leaves_it(run: Callable[..., Any]):
    x = torch.randn(4, 4)
    program = cut(in_autocast, x)
    assert region_calls(program) == [["_enter_autocast", "_exit_autocast"]] * 3
    found, expected = run(program, x=x), in_autocast(x)
    assert [tensor.dtype for tensor in found] == [torch.bfloat16, torch.float32]
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(found, expected, strict=True))
    assert not torch.is_autocast_enabled("cpu")


def test_nested_regions_are_left_innermost_first_and_entered_outermost_first():
    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.t()
            with torch.autocast("cpu", enabled=False):
                y = torch.sigmoid(y.float() @ x)
        return y

    program = cut(model, torch.randn(4, 5))
    enter = [node.args for piece in program.pieces for node in piece.body if function_name(node) == "_enter_autocast"]
    assert region_calls(program)[1] == ["_enter_autocast"] * 2 + ["_exit_autocast"] * 2
    assert [arguments[2] for arguments in enter[-2:]] == [True, False]
    exits = [node for node in program.pieces[1].body if function_name(node) == "_exit_autocast"]
    enters = [node for node in program.pieces[1].body if function_name(node) == "_enter_autocast"]
    assert [node.args[0] for node in exits] == enters[::-1]


def without_gradients(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        y = torch.sigmoid(x * 2)
        y = y * 3
    return y * 2, x * y


@pytest.mark.parametrize("boundary", [BOUNDARY, every_n_nodes(1), every_n_nodes(2)])
def test_a_piece_in_a_no_grad_region_records_no_gradient_and_leaves_grad_mode_as_it_was(
    run: Callable[..., Any], boundary: Any
):
    x = torch.randn(4, requires_grad=True)
    first, second = run(cut(without_gradients, x, boundary=boundary), x=x)
    assert torch.is_grad_enabled()
    assert (first.requires_grad, second.requires_grad) == (False, True)
    (gradient,) = torch.autograd.grad(second.sum(), x)
    (expected,) = torch.autograd.grad(without_gradients(x)[1].sum(), x)
    assert torch.equal(gradient, expected)


def test_enable_grad_inside_a_no_grad_call_is_kept(run: Callable[..., Any]):
    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return torch.sigmoid(x * 2)

    x = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        program = cut(model, x)
        (found,) = run(program, x=x)
        assert not torch.is_grad_enabled()
    assert not program.capture.grad_enabled
    assert found.requires_grad


def test_nodes_outside_every_region_are_in_the_state_of_the_call(captured: Program):
    nodes = list(captured.capture.module.graph.nodes)
    states, initial = states_of(nodes, grad_enabled=True)
    assert set(states.values()) == {State()}
    assert initial == {}


def autocast_graph() -> list[fx.Node]:
    return list(fxbucket.capture(in_autocast, torch.randn(4, 4), dynamic=["x.shape[0]"]).capture.module.graph.nodes)


def test_the_state_of_a_node_names_the_regions_in_force():
    nodes = autocast_graph()
    states, _ = states_of(nodes, grad_enabled=True)
    (opener,) = [node for node in nodes if function_name(node) == "_enter_autocast"]
    inside = [node for node, state in states.items() if state.entered == (opener,)]
    start = nodes.index(opener)
    assert inside == nodes[start : start + len(inside)]
    assert function_name(nodes[start + len(inside)]) == "_exit_autocast"


def test_a_writer_that_moves_nowhere_writes_nothing_and_one_that_returns_closes_what_it_opened():
    nodes = autocast_graph()
    states, initial = states_of(nodes, grad_enabled=True)
    (inside,) = {state for state in states.values() if state.entered}
    graph = fx.Graph()
    writer = RegionWriter(graph, initial, exit_functions(nodes))
    writer.move_to(State())
    assert len(graph.nodes) == 0
    writer.move_to(inside)
    writer.move_to(inside)
    writer.move_to(State())
    assert [function_name(node) for node in graph.nodes] == ["_enter_autocast", "_exit_autocast"]


def test_only_the_calls_around_a_vmap_change_its_level():
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row * 2)(x) + 1

    nodes = list(fxbucket.capture(model, torch.randn(4, 3), dynamic=["x.shape[0]"]).capture.module.graph.nodes)
    levels = [opens_level(node) for node in nodes if opens_level(node)]
    assert levels == [1, -1]
