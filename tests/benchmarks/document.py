"""Writes a benchmark's section of docs/benchmarks.md: how it was made, its tables and its plots."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"


def provenance(name: str, **versions: str) -> str:
    """Return the command that makes a section, the date, the machine and the versions, as text."""
    others = "".join(f", {what} {version}" for what, version in versions.items())
    load = f"; load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    return (
        f"Made by `python -m tests.benchmarks {name} --write` on {datetime.date.today():%Y-%m-%d}: torch "
        f"{torch.__version__}{others}, Python {platform.python_version()}; {_processor()}, {os.cpu_count()} cores"
        f"{load}."
    )


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; every column but the first is aligned to the right."""
    lines = [columns, ["---", *("--:" for _ in columns[1:])], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def write_section(name: str, text: str, path: Path | None = None) -> None:
    """Put a benchmark's text between its two marks in a document, docs/benchmarks.md by default.

    Raises:
        ValueError: the document has no such marks.
    """
    document = path or DOCUMENT
    before = document.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: written by the benchmark -->", f"<!-- {name}: end -->"
    if begin not in before or end not in before:
        raise ValueError(f"{document} has no marks for {name!r}: put these two lines where its section goes: {begin} {end}")
    head, rest = before.split(begin, 1)
    document.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


def save_plot(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    across: str,
    scales: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Draw lines into an SVG file, one panel beside the other.

    Args:
        path: the file.
        panels: for each panel, by the title of its vertical axis, the points of each line by the line's name.
        across: what the horizontal axis shows.
        scales: for a panel, by its title, the scales of both axes, "log" or "linear"; logarithmic where it has none.
    """
    with _figure(path, len(panels)) as places:
        for place, (title, lines) in zip(places, panels.items(), strict=True):
            for marker, (name, points) in zip("osD^vPX", lines.items(), strict=False):
                every = max(len(points) // 12, 1)
                place.plot(*zip(*points, strict=True), marker=marker, markersize=5, markevery=every, label=name)
            xscale, yscale = (scales or {}).get(title, ("log", "log"))
            place.set(xlabel=across, ylabel=title, xscale=xscale, yscale=yscale)
            place.grid(which="major", alpha=0.4)
            place.legend(frameon=False)


def save_bars(path: Path, values: Mapping[str, float], bars: Mapping[str, float], along: str) -> None:
    """Draw one horizontal bar a value into an SVG file, with a mark at what it was meant to reach.

    Args:
        path: the file.
        values: what was measured, by its name.
        bars: what it was meant to reach, by the same name.
        along: what the horizontal axis shows.
    """
    with _figure(path, 1, wide=True) as (place,):
        names = list(values)
        place.barh(names, [values[name] for name in names], color="#5b7fb0", label="measured")
        for height, name in enumerate(names):
            place.text(0, height, f" {values[name]:.2f}", va="center", color="white", fontweight="bold")
            if name in bars:
                place.vlines(bars[name], height - 0.4, height + 0.4, color="#b03030", label=None if height else "bar")
        place.invert_yaxis()
        place.set(xlabel=along)
        place.margins(x=0.1)
        place.spines[["top", "right"]].set_visible(False)
        place.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def save_stacks(path: Path, stacks: Mapping[str, Mapping[str, float]], along: str) -> None:
    """Draw one horizontal bar a stack into an SVG file, made of its parts one after the other.

    Args:
        path: the file.
        stacks: the size of each part by its name, for each stack by its name; all have the same parts.
        along: what the horizontal axis shows.
    """
    with _figure(path, 1, wide=True) as (place,):
        colours = ["#b03030", "#d98c5f", "#e8c468", "#8fb573", "#4f8f6f", "#6fa8c9", "#7a9cc6", "#8a7cb8", "#b0b0b0"]
        ends = dict.fromkeys(stacks, 0.0)
        for part, colour in zip(next(iter(stacks.values())), colours, strict=False):
            sizes = [stack[part] for stack in stacks.values()]
            place.barh(list(stacks), sizes, left=list(ends.values()), color=colour, label=part)
            ends = {name: end + size for (name, end), size in zip(ends.items(), sizes, strict=True)}
        place.invert_yaxis()
        place.set(xlabel=along)
        place.spines[["top", "right"]].set_visible(False)
        place.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, fontsize=9)


@contextlib.contextmanager
def _figure(path: Path, num_panels: int, wide: bool = False) -> Iterator[Any]:
    """Give the panels of a new figure; what is drawn on them is in the file afterwards."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    # Text as text, and ids that do not change from run to run.
    style = {"svg.fonttype": "none", "svg.hashsalt": path.name, "font.family": "sans-serif", "font.size": 11}
    size = (9.0, 3.2) if wide else (5.2 * num_panels, 4)
    with mpl.rc_context(style):
        figure, places = plt.subplots(1, num_panels, figsize=size, squeeze=False, layout="constrained")
        yield places[0]
        figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")
        plt.close(figure)
