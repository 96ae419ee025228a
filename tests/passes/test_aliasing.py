from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Program
from fxbucket.passes.aliasing import exposed_placeholders, overlap, written_overlap
from tests.equality import assert_equals_eager


def captured(model: Any, *args: Any) -> Program:
    return fxbucket.capture(model, *args, dynamic=["x.shape[0]"])


def written(program: Program) -> set[str]:
    return {program.capture.placeholders[position].source for position in program.capture.written}


def exposed(program: Program) -> set[str]:
    return {program.capture.placeholders[position].source for position in exposed_placeholders(program.capture)}


@pytest.mark.parametrize(
    "model",
    [
        lambda x, y: x.add_(1) + y.sum(),
        lambda x, y: (x[1:].mul_(2), y.sum())[1],
        lambda x, y: x.view(-1).t().zero_() + y.sum(),
        lambda x, y: torch.add(x, y.sum(), out=x),
        lambda x, y: y.sum() + torch.nn.functional.relu(x, inplace=True),
    ],
    ids=["in place", "through a slice", "through a view", "as out=", "inplace=True"],
)
def test_an_argument_that_is_written_to_is_told_however_the_write_goes(model: Any):
    program = captured(model, torch.randn(4, 3), torch.randn(4, 3))
    assert written(program) == {"L['x']"}
    assert exposed(program) == {"L['y']"}


def test_a_graph_that_writes_to_nothing_exposes_nothing():
    program = captured(lambda x, y: x * y.sum(), torch.randn(4), torch.randn(3))
    assert written(program) == exposed(program) == set()


@given(st.integers(0, 7), st.integers(1, 6), st.integers(0, 7), st.integers(1, 6), st.booleans())
def test_tensors_overlap_exactly_where_their_stretches_of_one_storage_meet(
    start: int, length: int, other_start: int, other_length: int, shared: bool
):
    base = torch.zeros(16)
    other = base if shared else torch.zeros(16)
    left, right = base[start : start + length], other[other_start : other_start + other_length]
    expected = shared and start < other_start + other_length and other_start < start + length
    assert overlap(left, right) is expected
    assert overlap(right, left) is expected


def test_nothing_overlaps_what_has_no_elements():
    base = torch.zeros(8)
    assert not overlap(base, base[:0])
    assert not overlap(base[:0], base[:0])


def test_tensors_of_another_dtype_overlap_by_their_bytes():
    base = torch.zeros(4, dtype=torch.int64)
    halves = base.view(torch.int32)
    assert overlap(base[1:2], halves[2:4])
    assert not overlap(base[1:2], halves[4:])


def test_an_overlap_counts_only_where_one_side_is_written_to_and_is_not_the_same_tensor():
    base = torch.zeros(8)
    arguments = (base[:4], base[2:], torch.zeros(3), 5)
    assert written_overlap(arguments, [0], [1, 2])
    assert not written_overlap(arguments, [2], [0, 1])
    assert written_overlap(arguments, [0, 1], [])
    assert not written_overlap(arguments, [], [0, 1])
    assert not written_overlap((base, base), [0], [1])
    assert not written_overlap(arguments, [3], [0, 1])


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return torch.sigmoid(y) + 1


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_write_that_another_argument_sees_is_seen_as_in_eager(compiler: str):
    compiled = fxbucket.compile(
        writes, sizes={"x.shape[0]": [4]}, axes={"t": "y.shape[0]"}, splitting_ops=["aten::sigmoid"], compiler=compiler
    )

    def apart() -> tuple[torch.Tensor, ...]:
        return torch.ones(4), torch.ones(5)

    def together() -> tuple[torch.Tensor, ...]:
        base = torch.arange(8.0)
        return base[:4], base[2:7]

    assert_equals_eager(compiled, writes, apart(), apart())
    with pytest.warns(fxbucket.FxbucketWarning, match="share memory that the graph writes to"):
        assert_equals_eager(compiled, writes, together(), together())
    assert_equals_eager(compiled, writes, apart(), apart())
    assert compiled.explain().calls()["x.shape[0]=4"] == 2
    assert compiled.explain().graphs[0].eager_calls == 1
