"""Suggested sizes as SVG: every pinned size is shown, padding covers its share of the plane, and texts survive."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fxbucket import suggest_sizes
from fxbucket.passes.errors import DrawingError, OptionError
from fxbucket.suggest import Suggestion
from fxbucket.visualize import save_suggestion, suggestion_svg
from fxbucket.visualize.suggested import SizeAxis, apart, bars, listed

SVG = "{http://www.w3.org/2000/svg}"
HISTOGRAMS = st.dictionaries(
    st.integers(0, 5000), st.one_of(st.integers(1, 999), st.floats(0.001, 999)), min_size=1, max_size=60
)


@pytest.fixture(scope="module")
def suggestion() -> Suggestion:
    return suggest_sizes({3: 20, 40: 7, 64: 30, 100: 1, 4096: 2}, budget=3)


def read(text: str) -> ET.Element:
    return ET.fromstring(text.encode())


def texts_of(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def group(root: ET.Element, kind: str) -> ET.Element:
    (found,) = (each for each in root.iter() if each.get("class") == kind)
    return found


def numbers(element: ET.Element, *names: str) -> list[float]:
    return [float(element.get(name, "nan")) for name in names]


def area(points: Sequence[tuple[float, float]]) -> float:
    pairs = itertools.pairwise([*points, points[0]])
    return abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairs)) / 2


def points_of(path: ET.Element) -> list[tuple[float, float]]:
    found = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
    return list(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_well_formed_and_says_what_it_shows(suggestion: Suggestion, theme: Any):
    text = suggestion_svg(suggestion, theme=theme)
    root = read(text)
    headline = root.findtext(f"{SVG}title")
    assert headline == str(suggestion).splitlines()[0]
    texts = texts_of(root)
    assert texts[0] == headline
    assert {"suggested", "powers of two", "linear", "padding", "calls", "size of a call, on a logarithmic scale"} <= set(
        texts
    )
    for ladder in (suggestion, *suggestion.ladders):
        assert f"{ladder.waste_share:.1%}" in texts
        assert ", ".join(map(str, ladder.sizes)) in texts
    assert "nan" not in text
    assert "inf" not in text


@given(HISTOGRAMS, st.integers(1, 70), st.sampled_from([1, 16]))
@example({0: 1}, 8, 1)
@example({4096: 3}, 8, 1)
@example({1: 1, 2: 0.25}, 1, 1)
@example({10**9: 1, 1: 1}, 2, 1)
def test_every_pinned_size_and_every_call_is_shown(histogram: dict[int, float], budget: int, multiple_of: int):
    found = suggest_sizes(histogram, budget, multiple_of=multiple_of)
    root = read(suggestion_svg(found))
    width, height = numbers(root, "width", "height")
    body = texts_of(root)
    assert {str(size) for size in found.sizes} <= set(body)
    lines = group(root, "pinned").findall(f"{SVG}path")
    assert [int((line.findtext(f"{SVG}title") or "").partition(":")[0]) for line in lines] == list(found.sizes)
    places = [points_of(line)[-1][0] for line in lines]
    assert places == sorted(places)
    drawn = bars(found.histogram, SizeAxis.of(found.histogram, found.sizes[-1]))
    assert sum(calls for _, _, calls in drawn) == pytest.approx(sum(histogram.values()))
    assert len(group(root, "bars")) == len(drawn)
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("x") is not None:
            x, y, wide, high = numbers(rect, "x", "y", "width", "height")
            assert min(x, y, wide, high) >= 0
            assert x + wide <= width
            assert y + high <= height


@given(HISTOGRAMS, st.integers(1, 8))
def test_the_hatched_area_is_the_share_of_padding(histogram: dict[int, float], budget: int):
    found = suggest_sizes(histogram, budget)
    root = read(suggestion_svg(found))
    all_rows = sum(wide * high for wide, high in (numbers(r, "width", "height") for r in group(root, "padding")))
    own_rows = area(points_of(group(root, "rows")))
    if max(histogram) > 0:
        # Numbers are written with two digits behind the point, and calls too few to be seen are drawn as the next.
        assert (all_rows - own_rows) / all_rows == pytest.approx(found.waste_share, abs=0.02)


def test_tooltips_say_what_each_bar_and_each_size_holds(suggestion: Suggestion):
    root = read(suggestion_svg(suggestion))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert "64: 57 calls, 1,388 rows of padding" in titles
    assert "size 3: 20 calls" in titles
    assert any(re.fullmatch(r"size \d+ to 4096: 2 calls", title or "") for title in titles)


@pytest.mark.parametrize("name", ["<b>&amp;</b>", 'a"b]]>', "\x00\x1b", "ü😀"])
def test_any_name_of_a_ladder_comes_out_as_it_went_in(suggestion: Suggestion, name: str):
    odd = replace(suggestion, ladders=(replace(suggestion.ladders[0], name=name),))
    assert re.sub("[\x00-\x1f]", "\ufffd", name) in texts_of(read(suggestion_svg(odd)))


def test_the_same_suggestion_gives_the_same_bytes(suggestion: Suggestion, tmp_path: Path):
    turned = suggest_sizes(dict(reversed(suggestion.histogram.items())), budget=3)
    assert suggestion_svg(turned) == suggestion_svg(suggestion)
    save_suggestion(suggestion, tmp_path / "ladder.svg", theme="dark")
    assert (tmp_path / "ladder.svg").read_text(encoding="utf-8") == suggestion_svg(suggestion, theme="dark")


def test_thousands_of_sizes_make_a_small_file():
    found = suggest_sizes({size: 1 + size % 7 for size in range(1, 5000)}, budget=8)
    assert len(suggestion_svg(found)) < 200_000


def test_what_cannot_be_drawn_is_an_error(suggestion: Suggestion, tmp_path: Path):
    with pytest.raises(OptionError, match=r"a list holds no sizes; give what fxbucket.suggest_sizes returns"):
        suggestion_svg([1, 2])
    with pytest.raises(OptionError, match="theme 'drak' is unknown"):
        suggestion_svg(suggestion, theme="drak")  # type: ignore[arg-type]
    with pytest.raises(DrawingError, match="cannot be written"):
        save_suggestion(suggestion, tmp_path / "none" / "ladder.svg")


@pytest.mark.parametrize(
    ("histogram", "largest", "is_logarithmic"),
    [
        ({1: 5, 2: 5, 900: 1}, 900, True),
        ({0: 5, 1: 5, 900: 1}, 900, False),
        ({400: 5, 900: 1}, 900, False),
        ({1: 1}, 1, False),
    ],
)
def test_a_long_tail_has_a_logarithmic_axis(histogram: Mapping[int, float], largest: int, is_logarithmic: bool):
    axis = SizeAxis.of(histogram, largest)
    assert axis.is_logarithmic is is_logarithmic
    assert (axis.place(axis.low), axis.place(axis.high)) == (0.0, 1.0)
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks(10))
    assert len(axis.ticks(10)) <= 11
    bins = axis.bins()
    assert [first for first, _ in bins[1:]] == [last + 1 for _, last in bins[:-1]]
    assert all(first <= last for first, last in bins)
    assert bins[-1][1] == largest


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20).map(sorted), st.floats(0.1, 20))
def test_labels_keep_their_distance_and_stay_inside(places: list[float], gap: float):
    found = apart(places, gap, 100.0)
    kept = min(gap, 100.0 / max(len(places) - 1, 1))
    assert all(after - before >= kept - 1e-9 for before, after in itertools.pairwise(found))
    assert found[0] >= -1e-9
    assert found[-1] <= 100.0 + 1e-9
    if all(after - before >= gap for before, after in itertools.pairwise(places)):
        assert found == pytest.approx(places)


def test_a_long_list_loses_its_middle():
    assert listed([1, 2, 3], 10) == "1, 2, 3"
    assert listed(range(100, 200), 24) == "100, 101, 102, …, 199"
    assert listed([10**9, 10**10], 5) == "1000000000, …, 10000000000"
