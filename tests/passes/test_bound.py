from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Bound, Bucket, Concretize, Discover, Pipeline, Program, Range, Split, Verify, at_op
from fxbucket.passes.admit import decide, settled
from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import AxisError, OptionError, PreconditionError, SizeError
from fxbucket.passes.form import form_of
from fxbucket.passes.plain_data import program_data
from fxbucket.passes.ranges import bounds_of
from fxbucket.passes.recreate import recreate
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, fake_mode_of, recorded_guards, symbols_in

WIDE = {"x.shape[0]": Range(16, 128, multiple_of=16)}


@pytest.fixture(scope="module")
def split(captured: Program) -> Program:
    return Pipeline([Split(at_op("aten::sigmoid")), Discover(), Verify()])(captured)


def rows_of(program: Program) -> torch.SymInt:
    """Return the rows of the first tensor with symbolic rows in a program's pieces."""
    values = [value_of(node) for piece in program.pieces for node in piece.module.graph.nodes]
    return next(v.shape[0] for v in values if isinstance(v, torch.Tensor) and isinstance(v.shape[0], torch.SymInt))


def test_a_range_reaches_the_environment_that_compilers_see(split: Program):
    program = Pipeline([Bound(WIDE), Verify()])(split)
    symbol = split.capture.axis("x.shape[0]").symbol
    assert program.bounds == {symbol: Range(16, 128, 16)}
    assert program.ranges[symbol] == Range(16, 128, 16)
    assert program.bucket == Bucket.of(WIDE)
    rows = rows_of(program)
    env = rows.node.shape_env
    before = recorded_guards(env)
    # All of these follow from the range, so that no compiler adds a condition for asking.
    assert 15 < rows <= 128
    assert rows % 16 == 0
    assert rows % 8 == 0
    assert recorded_guards(env) == before


def test_the_hint_is_in_the_middle_or_as_it_was_chosen(split: Program):
    symbol = split.capture.axis("x.shape[0]").symbol
    assert Bound(WIDE)(split).hints[symbol] == 64  # type: ignore[operator]
    chosen = {"x.shape[0]": Range(16, 128, multiple_of=16, hint=112)}
    program = Bound(chosen)(split)  # type: ignore[operator]
    assert program.hints[symbol] == 112
    assert rows_of(program).node.hint == 112


def test_other_axes_are_pinned_or_stay_open(split: Program):
    mixed = Bound({"x.shape[0]": Range(4, 8), "k": 7})(split)  # type: ignore[operator]
    assert [str(mixed.capture.axis(name).symbol in mixed.binding) for name in ("x.shape[0]", "k", "n")] == [
        "False", "True", "False",
    ]  # fmt: skip
    assert str(mixed.bucket) == "x.shape[0]=4..8, k=7"


def test_a_form_holds_its_bounds_and_is_made_again_with_them(split: Program):
    wide, narrow = (Bound({"x.shape[0]": bounds})(split) for bounds in (Range(16, 128), Range(16, 64)))  # type: ignore[operator]
    forms = [form_of(program.pieces[0], program) for program in (wide, narrow, wide)]
    assert forms[0].digest == forms[2].digest
    assert forms[0].digest != forms[1].digest
    multiple = Bound(WIDE)(split)  # type: ignore[operator]
    form = form_of(multiple.pieces[0], multiple)
    again = recreate(form)
    assert again.conditions(form) == ()
    size = next(v.shape[0] for v in again.inputs if isinstance(v, torch.Tensor) and isinstance(v.shape[0], torch.SymInt))
    assert 16 <= size <= 128
    assert size % 16 == 0
    assert again.conditions(form) == ()


def test_a_range_is_cut_to_what_the_capture_is_valid_for(split: Program):
    symbol = split.capture.axis("x.shape[0]").symbol
    assert Bound({"x.shape[0]": Range(0, 9)})(split).bounds == {symbol: Range(2, 9)}  # type: ignore[operator]
    with pytest.raises(SizeError, match=r"range 0\.\.1 of axis 'x.shape\[0\]' has no size in 2\.\.∞"):
        Bound({"x.shape[0]": Range(0, 1)})(split)  # type: ignore[operator]


def test_an_axis_that_is_an_expression_of_another_is_bounded_by_a_condition():
    def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]) + y

    program = fxbucket.capture(halves, torch.randn(6), torch.randn(12), dynamic=["x.shape[0]", "y.shape[0]"])
    whole = program.capture.axis("y.shape[0]")
    assert whole.symbol is None
    found = bounds_of(program.capture, {"y.shape[0]": Range(40, 80, multiple_of=8)})
    (symbol,) = symbols_in(whole.expression)
    assert found.ranges == {}
    assert found.hints == {symbol: 28}
    for half, inside in ((20, True), (22, False), (24, True), (40, True), (44, False), (16, False)):
        assert found.holds({symbol: half}) is inside
    split = Pipeline([Split(), Discover(), Bound({"y.shape[0]": Range(40, 80, multiple_of=8)}), Verify()])(program)
    assert split.hints[symbol] == 28


@given(st.integers(2, 60), st.integers(0, 60), st.integers(1, 9))
def test_bounds_hold_for_exactly_the_members_of_the_range(captured: Program, start: int, length: int, multiple_of: int):
    try:
        wanted = Range(start, start + length, multiple_of)
    except OptionError:
        return
    symbol = captured.capture.axis("k").symbol
    assert symbol is not None
    bounds = bounds_of(captured.capture, {"k": wanted})
    for size in range(2, 130):
        assert bounds.holds({symbol: size}) is (size in wanted)
    assert bounds.hints[symbol] in wanted


def test_one_axis_with_a_size_and_a_range_must_agree():
    program = fxbucket.capture(lambda x, y: x + y, torch.randn(6), torch.randn(6), dynamic=["x.shape[0]", "y.shape[0]"])
    binding, bounds = settled(program.capture, Bucket.of({"x.shape[0]": 8, "y.shape[0]": Range(4, 16)}))
    assert list(binding.values()) == [8]
    assert bounds.ranges == {}
    refused = decide(program.capture, Bucket.of({"x.shape[0]": 32, "y.shape[0]": Range(4, 16)}))
    assert "asks for one size that is 32 and in 4..16" in refused.reason


def test_running_it_twice_gives_equal_programs_and_changes_nothing(split: Program):
    before = str(split)
    assert Bound(WIDE)(split) == Bound(WIDE)(split)  # type: ignore[operator]
    assert Bound(WIDE)(split) != Bound({"x.shape[0]": Range(16, 128)})(split)  # type: ignore[operator]
    assert str(split) == before


def test_what_it_cannot_do_is_an_error_that_says_why(captured: Program, split: Program):
    with pytest.raises(PreconditionError, match="run Split first"):
        Bound(WIDE)(captured)  # type: ignore[operator]
    with pytest.raises(PreconditionError, match=r"is for x\.shape\[0\]=16\.\.128 by 16 already"):
        Bound(WIDE)(Bound(WIDE)(split))  # type: ignore[operator]
    with pytest.raises(AxisError, match="not an axis of this capture"):
        Bound({"rows": Range(2, 4)})(split)  # type: ignore[operator]
    with pytest.raises(SizeError, match="breaks a guard"):
        # Rows come in pairs.
        Bound({"x.shape[0]": 7, "k": Range(2, 8)})(split)  # type: ignore[operator]


def test_it_prints_what_it_bounds(split: Program):
    program = Bound(WIDE)(split)  # type: ignore[operator]
    assert str(program.trail[-1]).startswith("Bound(x.shape[0]=16..128 by 16)")
    assert "kept symbolic in 16..128 by 16" in str(program.trail[-1])
    assert "axis x.shape[0] in 16..128 by 16" in str(program)
    assert {axis["name"]: axis["range"] for axis in program_data(program)["axes"]}["x.shape[0]"] == "16..128 by 16"


def test_a_pinned_program_has_no_bounds(split: Program):
    program = Concretize({"x.shape[0]": 16}, remaining="keep")(split)  # type: ignore[operator]
    assert (program.bounds, program.assumed) == ({}, ())


def test_the_pieces_run_at_sizes_of_the_range(split: Program, block: Any, run: Any):
    program = Bound(WIDE)(split)  # type: ignore[operator]
    assert isinstance(rows_of(program), SYMBOLIC_TYPES)
    x, y = torch.randn(48, 4), torch.randn(3, 6)
    for one, other in zip(run(program, block, x=x, y=y, n=5), block(x, y, 5), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    assert fake_mode_of([rows_of(program)]) is None
    assert isinstance(rows_of(program).node.expr, sympy.Symbol)
