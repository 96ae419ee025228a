"""Plans of recordings: what is recorded together, what runs between, and what is copied to where recordings read it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Concretize, Discover, Pipeline, Split, at_op
from fxbucket.passes.boundaries import every_n_nodes
from fxbucket.passes.program import Program
from fxbucket.passes.stretches import RecordingPlan, plan_pieces, plan_whole

CPU = torch.device("cpu")


def program_of(function: Callable[..., Any], boundary: Any, *inputs: torch.Tensor) -> Program:
    inputs = inputs or (torch.randn(4, 8),)
    with torch.no_grad():
        program = fxbucket.capture(function, *inputs, dynamic=["x.shape[0]"])
    return Pipeline([Split(boundary), Discover(), Concretize({"x.shape[0]": 6})])(program)


def shape_of(plan: RecordingPlan, program: Program) -> list[tuple[str, list[str]]]:
    names = [[program.pieces[place].name for place in stretch.pieces] for stretch in plan.stretches]
    return [
        ("recorded" if stretch.is_recorded else "run", found) for stretch, found in zip(plan.stretches, names, strict=True)
    ]


def test_a_whole_plan_is_one_stretch():
    program = program_of(lambda x: torch.nn.functional.gelu(x.relu()).tanh(), at_op("aten::gelu"))
    plan = plan_whole(program)
    assert shape_of(plan, program) == [("recorded", ["piece_0", "piece_1", "piece_2"])]
    assert plan.read == {program.pieces[0].inputs[0]}
    assert plan.num_recorded == 1


def test_pieces_between_boundaries_are_recorded_and_what_boundaries_give_is_held():
    program = program_of(lambda x: torch.nn.functional.gelu(x.relu()).tanh(), at_op("aten::gelu"))
    plan = plan_pieces(program, CPU)
    assert shape_of(plan, program) == [("recorded", ["piece_0"]), ("run", ["piece_1"]), ("recorded", ["piece_2"])]
    (between,) = (stretch for stretch in plan.stretches if not stretch.is_recorded)
    assert between.held == program.pieces[1].outputs
    assert between.views == ()
    assert plan.left_out == {}


def test_neighbouring_pieces_are_one_recording():
    program = program_of(lambda x: x.relu().tanh().sigmoid().exp(), every_n_nodes(1))
    plan = plan_pieces(program, CPU)
    assert plan.num_recorded == 1
    assert len(plan.stretches[0].pieces) == len(program.pieces) > 1


def test_what_launches_nothing_is_not_recorded_by_itself():
    def flip(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.nn.functional.gelu(x.relu()).view(-1)) + 1

    program = program_of(flip, at_op("aten::gelu") | at_op("aten::sigmoid"))
    plan = plan_pieces(program, CPU)
    assert [kind for kind, _ in shape_of(plan, program)] == ["recorded", "run", "run", "run", "recorded"]
    assert plan.left_out == {}


def test_a_view_of_what_a_recording_gave_stays_where_it_is():
    def second_half(x: torch.Tensor) -> torch.Tensor:
        hidden = x.relu()
        return torch.transpose(hidden, 0, 1).contiguous() + 1

    program = program_of(second_half, at_op("aten::transpose"))
    plan = plan_pieces(program, CPU)
    (between,) = (stretch for stretch in plan.stretches if not stretch.is_recorded)
    assert between.held == between.views == program.pieces[1].outputs


def test_a_returned_view_of_what_a_recording_gave_is_known_as_such():
    program = program_of(lambda x: torch.transpose(x.relu() + 1, 0, 1), at_op("aten::transpose"))
    plan = plan_pieces(program, CPU)
    (between,) = (stretch for stretch in plan.stretches if not stretch.is_recorded)
    assert between.held == between.views == program.pieces[-1].outputs


def test_memory_that_two_values_share_is_not_copied_twice():
    def halves(x: torch.Tensor) -> torch.Tensor:
        first, second = torch.nn.functional.gelu(x.relu()).split(4, dim=1)
        return first * second

    program = program_of(halves, at_op("aten::gelu") | at_op("aten::split"))
    plan = plan_pieces(program, CPU)
    last = program.pieces[-1]
    assert not next(stretch for stretch in plan.stretches if last.index in stretch.pieces).is_recorded
    assert any("shares memory with what is not recorded" in reason for reason in plan.left_out)


def test_a_piece_that_must_be_avoided_is_and_says_why():
    program = program_of(lambda x: torch.nn.functional.gelu(x.relu()).tanh(), at_op("aten::gelu"))
    plan = plan_pieces(program, CPU, {"piece_0": "it failed"})
    assert shape_of(plan, program) == [("run", ["piece_0"]), ("run", ["piece_1"]), ("recorded", ["piece_2"])]
    assert plan.left_out == {"it failed": 1}
    assert plan.stretches[0].held == ()
    everything = plan_pieces(program, CPU, {piece.name: "it failed" for piece in program.pieces})
    assert everything.num_recorded == 0


def test_nothing_is_recorded_where_the_tensors_are_elsewhere():
    program = program_of(lambda x: x.relu(), every_n_nodes(9))
    plan = plan_pieces(program, torch.device("cuda", 0))
    assert plan.num_recorded == 0
    assert plan.left_out == {"it holds tensors on cpu": 1}


OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "relu": lambda a, b: a.relu(),
    "add": lambda a, b: a + b,
    "gelu": lambda a, b: torch.nn.functional.gelu(a),
    "tanh": lambda a, b: torch.tanh(b),
    "view": lambda a, b: a.view(-1, 8),
    "sigmoid": lambda a, b: torch.sigmoid(a) * b,
}


@given(steps=st.lists(st.sampled_from(sorted(OPS)), min_size=1, max_size=8))
def test_every_piece_runs_once_in_its_order_and_every_value_is_where_it_is_read(steps: list[str]):
    def model(x: torch.Tensor) -> torch.Tensor:
        a, b = x, x * 2
        for step in steps:
            a, b = OPS[step](a, b), a
        return a + b

    cuts = [at_op(name) for name in ("aten::gelu", "aten::tanh") if name.removeprefix("aten::") in steps]
    program = program_of(model, functools.reduce(operator.or_, cuts, every_n_nodes(100)))
    plan = plan_pieces(program, CPU)
    assert [place for stretch in plan.stretches for place in stretch.pieces] == [piece.index for piece in program.pieces]
    arguments = {placeholder.name for placeholder in program.capture.placeholders}
    given_by_recordings: set[str] = set()
    held: set[str] = set()
    for stretch in plan.stretches:
        pieces = [program.pieces[place] for place in stretch.pieces]
        if stretch.is_recorded:
            given_by_recordings |= {name for piece in pieces for name in piece.outputs}
            taken = {name for piece in pieces for name in piece.inputs}
            assert taken <= given_by_recordings | held | arguments
            assert taken & arguments <= plan.read
        held |= set(stretch.held)
        assert set(stretch.views) <= set(stretch.held)


@pytest.mark.parametrize("mode", ["whole", "pieces"])
def test_values_die_after_their_last_use_and_results_never(mode: str):
    program = program_of(lambda x: (torch.nn.functional.gelu(x.relu()).tanh(), x + 1), at_op("aten::gelu"))
    plan = plan_whole(program) if mode == "whole" else plan_pieces(program, CPU)
    dead = [name for names in plan.dead for name in names]
    assert len(dead) == len(set(dead))
    returned = {str(item).lstrip("%") for item in program.outputs}
    assert returned.isdisjoint(dead)
