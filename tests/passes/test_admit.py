from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Admit, Bucket, Program
from fxbucket.passes.admit import binding_for, broken_guard, decide
from fxbucket.passes.buckets import Extent, Range
from fxbucket.passes.captured import Guard
from fxbucket.passes.errors import AxisError, SizeError
from fxbucket.passes.hints import hints_beside


def symbol(program: Program, name: str) -> Any:
    return program.capture.axis(name).symbol


@pytest.fixture(scope="module")
def derived() -> Program:
    """The second tensor has two more than twice the rows of the first: its axis depends on the first's."""

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x, x[:2]]) + y

    return fxbucket.capture(model, torch.randn(4), torch.randn(10), axes={"b": "x.shape[0]", "t": "y.shape[0]"})


@pytest.fixture(scope="module")
def bounded() -> Program:
    """Valid from 5 to 64 rows."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if 4 < x.shape[0] <= 64 else x

    return fxbucket.capture(model, torch.randn(8), dynamic=["x.shape[0]"])


def test_a_size_binds_its_axis_and_no_other(captured: Program):
    assert binding_for(captured.capture, {"x.shape[0]": 16}) == {symbol(captured, "x.shape[0]"): 16}
    assert binding_for(captured.capture, {"k": 7, "n": -3}) == {symbol(captured, "k"): 7, symbol(captured, "n"): -3}
    assert binding_for(captured.capture, {}) == {}


def test_an_axis_may_be_called_by_its_expression(captured: Program):
    assert binding_for(captured.capture, {"y.shape[1]": 7}) == binding_for(captured.capture, {"k": 7})


def test_a_size_of_a_dependent_axis_binds_what_it_depends_on(derived: Program):
    free = {s for axis in derived.axes for s in axis.symbols}
    (only,) = free
    assert binding_for(derived.capture, {"b": 6}) == binding_for(derived.capture, {"t": 14})
    assert binding_for(derived.capture, {"b": 6, "t": 14}).keys() == {only}


def test_a_size_that_a_dependent_axis_cannot_have_is_refused_in_the_words_of_the_user(derived: Program):
    with pytest.raises(SizeError, match=r"axis 't' is 2\*b \+ 2 .*cannot be 13"):
        binding_for(derived.capture, {"t": 13})


@pytest.mark.parametrize("sizes", [{"b": 7, "t": 14}, {"t": 14, "b": 7}])
def test_sizes_of_dependent_axes_that_contradict_each_other_are_refused_by_both_names(
    derived: Program, sizes: dict[str, int]
):
    with pytest.raises(SizeError, match="depend on one another") as caught:
        binding_for(derived.capture, sizes)
    assert "'b'" in str(caught.value)
    assert "'t'" in str(caught.value)
    assert "2*b + 2" in str(caught.value)


def test_a_size_outside_the_range_of_the_capture_is_refused_with_the_range(bounded: Program):
    with pytest.raises(SizeError, match=r"size 65 of axis 'x.shape\[0\]' lies outside 5..64"):
        binding_for(bounded.capture, {"x.shape[0]": 65})
    assert binding_for(bounded.capture, {"x.shape[0]": 64})
    assert binding_for(bounded.capture, {"x.shape[0]": 5})


@pytest.mark.parametrize("size", [0, 1])
def test_one_row_and_none_are_other_captures(captured: Program, size: int):
    with pytest.raises(SizeError, match=rf"size {size} of axis 'k' lies outside 2..∞"):
        binding_for(captured.capture, {"k": size})


def test_an_axis_that_the_capture_does_not_have_is_an_error(captured: Program):
    with pytest.raises(AxisError, match=r"'y.shape\[0\]'.*'y.shape\[1\]'"):
        binding_for(captured.capture, {"y.shape[0]": 3})


def test_a_broken_guard_is_told_by_axis_names_and_the_line_that_asked(captured: Program):
    rows = symbol(captured, "x.shape[0]")
    said = broken_guard(captured.capture, {rows: 7})
    assert "x.shape[0] % 2" in said
    assert "rows % 2 == 0" in said
    assert "conftest.py" in said
    assert broken_guard(captured.capture, {rows: 6}) == ""


def test_a_guard_whose_symbol_has_no_number_is_left_to_the_call(captured: Program):
    assert broken_guard(captured.capture, {symbol(captured, "k"): 7}) == ""


@given(st.integers(0, 40), st.integers(0, 40), st.integers(-5, 5))
def test_a_bucket_is_admitted_exactly_where_the_capture_is_valid(captured: Program, rows: int, columns: int, n: int):
    decision = decide(captured.capture, Bucket.of({"x.shape[0]": rows, "k": columns, "n": n}))
    assert decision.admitted is (rows >= 2 and rows % 2 == 0 and columns >= 2)
    assert bool(decision.reason) is not decision.admitted


@pytest.mark.parametrize(
    ("extent", "admitted"),
    [(Range(1, 4), False), (Range(1, 5), True), (Range(60, 90), True), (Range(65, 90), False), (Range(64), True)],
)
def test_a_range_is_admitted_where_it_meets_the_range_of_the_capture(bounded: Program, extent: Extent, admitted: bool):
    decision = decide(bounded.capture, Bucket.of({"x.shape[0]": extent}))
    assert decision.admitted is admitted
    assert admitted or "5..64" in decision.reason


def test_a_fixed_axis_admits_its_own_size_only():
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [1, 4]}, compiler="eager")
    compiled(torch.randn(1))
    (program,) = compiled.programs
    assert program.capture.axis("x.shape[0]").is_fixed
    assert decide(program.capture, Bucket.of({"x.shape[0]": 1})).admitted
    refused = decide(program.capture, Bucket.of({"x.shape[0]": 4}))
    assert "'x.shape[0]' is fixed at 1" in refused.reason
    assert "cannot be 4" in refused.reason
    assert decide(program.capture, Bucket.of({"x.shape[0]": Range(1, 9)})).admitted
    assert "fixed at 1" in decide(program.capture, Bucket.of({"x.shape[0]": Range(2, 9)})).reason


def test_admit_writes_one_decision_a_bucket_and_a_finding_for_each_refusal(captured: Program):
    buckets = [Bucket.of({"x.shape[0]": size}) for size in (8, 7, 16)]
    program = Admit(buckets)(captured)  # type: ignore[arg-type]
    assert [(decision.bucket, decision.admitted) for decision in program.decisions] == list(
        zip(buckets, (True, False, True), strict=True)
    )
    (finding,) = program.trail[-1].findings
    assert "x.shape[0]=7" in finding.where
    assert "refused" in finding.text


def test_strict_raises_for_the_bucket_that_breaks_a_condition(captured: Program):
    buckets = (Bucket.of({"x.shape[0]": 8}), Bucket.of({"x.shape[0]": 7}))
    with pytest.raises(SizeError, match=r"bucket x.shape\[0\]=7 is refused: .*x.shape\[0\] % 2"):
        Admit(buckets, strict=True)(captured)
    assert len(Admit(buckets[:1], strict=True)(captured).decisions) == 1


def test_admit_is_pure_and_repeatable(captured: Program):
    before = str(captured)
    buckets = (Bucket.of({"x.shape[0]": 8}), Bucket.of({"k": 1}))
    assert Admit(buckets)(captured) == Admit(buckets)(captured)
    assert captured.decisions == ()
    assert str(captured) == before


def test_hints_of_open_sizes_are_made_to_go_with_what_is_pinned():
    def model(x: torch.Tensor, k: int, bias: torch.Tensor) -> torch.Tensor:
        return x.repeat(k) + bias

    program = fxbucket.capture(
        model, torch.ones(6), 2, torch.ones(12), axes={"rows": "x.shape[0]", "k": "k", "wide": "bias.shape[0]"}
    )
    capture = program.capture
    rows, k, wide = (capture.axis(name).symbol for name in ("rows", "k", "wide"))
    assert hints_beside(capture, {rows: 4}, {})[wide] == 8
    assert hints_beside(capture, {rows: 4}, {k: 3})[wide] == 12
    assert hints_beside(capture, {rows: 4, wide: 12}, {})[k] == 3
    with pytest.raises(SizeError, match="name the other axes too"):
        hints_beside(capture, {rows: 4, wide: 13}, {})


def test_hints_go_with_a_guard_that_compares_axes_which_the_graph_does_not_hold():
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1 if y.shape[0] < x.shape[0] else x - 1

    compiled = torch.compile(model, backend=fxbucket.backend(sizes="seen", compiler="eager"), dynamic=True)
    for rows, others in ((6, 5), (4, 3), (900, 899), (3, 2), (4, 7), (7, 4)):
        x, y = torch.randn(rows, 3), torch.randn(others, 2)
        assert torch.equal(compiled(x, y), model(x, y))


@given(rows=st.integers(2, 200), other=st.integers(2, 200), shift=st.integers(-50, 50), above=st.booleans())
def test_hints_of_open_symbols_hold_every_guard_that_compares_them(
    captured: Program, rows: int, other: int, shift: int, above: bool
):
    x, k = symbol(captured, "x.shape[0]"), symbol(captured, "k")
    compared = sympy.Gt(k, x + shift) if above else sympy.Lt(k, x + shift)
    capture = dataclasses.replace(captured.capture, guards=(Guard(compared), Guard(sympy.Ne(k, other))))
    if not above and rows + shift <= 3:
        return  # an axis has two rows or more, and one value may be left out
    hints = hints_beside(capture, {x: rows}, {})
    assert hints[k] > rows + shift if above else hints[k] < rows + shift
    assert hints[k] != other
    assert hints[k] >= 2
