from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

import fxbucket
from fxbucket.passes import Pipeline, Program, Split, Verify, at_module, at_op, every_n_nodes, where
from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import BoundaryError, PreconditionError


def cut(model: Any, boundary: Any, *args: Any, dynamic: str = "x.shape[0]") -> Program:
    return Pipeline([Split(boundary), Verify()])(fxbucket.capture(model, *args, dynamic=[dynamic]))


def names(program: Program) -> list[list[str]]:
    """Return the names of the ops of each piece."""
    return [[getattr(node.target, "__name__", str(node.target)) for node in piece.body] for piece in program.pieces]


def body_nodes(program: Program) -> list[fx.Node]:
    return [node for node in program.capture.module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def test_a_boundary_op_becomes_a_piece_of_its_own_that_runs_as_it_is():
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x.relu()).cos()

    program = cut(model, at_op("aten::sigmoid"), torch.randn(4))
    assert names(program) == [["relu"], ["sigmoid"], ["cos"]]
    assert [piece.is_boundary for piece in program.pieces] == [False, True, False]
    assert [piece.is_compiled for piece in program.pieces] == [True, False, True]
    assert program.pieces[1].reason.rule == "at_op('aten::sigmoid')"
    assert "sigmoid" in str(program.pieces[1].reason)


def test_boundaries_side_by_side_are_pieces_each():
    program = cut(lambda x: torch.sigmoid(torch.sigmoid(x)), at_op("aten::sigmoid"), torch.randn(4))
    assert names(program) == [["sigmoid"], ["sigmoid"]]
    assert [piece.is_boundary for piece in program.pieces] == [True, True]


def test_a_boundary_that_is_to_be_compiled_is_a_compiled_piece():
    program = cut(lambda x: torch.sigmoid(x.relu()), at_op("aten::sigmoid", compiled=True), torch.randn(4))
    assert [piece.is_compiled for piece in program.pieces] == [True, True]


def test_no_boundary_keeps_the_graph_whole(captured: Program):
    (piece,) = Split()(captured).pieces
    assert piece.name == "piece_0"
    assert set(piece.inputs) <= {held.name for held in captured.capture.placeholders}


def test_a_piece_has_one_placeholder_for_each_input_and_one_output_for_each_name(captured: Program):
    program = Split(at_op("aten::sigmoid"))(captured)
    assert [piece.index for piece in program.pieces] == list(range(len(program.pieces)))
    assert len({piece.name for piece in program.pieces}) == len(program.pieces)
    for piece in program.pieces:
        nodes = list(piece.module.graph.nodes)
        assert sum(node.op == "placeholder" for node in nodes) == len(piece.inputs) == len(set(piece.inputs))
        assert len(nodes[-1].args[0]) == len(piece.outputs) == len(set(piece.outputs))


def test_a_size_that_crosses_a_cut_is_carried_as_a_number():
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
        shape = x.shape
        y = torch.sigmoid(x.flatten())
        return y.reshape(shape), shape

    program = cut(model, at_op("aten::sigmoid"), torch.randn(4, 3))
    for piece in program.pieces:
        for node in piece.module.graph.nodes:
            if node.op == "placeholder":
                assert isinstance(value_of(node), (torch.Tensor, torch.SymInt))


def test_a_tuple_that_crosses_a_cut_is_taken_apart(run: Callable[..., Any]):
    def model(x: torch.Tensor) -> torch.Tensor:
        parts = x.split(2, dim=1)
        return torch.cat(parts[::-1], dim=1) + torch.sigmoid(parts[0]).sum()

    x = torch.randn(4, 6)
    program = cut(model, at_op("aten::sigmoid") | at_op("aten::cat"), x)
    assert any(len(piece.outputs) == 3 for piece in program.pieces)
    assert torch.equal(run(program, x=x)[0], model(x))


def test_an_effect_without_a_result_is_kept_in_its_order(run: Callable[..., Any]):
    def model(x: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
        log.add_(1)
        y = torch.sigmoid(x * log)
        log.mul_(3)
        return y + log

    x, log = torch.ones(4), torch.zeros(1)
    program = cut(model, at_op("aten::sigmoid"), x, log)
    expected_log = log.clone()
    expected = model(x, expected_log)
    assert torch.equal(run(program, x=x, log=log)[0], expected)
    assert torch.equal(log, expected_log)


def test_views_alone_are_not_worth_a_compilation():
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.sigmoid(x).view(-1, 2).transpose(0, 1)[None])

    program = cut(model, at_op("aten::sigmoid"), torch.randn(4, 2))
    assert [piece.is_trivial for piece in program.pieces] == [False, True, False]
    assert not any(piece.is_compiled for piece in program.pieces)


@pytest.mark.parametrize("index", [torch.tensor([0, 1]), [0, 1]], ids=["tensor", "list"])
def test_an_index_that_copies_is_worth_a_compilation(index: Any):
    program = cut(lambda x: torch.sigmoid(x)[:, index], at_op("aten::sigmoid"), torch.randn(4, 2))
    assert [piece.is_compiled for piece in program.pieces] == [False, True]


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def test_each_call_of_a_module_is_a_piece():
    program = cut(Stack(), at_module(torch.nn.Linear), torch.randn(2, 4))
    assert names(program) == [["linear"], ["relu"]] * 3
    assert all(piece.is_compiled for piece in program.pieces)


def test_every_n_nodes_bounds_the_nodes_of_a_piece(captured: Program):
    program = Split(every_n_nodes(3))(captured)
    assert all(len(piece.body) <= 3 + len(piece.outputs) for piece in program.pieces)
    assert sum(len(piece.body) for piece in program.pieces) >= len(body_nodes(captured))


def test_a_later_boundary_does_not_change_what_an_earlier_one_says():
    model, x = (lambda x: torch.sigmoid(x.relu())), torch.randn(4)
    boundaries = [at_op("aten::sigmoid"), every_n_nodes(1)]
    assert [piece.is_boundary for piece in cut(model, boundaries, x).pieces] == [False, True]
    assert [piece.is_boundary for piece in cut(model, boundaries[::-1], x).pieces] == [False, False]


def test_a_boundary_without_a_match_is_an_error_with_the_nearest_name(captured: Program):
    with pytest.raises(BoundaryError, match=r"aten::sigmoidd.*'aten::sigmoid'"):
        Split([at_op("aten::sigmoid"), "aten::sigmoidd"])(captured)


def test_a_boundary_without_a_match_may_be_ignored_with_a_finding(captured: Program):
    program = Split("aten::sigmoidd", missing="ignore")(captured)
    assert len(program.pieces) == 1
    (finding,) = program.trail[-1].findings
    assert "aten::sigmoidd" in str(finding)


def test_a_program_is_split_once(captured: Program):
    with pytest.raises(PreconditionError, match="split already"):
        Split()(Split()(captured))


def test_what_is_no_boundary_is_refused_before_any_program_is_seen():
    with pytest.raises(BoundaryError, match="5"):
        Split([5])


def test_inside_a_vmap_nothing_is_cut(run: Callable[..., Any]):
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: torch.sigmoid(row) * 2)(x) + 1

    x = torch.randn(4, 3)
    program = Split(at_op("aten::sigmoid"))(fxbucket.capture(model, x, dynamic=["x.shape[0]"]))
    assert len(program.pieces) == 1
    assert ["vmap" in str(finding) for finding in program.trail[-1].findings] == [True]
    assert torch.equal(run(program, x=x)[0], model(x))


def test_split_is_pure_and_repeatable(captured: Program):
    before = str(captured)
    first, second = (Split(at_op("aten::sigmoid"))(captured) for _ in range(2))
    assert str(captured) == before
    assert captured.pieces == ()
    assert first == second
    assert str(first) == str(second)


@settings(max_examples=settings().max_examples // 2)
@given(st.sets(st.integers(0, 30), min_size=1), st.booleans())
def test_no_set_of_cuts_changes_what_the_program_gives(
    captured: Program, block: Any, run: Callable[..., Any], positions: set[int], compiled: bool
):
    nodes = body_nodes(captured)
    chosen = {nodes[position % len(nodes)] for position in positions}
    program = Pipeline([Split(where(chosen.__contains__, compiled)), Verify()])(captured)
    x, y, n = torch.randn(6, 4), torch.randn(3, 5), 7
    found = run(program, block, x=x, y=y, n=n)
    expected = block(x, y, n)
    assert found[3] == expected[3]
    for mine, wanted in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(mine, wanted)
        assert mine.stride() == wanted.stride()
    total = sum(tensor.sum() for tensor in found[:3])
    assert torch.autograd.grad(total, block.inner.weight)[0].shape == (4, 4)
