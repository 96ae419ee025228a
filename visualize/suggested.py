"""Suggested sizes, seen through their attributes alone, as the bars and places that a drawing of them is made of."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from fxbucket.passes.errors import OptionError
from fxbucket.visualize.charts import nice_step

_MAX_BINS = 90
_LONG_TAIL = 8
"""How many times the median the largest size must be for a logarithmic axis."""


class StepFacts(Protocol):
    """One pinned size of a ladder, with what it serves."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def calls(self) -> float: ...  # noqa: D102
    @property
    def waste(self) -> float: ...  # noqa: D102


class LadderFacts(Protocol):
    """A ladder of pinned sizes, with what it wastes."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def sizes(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def steps(self) -> Sequence[StepFacts]: ...  # noqa: D102
    @property
    def waste(self) -> float: ...  # noqa: D102
    @property
    def waste_share(self) -> float: ...  # noqa: D102


class SuggestionFacts(LadderFacts, Protocol):
    """The ladder that is suggested, the calls that it was made for, and ladders to compare it with."""

    @property
    def histogram(self) -> Mapping[int, float]: ...  # noqa: D102
    @property
    def ladders(self) -> Sequence[LadderFacts]: ...  # noqa: D102


def suggestion_facts(subject: object) -> SuggestionFacts:
    """Return a suggestion.

    Raises:
        OptionError: it is none.
    """
    if not all(hasattr(subject, name) for name in ("histogram", "ladders", "steps")):
        raise OptionError(f"a {type(subject).__name__} holds no sizes; give what fxbucket.suggest_sizes returns.")
    return cast("SuggestionFacts", subject)


def count_text(value: float) -> str:
    """Return a number of calls or rows, which need not be whole where calls are weighted."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


@dataclass(frozen=True)
class SizeAxis:
    """Sizes along a line, from 0 to 1; a size takes the stretch from half below it to half above it."""

    low: float
    high: float
    is_logarithmic: bool

    @staticmethod
    def of(histogram: Mapping[int, float], largest: int) -> SizeAxis:
        """Return the axis for a histogram: logarithmic where its tail is long."""
        smallest = min(histogram)
        sizes = sorted(histogram)
        sums = list(itertools.accumulate(histogram[size] for size in sizes))
        median = sizes[min(bisect_left(sums, sums[-1] / 2), len(sizes) - 1)]
        if smallest >= 1 and largest > _LONG_TAIL * median:
            return SizeAxis(smallest - 0.5, largest + 0.5, True)
        return SizeAxis(-0.5, largest + 0.5, False)

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Return round sizes on the axis, at most about so many."""
        if not self.is_logarithmic:
            return ticks(self.high, most)
        first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
        return [2**exponent for exponent in range(first, last + 1, max(-(-(last - first + 1) // most), 1))]

    def bins(self) -> list[tuple[int, int]]:
        """Return the first and the last size of each bar, next to one another."""
        edges = {self.low, self.high}
        for number in range(1, _MAX_BINS):
            share = number / _MAX_BINS
            value = self.low * (self.high / self.low) ** share if self.is_logarithmic else self.high * share
            edges.add(max(math.floor(value) + 0.5, self.low))
        return [(math.ceil(low), math.floor(high)) for low, high in itertools.pairwise(sorted(edges))]


def ticks(high: float, most: int, is_whole: bool = True) -> list[float]:
    """Return round numbers from 0 to ``high``, at most about so many; whole ones, unless parts have a meaning."""
    step = nice_step(high / most)
    if is_whole:
        step = max(math.ceil(step), 1)
    return [number * step for number in range(math.floor(high / step) + 1)]


def bars(histogram: Mapping[int, float], axis: SizeAxis) -> list[tuple[int, int, float]]:
    """Return the first size, the last size and the calls of each bar that has any."""
    sizes = sorted(histogram)
    found = []
    for first, last in axis.bins():
        calls = sum(histogram[size] for size in sizes[bisect_left(sizes, first) : bisect_left(sizes, last + 1)])
        if calls:
            found.append((first, last, calls))
    return found


def shares(pairs: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float, float]]:
    """Yield each size with the stretch of all calls that it takes, from 0 to 1, for ``(size, calls)`` in their order."""
    total = math.fsum(calls for _, calls in pairs)
    done = 0.0
    for size, calls in pairs:
        yield size, done / total, min((done + calls) / total, 1.0)
        done += calls


def apart(places: Sequence[float], gap: float, width: float) -> list[float]:
    """Return ascending places moved as little as it takes for each to keep its distance from the next.

    Args:
        places: ascending.
        gap: the distance that they shall keep; less is kept where they would not fit.
        width: the greatest place; the least is 0.
    """
    gap = min(gap, width / max(len(places) - 1, 1))
    # Without the distances that are kept anyway, places need only ascend: those that do not share their mean.
    pools: list[tuple[float, int]] = []
    for number, place in enumerate(places):
        pools.append((place - number * gap, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (last, many), (before, more) = pools.pop(), pools.pop()
            pools.append(((last * many + before * more) / (many + more), many + more))
    most = width - gap * (len(places) - 1)
    shifts = [min(max(mean, 0.0), most) for mean, count in pools for _ in range(count)]
    return [shift + number * gap for number, shift in enumerate(shifts)]


def listed(sizes: Sequence[int], limit: int) -> str:
    """Return sizes as text; the middle of a list longer than ``limit`` characters is left out."""
    text = ", ".join(map(str, sizes))
    head = list(sizes)
    while len(text) > limit and len(head) > 1:
        head.pop()
        text = f"{', '.join(map(str, head))}, …, {sizes[-1]}"
    return text
