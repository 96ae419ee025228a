"""Collectives in graphs: where they are cut, what must stay together, and what padding may do. No rank is started."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Pipeline, Program, Split, at_collective, at_op
from fxbucket.passes.collectives import collective_name, unfinished
from fxbucket.passes.errors import BoundaryError
from fxbucket.passes.row_collectives import met_by_other_ranks
from fxbucket.passes.rows import lower, prove_rows

ops = torch.ops._c10d_functional
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")


def reduced(x: torch.Tensor) -> torch.Tensor:
    return ops.wait_tensor(ops.all_reduce(x, "sum", "0"))


def gathered(x: torch.Tensor) -> torch.Tensor:
    return ops.wait_tensor(ops.all_gather_into_tensor(x, 2, "0"))


def captured(function: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    return fxbucket.capture(function, torch.randn(6, 4), dynamic=["x.shape[0]"])


def split(function: Callable[[torch.Tensor], torch.Tensor], boundary: object) -> Program:
    return Pipeline([Split(boundary)])(captured(function))


def leaks(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[str, ...]:
    program = captured(function)
    return tuple(leak.reason for leak in prove_rows(program, program.capture.hints).leaks)


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from(["relu", "reduce", "both"]), min_size=1, max_size=6).filter(
        lambda kinds: set(kinds) != {"relu"}
    )
)
def test_every_collective_is_cut_out_with_its_end(kinds: list[str]):
    def model(x: torch.Tensor) -> torch.Tensor:
        for kind in kinds:
            if kind != "reduce":
                x = torch.relu(x)
            if kind != "relu":
                x = reduced(x)
        return x

    program = split(model, at_collective())
    for piece in program.pieces:
        names = [collective_name(node) for node in piece.body]
        assert all(names) if piece.is_boundary else not any(names)
        assert not list(unfinished(piece.module.graph.nodes))


def test_a_collective_that_ends_elsewhere_is_told():
    program = split(lambda x: torch.relu(reduced(torch.relu(x))), at_op("_c10d_functional::all_reduce"))
    found = [list(unfinished(piece.module.graph.nodes)) for piece in program.pieces]
    assert not found[0]
    assert "is waited for in another piece" in found[1][0]
    assert "begins in another piece" in found[2][0]


def test_compiled_collectives_are_pieces_for_the_compiler():
    program = split(lambda x: torch.relu(reduced(torch.relu(x))), at_collective(compiled=True))
    assert [piece.is_compiled for piece in program.pieces] == [True] * 3


def test_a_graph_without_collectives_is_an_error_that_names_what_is_there():
    with pytest.raises(BoundaryError, match=r"at_collective\(\) matches no node.*relu"):
        split(lambda x: torch.relu(x), at_collective())
    both = split(lambda x: torch.relu(reduced(x)), at_collective() | at_op("torch.relu"))
    assert [piece.is_boundary for piece in both.pieces] == [True, True]
    with pytest.raises(BoundaryError, match="none in common"):
        split(lambda x: torch.relu(reduced(x)), at_collective() & at_op("torch.relu"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: reduced(torch.relu(x)) + 1,
        lambda x: reduced(x.sum(1)),
        lambda x: gathered(x).view(2, -1, 4) + 1,
    ],
)
def test_padding_that_stays_behind_rows_is_proved_harmless(function: Callable[[torch.Tensor], torch.Tensor]):
    assert leaks(function) == ()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: gathered(x) + 1, "puts rows of each rank behind the padding of another"),
        (lambda x: gathered(x)[: x.shape[0]], "puts rows of each rank behind the padding of another"),
        (lambda x: ops.wait_tensor(ops.reduce_scatter_tensor(x.repeat(2, 1), "sum", 2, "0")), ""),
        (lambda x: ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", 2, "0")), "deals out"),
    ],
)
def test_padding_that_could_reach_rows_is_refused(function: Callable[[torch.Tensor], torch.Tensor], reason: str):
    assert any(reason in leak for leak in leaks(function))


def test_rows_that_meet_other_ranks_are_told_and_may_be_promised():
    program = captured(lambda x: reduced(torch.relu(x)))
    symbols = frozenset(program.capture.hints)
    lowered = lower(program)
    assert "all_reduce" in met_by_other_ranks(lowered, symbols, ())
    assert met_by_other_ranks(lowered, symbols, ["_c10d_functional::all_reduce"]) == ""
    assert met_by_other_ranks(lowered, frozenset(), ()) == ""
    weights = captured(lambda x: torch.relu(x) * reduced(torch.ones(4)))
    assert met_by_other_ranks(lower(weights), frozenset(weights.capture.hints), ()) == ""
