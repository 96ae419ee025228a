"""Suggested sizes as SVG: the calls by size with the sizes that are pinned, what is wasted, and other ladders beside it."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from fxbucket.visualize.labels import printable, shorten
from fxbucket.visualize.suggested import (
    LadderFacts,
    SizeAxis,
    SuggestionFacts,
    apart,
    bars,
    count_text,
    listed,
    shares,
    suggestion_facts,
    ticks,
)
from fxbucket.visualize.svg import write_text
from fxbucket.visualize.theme import FONTS, Theme, ThemeName, theme_named

_WIDTH = 780
_LEFT, _RIGHT = 70, 760
_ACROSS = _RIGHT - _LEFT

# From top to bottom: the title, the sizes that are pinned, bars, the staircase, the table.
_LABELS = 58
_BARS_TOP, _BARS_BASE = 84, 214
_STAIRS_TOP, _STAIRS_BASE = 300, 480
_TABLE = 544
_ROW = 22

_LABEL_GAP = 36
_DIGIT = 6.8
"""How wide a digit of a label is, in pixels."""
_THINNEST = 0.25
"""Of what can be told apart, in pixels."""


def save_suggestion(subject: object, path: str | os.PathLike[str], *, theme: ThemeName = "light") -> None:
    """Draw suggested sizes into an SVG file.

    Above are the calls by size, with a line at each size that is pinned. Below are the calls from the smallest to the
    largest, each as high as its size, and the pinned size that serves it; the hatched area between is the padding. The table
    compares the ladder with others of no more sizes.

    Args:
        subject: what ``fxbucket.suggest_sizes`` returns.
        path: the file; it is replaced.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        OptionError: the subject is no suggestion, or there is no such theme.
        DrawingError: the file cannot be written.
    """
    write_text(path, suggestion_svg(subject, theme=theme))


def suggestion_svg(subject: object, *, theme: ThemeName = "light") -> str:
    """Return the drawing of suggested sizes as SVG text; the options are those of :func:`save_suggestion`."""
    suggestion = suggestion_facts(subject)
    return _Drawing(suggestion, theme_named(theme)).text()


class _Drawing:
    """One drawing, while it is made."""

    def __init__(self, suggestion: SuggestionFacts, theme: Theme) -> None:
        self._suggestion = suggestion
        self._theme = theme
        self._calls = theme.boxes["input"]
        self._pinned = theme.boxes["boundary"]
        self._ladders = (suggestion, *suggestion.ladders)
        self._label = _DIGIT * len(str(suggestion.sizes[-1]))
        self._is_upright = len(suggestion.sizes) * max(_LABEL_GAP, self._label + 6) > _ACROSS
        down = max(self._label - 24, 0) if self._is_upright else 0
        height = _number(_TABLE + _ROW * len(self._ladders) + 18 + down)
        self._root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg", "width": str(_WIDTH), "height": height,
                "viewBox": f"0 0 {_WIDTH} {height}", "role": "img", "font-family": FONTS, "font-size": "11",
                "style": f"background: {theme.background}",
            },
        )  # fmt: skip
        self._title = self._add(self._root, "title")
        self._add(self._root, "rect", width="100%", height="100%", fill=theme.background)
        self._hatching()
        self._head = self._add(self._root, "g")
        # Sizes that are written upright need more room below the title.
        self._body = self._add(self._root, "g", transform=f"translate(0 {_number(down)})")

    def text(self) -> str:
        suggestion = self._suggestion
        num_sizes, num_calls = len(suggestion.sizes), sum(step.calls for step in suggestion.steps)
        headline = (
            f"{num_sizes} {_plural('size', num_sizes)} for {count_text(num_calls)} {_plural('call', num_calls)}: "
            f"{suggestion.waste_share:.1%} of all rows are padding"
        )
        self._title.text = headline
        self._write(_LEFT, 26, headline, size=15, weight="bold", parent=self._head)
        axis = SizeAxis.of(suggestion.histogram, suggestion.sizes[-1])
        self._bars(axis)
        self._lines(axis)
        self._stairs()
        self._table()
        ET.indent(self._root, " ")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(self._root, encoding="unicode")}\n'

    def _bars(self, axis: SizeAxis) -> None:
        found = bars(self._suggestion.histogram, axis)
        most = max(calls for _, _, calls in found)
        is_whole = all(calls == int(calls) for _, _, calls in found)
        self._axes(_BARS_TOP, _BARS_BASE, [(tick / most, count_text(tick)) for tick in ticks(most, 4, is_whole)])
        group = self._add(self._body, "g", fill=self._calls.border, class_="bars")
        for first, last, calls in found:
            start, end = (_LEFT + _ACROSS * axis.place(value) for value in (first - 0.5, last + 0.5))
            high = (_BARS_BASE - _BARS_TOP) * calls / most
            # A gap between bars, where they are wide enough to have one.
            width = max(end - start - min(1.0, (end - start) / 4), _THINNEST)
            bar = self._add(group, "rect", x=start, y=_BARS_BASE - high, width=width, height=high)
            sizes = str(first) if first == last else f"{first} to {last}"
            self._add(bar, "title").text = f"size {sizes}: {count_text(calls)} {_plural('call', calls)}"
        for tick in axis.ticks(10):
            self._write(
                _LEFT + _ACROSS * axis.place(tick), _BARS_BASE + 15, f"{tick:.0f}", anchor="middle", fill=self._theme.faint
            )
        note = ", on a logarithmic scale" if axis.is_logarithmic else ""
        self._write(_LEFT + _ACROSS / 2, _BARS_BASE + 32, f"size of a call{note}", anchor="middle")
        self._write_up((_BARS_TOP + _BARS_BASE) / 2, "calls")

    def _lines(self, axis: SizeAxis) -> None:
        """Draw a line behind the last size that each pinned one serves, and write the pinned size above it."""
        steps = self._suggestion.steps
        places = [_ACROSS * axis.place(step.size + 0.5) for step in steps]
        gap = 11.0 if self._is_upright else max(_LABEL_GAP, self._label + 6)
        most = _ACROSS + (12 if self._is_upright else 18 - self._label / 2)
        group = self._add(
            self._body, "g", stroke=self._pinned.border, stroke_width=1 if len(steps) <= 64 else 0.4, fill="none",
            class_="pinned",
        )  # fmt: skip
        font_size = min(11.0, _ACROSS / len(steps)) if self._is_upright else 11.0
        for step, place, label in zip(steps, places, apart(places, gap, most), strict=True):
            line = self._add(group, "path", d=_path([
                (_LEFT + label, _LABELS + 4), (_LEFT + place, _BARS_TOP - 6), (_LEFT + place, _BARS_BASE),
            ]))  # fmt: skip
            self._add(line, "title").text = (
                f"{step.size}: {count_text(step.calls)} {_plural('call', step.calls)}, {count_text(step.waste)} "
                f"{_plural('row', step.waste)} of padding"
            )
            x, y = _LEFT + label, float(_LABELS)
            text = self._write(
                x, y, str(step.size), size=font_size, weight="bold", anchor="start" if self._is_upright else "middle",
                fill=self._pinned.border,
            )  # fmt: skip
            if self._is_upright:
                text.attrib.update(dy="0.35em", transform=f"rotate(-90 {_number(x)} {_number(y)})")

    def _stairs(self) -> None:
        suggestion = self._suggestion
        largest = max(suggestion.sizes[-1], 1)
        height = _STAIRS_BASE - _STAIRS_TOP
        self._axes(_STAIRS_TOP, _STAIRS_BASE, [(tick / largest, f"{tick:.0f}") for tick in ticks(largest, 5)])
        group = self._add(self._body, "g", fill="url(#padding)", stroke=self._pinned.border, class_="padding")
        served = [(step.size, step.calls) for step in suggestion.steps]
        for step, (size, start, end) in zip(suggestion.steps, shares(served), strict=True):
            if end > start:
                high = height * size / largest
                rect = self._add(
                    group,
                    "rect",
                    x=_LEFT + _ACROSS * start,
                    y=_STAIRS_BASE - high,
                    width=_ACROSS * (end - start),
                    height=high,
                )
                self._add(rect, "title").text = f"{size}: {count_text(step.waste)} {_plural('row', step.waste)} of padding"
        self._add(
            self._body, "path", d=_path(self._curve(height / largest)), fill=self._calls.fill, stroke=self._calls.border,
            class_="rows", pointer_events="none",
        )  # fmt: skip
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            self._write(_LEFT + _ACROSS * share, _STAIRS_BASE + 15, f"{share:.0%}", anchor="middle", fill=self._theme.faint)
        self._write(_LEFT + _ACROSS / 2, _STAIRS_BASE + 32, "calls, from the smallest to the largest", anchor="middle")
        self._write_up((_STAIRS_TOP + _STAIRS_BASE) / 2, "rows of a call")
        x, y = _LEFT, _STAIRS_TOP - 22
        for fill, border, what in (
            (self._calls.fill, self._calls.border, "rows of the calls"), ("url(#padding)", self._pinned.border, "padding"),
        ):  # fmt: skip
            self._add(self._body, "rect", x=x, y=y, width=14, height=10, fill=fill, stroke=border)
            self._write(x + 20, y + 9, what)
            x += 130

    def _curve(self, scale: float) -> Iterator[tuple[float, float]]:
        """Yield the outline of the calls' own rows; calls too few to be seen are drawn with those after them."""
        yield _LEFT, _STAIRS_BASE
        drawn = 0.0
        pairs = sorted(self._suggestion.histogram.items())
        for number, (size, _, end) in enumerate(shares(pairs), 1):
            if _ACROSS * (end - drawn) >= _THINNEST or number == len(pairs):
                yield _LEFT + _ACROSS * drawn, _STAIRS_BASE - size * scale
                yield _LEFT + _ACROSS * end, _STAIRS_BASE - size * scale
                drawn = end
        yield _RIGHT, _STAIRS_BASE
        yield _LEFT, _STAIRS_BASE

    def _table(self) -> None:
        heads = ("ladder", "rows of padding", "of all rows", "sizes")
        for x, head, anchor in zip((_LEFT, 270, 340, 480), heads, ("start", "end", "end", "start"), strict=True):
            self._write(x, _TABLE, head, anchor=anchor, fill=self._theme.faint)
        self._add(self._body, "path", d=_path([(_LEFT, _TABLE + 6), (_RIGHT, _TABLE + 6)]), stroke=self._theme.arrow)
        most = max(ladder.waste_share for ladder in self._ladders) or 1.0
        for number, ladder in enumerate(self._ladders, 1):
            self._table_row(ladder, _TABLE + _ROW * number, ladder.waste_share / most, "bold" if number == 1 else "normal")

    def _table_row(self, ladder: LadderFacts, y: float, share: float, weight: str) -> None:
        self._write(_LEFT, y, shorten(ladder.name, 22), weight=weight)
        self._write(270, y, count_text(ladder.waste), anchor="end", weight=weight)
        self._write(340, y, f"{ladder.waste_share:.1%}", anchor="end", weight=weight)
        if share:
            self._add(
                self._body, "rect", x=352, y=y - 9, width=112 * share, height=10, fill="url(#padding)",
                stroke=self._pinned.border,
            )  # fmt: skip
        sizes = self._write(480, y, listed(ladder.sizes, 46), fill=self._theme.faint)
        self._add(sizes, "title").text = ", ".join(map(str, ladder.sizes))

    def _axes(self, top: float, base: float, marks: list[tuple[float, str]]) -> None:
        """Draw an empty panel; ``marks`` are heights from 0 to 1 with what they mean."""
        for share, text in marks:
            y = base - (base - top) * share
            self._add(self._body, "path", d=_path([(_LEFT, y), (_RIGHT, y)]), stroke=self._theme.clusters["side"].border)
            self._write(_LEFT - 6, y + 4, text, anchor="end", fill=self._theme.faint)

    def _hatching(self) -> None:
        """Add the pattern of padding: it must be told apart without colour too."""
        pattern = self._add(
            self._add(self._root, "defs"), "pattern", id="padding", width=6, height=6, patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        )  # fmt: skip
        self._add(pattern, "rect", width=6, height=6, fill=self._pinned.fill)
        self._add(pattern, "rect", width=1.2, height=6, fill=self._pinned.border)

    def _write(
        self, x: float, y: float, text: str, *, size: float = 11, weight: str = "normal", anchor: str = "start",
        fill: str = "", parent: ET.Element | None = None,
    ) -> ET.Element:  # fmt: skip
        attributes: dict[str, str | float] = {"x": x, "y": y, "fill": fill or self._theme.text}
        if size != 11:
            attributes["font_size"] = size
        if weight != "normal":
            attributes["font_weight"] = weight
        if anchor != "start":
            attributes["text_anchor"] = anchor
        element = self._add(self._body if parent is None else parent, "text", **attributes)
        element.text = printable(text)
        return element

    def _write_up(self, y: float, text: str) -> None:
        self._write(16, y, text, anchor="middle").set("transform", f"rotate(-90 16 {_number(y)})")

    def _add(self, parent: ET.Element, tag: str, **attributes: str | float) -> ET.Element:
        """Add an element; Python's ``class_`` and ``font_size`` are SVG's ``class`` and ``font-size``."""
        named = {name.rstrip("_").replace("_", "-"): _number(value) for name, value in attributes.items()}
        return ET.SubElement(parent, tag, named)


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"


def _path(points: Iterator[tuple[float, float]] | list[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def _plural(what: str, count: float) -> str:
    return what if count == 1 else f"{what}s"
