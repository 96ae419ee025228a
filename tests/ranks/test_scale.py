"""The formula of docs/scale.md: what it says of one rank is what was measured of it, and of many what can be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.document import ROOT, write_section
from tests.benchmarks.scale import PAUSE, Figures, at_scale, slowest

seconds = st.floats(0.01, 100)
figures = st.builds(
    Figures,
    own=seconds,
    first=seconds,
    made=st.lists(seconds, min_size=1, max_size=9).map(tuple),
    load=seconds,
    size=st.integers(1, 10**9),
)


def test_by_hand():
    alone = Figures(own=2.0, first=1.0, made=(3.0, 1.0), load=0.5, size=4_000_000)
    assert alone.warm(1, 2) == 2.5
    assert alone.warm(8, 2) == 10.0
    assert alone.cold(1, 2) == 7.0
    assert alone.cold(4, 2) == (8 + 2 + 4 + 1.5) / 2 + PAUSE
    assert alone.cold(1000, 1000) == 2.0 + 1.0 + 3.0 + PAUSE, "no less than the longest compilation"
    assert alone.of(4) == Figures(4.0, 1.0, (3.0, 1.0, 3.0, 1.0), 1.0, 8_000_000)
    assert [row[0:3] for row in at_scale(alone)] == [
        ["warm, one shared folder", "3.0", "0"],
        ["cold, one shared folder", "7.5", "2"],
        ["cold, a folder on each node", "7.0", "250"],
        ["cold, no store", "7.0", "2,000"],
    ]


@given(figures, st.integers(1, 1000), st.integers(1, 128))
def test_more_cores_are_no_slower_and_a_warm_start_is_no_slower_than_what_one_rank_needs(
    alone: Figures, ranks: int, cores: int
):
    assert alone.cold(ranks, cores + 1) <= alone.cold(ranks, cores) * (1 + 1e-9)
    assert alone.warm(ranks, cores + 1) <= alone.warm(ranks, cores)
    assert alone.warm(ranks, cores) >= alone.own + alone.load
    assert alone.cold(ranks, cores) >= alone.own + max(alone.made)


def test_the_slowest_rank_of_each_run_counts():
    runs = [{"cold": [{"seconds": 3.0}, {"seconds": 1.0}]}, {"cold": [{"seconds": 2.0}, {"seconds": 2.5}]}]
    assert slowest(runs, "cold") == [2.5, 3.0]


def test_the_document_has_the_section_that_the_benchmark_writes():
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert re.findall(r"<!-- (scale): (?:written by the benchmark|end) -->", text) == ["scale", "scale"]


def test_a_document_without_marks_is_an_error(tmp_path: Path):
    path = tmp_path / "other.md"
    path.write_text("# Other\n")
    with pytest.raises(ValueError, match=r"other.md has no marks for 'scale'"):
        write_section("scale", "text", path)
