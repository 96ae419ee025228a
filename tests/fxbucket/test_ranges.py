"""Ranges at run time: which bucket serves a call, what reaches the compiler, what is said of overlaps and holes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxbucket
from fxbucket import Range
from fxbucket.options import Options
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.errors import OptionError, SizeError
from tests.equality import assert_equals_eager

ROWS = "x.shape[0]"


def scaled(x: torch.Tensor, n: int = 3) -> tuple[torch.Tensor, int]:
    """Gives sizes back, so that a call served by another size's bucket cannot go unnoticed."""
    rows, columns = x.shape
    return x.reshape(rows * columns).cumsum(0) * n, rows * 100 + columns


def test_pinned_sizes_come_first_then_the_first_range_that_holds_the_size(compiler: Any):
    ranges = {"rows": [(1, 15), Range(16, 64, multiple_of=16), (20, 100)]}
    compiled = fxbucket.compile(scaled, axes={"rows": ROWS}, sizes={"rows": [8]}, ranges=ranges, compiler=compiler)
    for rows in (8, 3, 15, 16, 48, 50, 64, 100, 101, 17):
        x = torch.randn(rows, 2)
        assert_equals_eager(compiled, scaled, (x,), (x.clone(),))
    assert compiled.explain().calls() == {
        "rows=8": 1, "rows=1..15": 2, "rows=16..64 by 16": 3, "rows=20..100": 2, "dynamic": 2,
    }  # fmt: skip
    assert compiled.explain().graphs[0].misses == {"rows=101": 1, "rows=17": 1}
    assert compiler.count == 5


def test_the_bounds_reach_the_compiler(compiler: Any):
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 4).sum(1)

    compiled = fxbucket.compile(
        asks, ranges={ROWS: [Range(64, 4096, multiple_of=64, hint=256)]}, compiler=compiler, splitting_ops=[]
    )
    x = torch.randn(128)
    assert torch.equal(compiled(x), asks(x))
    ((_, inputs),) = compiler.given
    rows = next(value if isinstance(value, torch.SymInt) else value.shape[0] for value in inputs)
    assert rows.node.hint == 256
    bounds = rows.node.shape_env.var_to_range[rows.node.expr]
    assert (bounds.lower, bounds.upper) == (64, 4096)
    assert compiled.explain().graphs[0].buckets[0].conditions == ()


def test_a_condition_of_the_compiler_binds_the_artifact_of_a_range():
    def halves(x: torch.Tensor) -> torch.Tensor:
        # Even and odd sizes are two programs to the compiler, which sees one hint.
        return torch.stack([part.sum() for part in torch.tensor_split(x, 2)])

    compiled = fxbucket.compile(halves, ranges={ROWS: [Range(256, 511, hint=300)]}, compiler="aot_eager")
    for rows in (300, 301, 256, 511, 512, 300):
        x = torch.randn(rows)
        assert_equals_eager(compiled, halves, (x,), (x.clone(),), tolerance=1e-5)
    calls = compiled.explain().calls()
    assert calls["x.shape[0]=256..511"] >= 3
    assert sum(calls.values()) == 6


def test_rectangles_over_two_axes(compiler: Any):
    ranges = [{"b": (2, 4), "t": (2, 8)}, {"b": 6, "t": Range(2, 64, multiple_of=8)}, {"t": (40, 50)}]
    compiled = fxbucket.compile(
        scaled, axes={"b": ROWS, "t": "x.shape[1]"}, sizes=[{"b": 3, "t": 5}], ranges=ranges, compiler=compiler
    )
    for b, t in ((3, 5), (3, 6), (6, 16), (6, 17), (9, 45), (6, 48), (6, 44)):
        x = torch.randn(b, t)
        assert_equals_eager(compiled, scaled, (x,), (x.clone(),))
    assert compiled.explain().calls() == {
        "b=3, t=5": 1, "b=2..4, t=2..8": 1, "b=6, t=2..64 by 8": 2, "t=40..50": 2, "dynamic": 1,
    }  # fmt: skip


def test_sizes_that_are_captured_on_their_own_are_served_by_their_range(compiler: Any):
    compiled = fxbucket.compile(scaled, ranges={ROWS: [(0, 7)]}, compiler=compiler)
    for rows in (1, 0, 5, 1):
        x = torch.randn(rows, 2)
        assert_equals_eager(compiled, scaled, (x,), (x.clone(),))
    assert compiled.explain().calls() == {"x.shape[0]=0..7": 4}


def test_explain_tells_of_overlaps_holes_and_sizes_seen():
    ranges = {"rows": [(2, 10), (8, 20), (30, 40)]}
    compiled = fxbucket.compile(scaled, axes={"rows": ROWS}, sizes={"rows": [4]}, ranges=ranges, compiler="eager")
    for rows in (4, 9, 9, 25, 33):
        compiled(torch.randn(rows, 2))
    (graph,) = compiled.explain().graphs
    assert graph.coverage == (
        "rows=2..10 and rows=8..20 overlap in rows=8..10; the first serves it", "no bucket serves rows=21..29",
    )  # fmt: skip
    assert graph.sizes_seen["rows"] == {4: 1, 9: 2, 25: 1, 33: 1}
    assert graph.suggested["rows"].sizes == (4, 9, 25, 33)
    text = str(compiled.explain())
    assert "no bucket serves rows=21..29" in text
    assert "4, 9, 25, 33" in text


def test_a_range_is_compiled_lazily_and_in_the_background_too(compiler: Any):
    compiled = fxbucket.compile(scaled, ranges={ROWS: [(2, 9), (10, 19)]}, compiler=compiler, compile_when="lazily")
    x = torch.randn(4, 2)
    compiled(x)
    assert compiler.count == 1
    torch.compiler.reset()
    behind = fxbucket.compile(scaled, ranges={ROWS: [(2, 9)]}, compiler="eager", compile_when="background")
    assert_equals_eager(behind, scaled, (x,), (x.clone(),))
    assert behind.wait(30)
    assert_equals_eager(behind, scaled, (x,), (x.clone(),))
    assert behind.explain().calls()["x.shape[0]=2..9"] == 1


def test_a_saved_model_keeps_its_ranges(tmp_path: Path):
    model = torch.nn.Linear(4, 4)
    given = {"ranges": {"input.shape[0]": [Range(4, 32, multiple_of=4), (33, 64)]}, "sizes": {"input.shape[0]": [6]}}
    compiled = fxbucket.compile(model, **given)
    with torch.no_grad():
        compiled(torch.randn(8, 4))
        compiled.save(tmp_path / "model")
        torch.compiler.reset()
        loaded = fxbucket.load(tmp_path / "model", model)
        for rows in (6, 8, 28, 40):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(loaded(x), model(x))
    assert loaded.explain().calls() == {
        "input.shape[0]=6": 1, "input.shape[0]=4..32 by 4": 2, "input.shape[0]=33..64": 1,
    }  # fmt: skip


ends = st.tuples(st.integers(2, 12), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(st.integers(2, 12), max_size=2, unique=True),
    st.lists(st.one_of(ends, ends.map(lambda pair: Range(0, pair[1], multiple_of=3))), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(2, 22), min_size=1, max_size=5),
)
def test_the_bucket_that_serves_is_the_one_that_a_plain_specification_picks(
    pinned: list[int], ranges: list[Any], calls: list[int]
):
    torch.compiler.reset()
    sizes = {ROWS: pinned} if pinned else {}
    compiled = fxbucket.compile(scaled, sizes=sizes, ranges={ROWS: ranges}, compiler="eager", compile_when="lazily")
    expected: dict[str, int] = {}
    for rows in calls:
        held = [bounds if isinstance(bounds, Range) else Range(*bounds) for bounds in ranges]
        served = str(rows) if rows in pinned else next((str(bounds) for bounds in held if rows in bounds), "")
        bucket = f"{ROWS}={served}" if served else "dynamic"
        expected[bucket] = expected.get(bucket, 0) + 1
        x = torch.randn(rows, 2)
        assert_equals_eager(compiled, scaled, (x,), (x.clone(),))
    assert {bucket: number for bucket, number in compiled.explain().calls().items() if number} == expected


def test_ranges_cross_axes_or_list_rectangles():
    options = Options(sizes={ROWS: [4]}, ranges={ROWS: [(1, 3), Range(8, 64, 8)], "n": [(1, 9)]})
    assert options.buckets == (
        Bucket.of({ROWS: 4}), Bucket.of({ROWS: Range(1, 3), "n": Range(1, 9)}),
        Bucket.of({ROWS: Range(8, 64, 8), "n": Range(1, 9)}),
    )  # fmt: skip
    assert Options(ranges=[{ROWS: (1, 3), "n": 2}]).buckets == (Bucket.of({ROWS: Range(1, 3), "n": 2}),)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({ROWS: [1, 255]}, r"\[1, 255\] are two ints; write \[\(1, 255\)\]"),
        ({ROWS: (1, 255)}, r"\(1, 255\) are two ints; write \[\(1, 255\)\]"),
        ({ROWS: [(1, 2, 3)]}, "give .start, end., both inclusive"),
        ({ROWS: []}, "the list is empty"),
        ({ROWS: Range(1, 2)}, r"is not a list; write \[Range"),
        ({ROWS: [(9, 1)]}, r"Range\(9, 1\) is empty"),
        ({ROWS: [(1, 4), (1, 4)]}, r"x.shape\[0\]=1\.\.4 is listed twice"),
        ([{ROWS: 4}], "has sizes alone; list it under sizes"),
        ([{}], "is not a rectangle"),
        ("seen", "give {axis: .*} or a list"),
        ({ROWS: ["4"]}, "'4' is not a range"),
    ],
)
def test_a_wrong_range_is_an_error_at_once(ranges: Any, said: str):
    with pytest.raises(OptionError, match=said):
        fxbucket.compile(scaled, ranges=ranges)


def test_a_range_of_a_tensor_begins_at_zero():
    with pytest.raises(SizeError, match=r"size -9\.\.-1 .* is negative"):
        fxbucket.compile(scaled, ranges={ROWS: [(-9, -1)]})


def test_a_miss_is_an_error_where_that_was_asked_for():
    compiled = fxbucket.compile(scaled, ranges={ROWS: [(2, 9)]}, on_miss="error", compiler="eager")
    compiled(torch.randn(4, 2))
    with pytest.raises(fxbucket.FxbucketError, match=r"no bucket serves x.shape\[0\]=10 .* x.shape\[0\]=2\.\.9"):
        compiled(torch.randn(10, 2))


def test_a_function_may_decide_what_serves_a_miss():
    asked: list[dict[str, int]] = []

    def on_miss(sizes: dict[str, int]) -> str:
        asked.append(dict(sizes))
        return (
            "eager" if sizes["rows"] < 6 else "dynamic" if sizes["rows"] < 9 else "error" if sizes["rows"] < 20 else "what"
        )

    compiled = fxbucket.compile(scaled, axes={"rows": ROWS}, sizes={"rows": [4]}, on_miss=on_miss, compiler="eager")
    for rows in (4, 5, 8):
        compiled(torch.randn(rows, 2))
    assert compiled.explain().calls() == {"rows=4": 1, "dynamic": 1}
    assert compiled.explain().graphs[0].eager_calls == 1
    assert [sizes["rows"] for sizes in asked] == [5, 8]
    with pytest.raises(fxbucket.FxbucketError, match="no bucket serves rows=9"):
        compiled(torch.randn(9, 2))
    with pytest.raises(OptionError, match=r"answer of on_miss.*'what' is not possible"):
        compiled(torch.randn(30, 2))


@pytest.mark.gpu
def test_a_range_answers_whether_indexes_of_32_bits_will_do():
    model = torch.nn.Sequential(torch.nn.RMSNorm(64), torch.nn.Linear(64, 64)).cuda()
    compiled = fxbucket.compile(model, ranges={"input.shape[0]": [Range(64, 1024, multiple_of=64)]})
    with torch.no_grad():
        for rows in (64, 1024, 65, 63):
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    bounded, dynamic = compiled.explain().graphs[0].buckets
    assert (bounded.calls, dynamic.calls) == (2, 2)
    assert bounded.conditions == ()
    assert any("2147483647" in condition for condition in dynamic.conditions)
