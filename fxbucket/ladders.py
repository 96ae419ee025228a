"""Ladders of sizes, and what a histogram of calls costs on one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Number = int | float
PaddingCost = Callable[[int, int], float] | float


@dataclass(frozen=True)
class Step:
    """One pinned size of a ladder.

    Attributes:
        size: in rows.
        calls: how many calls it serves.
        waste: rows of padding in all of them.
        rows: rows that are computed in all of them, padding included.
    """

    size: int
    calls: Number
    waste: Number
    rows: Number


@dataclass(frozen=True)
class Ladder:
    """Sizes to pin, and what serving a histogram's calls at them costs.

    Attributes:
        name: how the ladder was made.
        sizes: what is pinned, ascending.
        steps: the same sizes, with what each serves.
        cost: of padding and of compilation together, in the unit of the costs that were given; rows, where none were.
    """

    name: str
    sizes: tuple[int, ...]
    steps: tuple[Step, ...] = field(repr=False)
    cost: float

    @property
    def calls(self) -> Number:
        """How many calls the ladder serves."""
        return sum(step.calls for step in self.steps)

    @property
    def waste(self) -> Number:
        """Rows of padding in all calls."""
        return sum(step.waste for step in self.steps)

    @property
    def waste_share(self) -> float:
        """Rows of padding, as a share of all rows that are computed; from 0 to 1."""
        rows = sum(step.rows for step in self.steps)
        return float(self.waste / rows) if rows else 0.0


@dataclass(frozen=True)
class Costs:
    """What padding and compilation cost, and what sizes may be pinned; see :func:`fxbucket.suggest_sizes`."""

    padding: PaddingCost
    compilation: float
    multiple_of: int

    def rounded_up(self, size: int) -> int:
        """Return the smallest size from ``size`` on that may be pinned."""
        return -(-size // self.multiple_of) * self.multiple_of


def measured(name: str, sizes: Sequence[int], histogram: Mapping[int, Number], costs: Costs) -> Ladder:
    """Return a ladder with what it costs.

    Args:
        name: how it was made.
        sizes: ascending; the last covers every size of the histogram.
        histogram: size → how many calls had it.
        costs: of a row of padding, or of a call, and of a pinned size.
    """
    calls: list[Number] = [0] * len(sizes)
    waste: list[Number] = [0] * len(sizes)
    padding: Number = 0
    for size, count in histogram.items():
        at = bisect_left(sizes, size)
        calls[at] += count
        waste[at] += count * (sizes[at] - size)
        if callable(costs.padding):
            padding += count * costs.padding(size, sizes[at])
    steps = tuple(Step(size, calls[at], waste[at], calls[at] * size) for at, size in enumerate(sizes))
    if not callable(costs.padding):
        padding = costs.padding * sum(waste)
    return Ladder(name, tuple(sizes), steps, padding + costs.compilation * len(sizes))


def powers_of_two(histogram: Mapping[int, Number], budget: int, costs: Costs) -> Ladder:
    """Return the ladder of powers of two.

    It ends at the first power from the largest size on, and begins at the first from the smallest size on; where these are
    more than ``budget``, its largest are taken. Each is rounded up to what may be pinned.
    """
    first, last = (max(size - 1, 0).bit_length() for size in (min(histogram), max(histogram)))
    powers = [2**exponent for exponent in range(max(first, last - budget + 1), last + 1)]
    return measured("powers of two", sorted({costs.rounded_up(size) for size in powers}), histogram, costs)


def linear(histogram: Mapping[int, Number], budget: int, costs: Costs) -> Ladder:
    """Return the ladder of ``budget`` equal steps from 0 up to the largest size.

    Each is rounded up to what may be pinned; those below the smallest size are left out.
    """
    largest = max(histogram)
    sizes = {costs.rounded_up(-(-largest * number // budget)) for number in range(1, budget + 1)}
    return measured("linear", sorted(size for size in sizes if size >= min(histogram)), histogram, costs)
