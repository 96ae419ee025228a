"""Tables and plots of a report: every call is counted once, and a heat map's colours are in the order of its numbers."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.profile import CallRecord
from fxbucket.visualize.charts import HEAT_LEVELS, call_plot, heat_map, seconds_text, time_map

SECONDS = st.floats(min_value=0, max_value=1e4, allow_nan=False)
CALLS = st.lists(
    st.builds(
        CallRecord, start=SECONDS, graph=st.just(0), bucket=st.sampled_from(["n=1", "n=2", "dynamic"]), seconds=SECONDS
    ),
    min_size=1,
    max_size=200,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (1e-7, "0.10 µs"), (12.34e-6, "12.3 µs"), (999.6e-6, "1000 µs"), (1e-3, "1.00 ms"), (0.25, "250 ms"),
        (9.996, "10.0 s"), (63.2, "63.2 s"), (1234.0, "1234 s"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_a_unit(seconds: float, text: str):
    assert seconds_text(seconds) == text


@given(CALLS)
def test_every_call_is_in_one_bar_of_its_bucket(calls: list[CallRecord]):
    plot = call_plot(calls, ["n=2", "n=1"])
    assert plot is not None
    counts = Counter(call.bucket for call in calls)
    order = {"n=2": 0, "n=1": 1, "dynamic": 2}
    assert [lane.label for lane in plot.lanes] == sorted(counts, key=order.__getitem__)
    for lane in plot.lanes:
        numbers = [int(re.findall(r": (\d+) calls? from ", bar.text)[0]) for bar in lane.bars]
        assert sum(numbers) == counts[lane.label] == int(lane.numbers[0])
        for bar, number in zip(lane.bars, numbers, strict=True):
            assert bar.height == pytest.approx(number / plot.most * plot.height, abs=0.01)
            assert bar.x >= 0
            assert bar.x + bar.width <= plot.width + 0.1
    assert max(bar.height for lane in plot.lanes for bar in lane.bars) == pytest.approx(plot.height)
    assert [x for x, _ in plot.ticks] == sorted(x for x, _ in plot.ticks)
    assert 0 <= plot.ticks[0][0] <= plot.ticks[-1][0] <= plot.width + 0.1
    assert len(plot.ticks) <= 8


def test_no_call_gives_no_plot():
    assert call_plot([], ["n=1"]) is None
    assert time_map([], ["n=1"], ["piece_0"]) is None


@given(st.dictionaries(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), SECONDS, min_size=1))
def test_a_larger_number_never_has_a_lighter_colour(values: dict[tuple[str, str], float]):
    found = heat_map(values, "abcd", "xyz")
    cells = {
        (row, column): cell
        for row, held in found.rows
        for column, cell in zip(found.columns, held, strict=True)
    }  # fmt: skip
    levels = [cells[place].level for place in sorted(values, key=values.__getitem__)]
    assert levels == sorted(levels)
    assert set(levels) <= set(range(HEAT_LEVELS))
    assert all(cell.level == -1 and cell.text == "" for place, cell in cells.items() if place not in values)
    if max(values.values()) > min(values.values()):
        assert (levels[0], levels[-1]) == (0, HEAT_LEVELS - 1)


def test_a_cell_is_the_median_of_a_pieces_times():
    calls = [CallRecord(at, 0, "n=1", 1.0, {"piece_0": seconds}) for at, seconds in enumerate((0.1, 0.3, 9.0))]
    found = time_map([*calls, CallRecord(3, 0, "as captured", 1.0)], ["n=1", "n=2"], ["piece_0", "piece_1"])
    assert found is not None
    assert found.columns == ("n=1",)
    assert [(name, cells[0].text) for name, cells in found.rows] == [("piece_0", "300 ms"), ("piece_1", "")]


def test_what_was_not_compiled_says_what_it_is():
    values = {("piece_0", "n=1"): 2.0, ("piece_1", "n=1"): 0.5}
    texts = {("piece_1", "n=1"): "loaded", ("piece_2", "n=1"): "as it is"}
    found = heat_map(values, ["piece_0", "piece_1", "piece_2"], ["n=1"], texts)
    assert [cells[0].text for _, cells in found.rows] == ["2.00 s", "loaded 500 ms", "as it is"]
    assert [cells[0].level for _, cells in found.rows] == [HEAT_LEVELS - 1, 0, -1]
    assert (found.least, found.most) == ("500 ms", "2.00 s")
