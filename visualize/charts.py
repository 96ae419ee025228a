"""Numbers of a page as tables and plots: what its template writes down."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fxbucket.visualize.explained import CallRecord, GraphFacts

HEAT_LEVELS = 9
"""Colours of a heat map, from 0 for the least."""

_MAX_BINS = 120
_LANE_WIDTH = 720.0
_LANE_HEIGHT = 34.0


@dataclass(frozen=True)
class Cell:
    """One cell of a heat map: its text, and its colour from 0 to ``HEAT_LEVELS - 1``; -1 for a cell without a number."""

    text: str
    level: int = -1


@dataclass(frozen=True)
class HeatMap:
    """Rows of cells under columns; ``rows`` holds each row's name with its cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    least: str
    most: str


@dataclass(frozen=True)
class Bar:
    """One bar of a plot, in its units, and what it says."""

    x: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class Lane:
    """The calls that one bucket served, over time; ``numbers`` holds calls and times as texts."""

    label: str
    bars: tuple[Bar, ...]
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class CallPlot:
    """Calls over time, a lane a bucket; ``ticks`` holds each tick's place and text.

    Attributes:
        width: of each lane, in units of the plot.
        height: of each lane.
        most: calls that a bar of full height stands for.
        bin_text: the stretch of time that a bar stands for.
    """

    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    most: int
    bin_text: str
    width: float = _LANE_WIDTH
    height: float = _LANE_HEIGHT


def seconds_text(seconds: float) -> str:
    """Return a duration with three digits and its unit: ``1.23 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            value = seconds * factor
            # 999.7 has four digits once it is rounded.
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return "0 s" if seconds == 0 else f"{value:.{digits}f} {unit}"
    raise AssertionError("the last unit takes any number")


def call_plot(calls: Sequence[CallRecord], order: Sequence[str]) -> CallPlot | None:
    """Return the plot of calls; ``None`` where there were none.

    Args:
        calls: the calls of one graph.
        order: the buckets in the order in which lanes shall lie; others follow.
    """
    if not calls:
        return None
    end = max(call.start + call.seconds for call in calls) or 1e-6
    step = nice_step(end / 6)
    num_bins = min(_MAX_BINS, max(12, len(calls)))
    by_bucket: dict[str, list[CallRecord]] = defaultdict(list)
    for call in calls:
        by_bucket[call.bucket].append(call)
    counts: dict[str, dict[int, int]] = {}
    for bucket, served in by_bucket.items():
        bins: dict[int, int] = defaultdict(int)
        for call in served:
            bins[min(int(call.start / end * num_bins), num_bins - 1)] += 1
        counts[bucket] = bins
    most = max(number for bins in counts.values() for number in bins.values())
    names = [name for name in dict.fromkeys(order) if name in by_bucket]
    names += [name for name in by_bucket if name not in names]
    width = _LANE_WIDTH / num_bins
    lanes = []
    for name in names:
        bars = []
        for at, number in sorted(counts[name].items()):
            when = f"{seconds_text(at * end / num_bins)} to {seconds_text((at + 1) * end / num_bins)}"
            text = f"{name}: {number} {'call' if number == 1 else 'calls'} from {when}"
            bars.append(Bar(round(at * width, 2), round(width * 0.82, 2), round(number / most * _LANE_HEIGHT, 2), text))
        lanes.append(Lane(name, tuple(bars), _numbers([call.seconds for call in by_bucket[name]])))
    ticks = tuple(
        (round(number * step / end * _LANE_WIDTH, 2), seconds_text(number * step)) for number in range(int(end / step) + 1)
    )
    return CallPlot(tuple(lanes), ticks, most, seconds_text(end / num_bins))


def _numbers(seconds: Sequence[float]) -> tuple[str, ...]:
    ordered = sorted(seconds)
    slow = ordered[min(math.ceil(len(ordered) * 0.9) - 1, len(ordered) - 1)]
    return (
        str(len(ordered)), seconds_text(statistics.median(ordered)), seconds_text(slow), seconds_text(ordered[-1]),
        seconds_text(math.fsum(ordered)),
    )  # fmt: skip


def nice_step(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten, next above a value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)


def time_map(calls: Sequence[CallRecord], order: Sequence[str], pieces: Sequence[str]) -> HeatMap | None:
    """Return the median seconds of each piece in each bucket; ``None`` where no call recorded its pieces."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for call in calls:
        for piece, seconds in call.pieces.items():
            found[piece, call.bucket].append(seconds)
    values = {place: statistics.median(seconds) for place, seconds in found.items()}
    columns = list(dict.fromkeys((*order, *(bucket for _, bucket in values))))
    columns = [name for name in columns if any(bucket == name for _, bucket in values)]
    rows = [*pieces, *dict.fromkeys(piece for piece, _ in values if piece not in pieces)]
    return heat_map(values, rows, columns) if values else None


def compile_map(graph: GraphFacts, labels: Sequence[str]) -> HeatMap | None:
    """Return the seconds that each piece took to compile for each bucket; ``None`` where nothing is compiled.

    Args:
        graph: the graph.
        labels: what its buckets are called.
    """
    values: dict[tuple[str, str], float] = {}
    texts: dict[tuple[str, str], str] = {}
    for label, bucket in zip(labels, graph.buckets, strict=True):
        for artifact in bucket.artifacts:
            place = (artifact.name, label)
            texts[place] = "" if artifact.origin == "compiled" else artifact.origin
            if artifact.seconds > 0:
                values[place] = artifact.seconds
    columns = [label for label in labels if any(bucket == label for _, bucket in texts)]
    return heat_map(values, [piece.name for piece in graph.pieces], columns, texts) if values else None


def heat_map(
    values: Mapping[tuple[str, str], float],
    rows: Sequence[str],
    columns: Sequence[str],
    texts: Mapping[tuple[str, str], str] | None = None,
) -> HeatMap:
    """Return a heat map of seconds.

    Args:
        values: seconds by row and column.
        rows: names of rows, in order.
        columns: names of columns, in order.
        texts: what cells say in the place of a number, or beside it.
    """
    most = max(values.values())
    least = min(values.values())

    def cell(place: tuple[str, str]) -> Cell:
        said = (texts or {}).get(place, "")
        if place not in values:
            return Cell(said)
        share = _share(values[place], least, most)
        return Cell(f"{said} {seconds_text(values[place])}".strip(), min(int(share * HEAT_LEVELS), HEAT_LEVELS - 1))

    found = tuple((row, tuple(cell((row, column)) for column in columns)) for row in rows)
    return HeatMap(tuple(columns), found, seconds_text(least), seconds_text(most))


def _share(value: float, least: float, most: float) -> float:
    """Return where a value lies between two others, from 0 to 1: by its logarithm where they are far apart."""
    if most <= least:
        return 0.0
    if least > 0 and most / least > 20:
        return (math.log(value) - math.log(least)) / (math.log(most) - math.log(least))
    return (value - least) / (most - least)
