"""The cheapest ladder of every length, exactly: dynamic programming over the sizes that may be pinned.

Positions count candidates: position 0 stands below all of them, position ``p`` is the ``p``-th smallest. A ladder is a
path of positions from 0 to the largest candidate, and its cost is the sum of its segments: what it costs to serve the calls
above one position, up to another, at that other's size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add
from typing import Any

Segment = Callable[[int, int], Any]
"""``(below, top)`` → the cost of serving, at ``top``, the calls above position ``below`` and up to ``top``."""

Column = Callable[[int, int], list[Any]]
"""``(below, top)`` → the costs of the segments up to ``top`` that begin at ``below``, and at each position after it."""


@dataclass(frozen=True)
class Found:
    """The cheapest ladder of one length: its positions, ascending, and what its segments cost together."""

    positions: tuple[int, ...]
    cost: Any


@dataclass
class _Level:
    """The cheapest paths of one length to the positions ``first`` to ``last``, and the position before the end of each."""

    first: int
    last: int
    costs: list[Any] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


class _Bounds:
    """Which segments are allowed: none may pass over a position that must be pinned."""

    def __init__(self, num_positions: int, forced: Iterable[int]) -> None:
        self._num_positions = num_positions
        self._forced = sorted(set(forced))

    def below(self, top: int) -> int:
        """Return the lowest position at which a segment that ends at ``top`` may begin."""
        at = bisect_right(self._forced, top - 1)
        return self._forced[at - 1] if at else 0

    def next_level(self, level: _Level) -> _Level:
        """Return an empty level for the paths that are one segment longer than those of ``level``."""
        at = bisect_right(self._forced, level.last)
        last = self._forced[at] if at < len(self._forced) else self._num_positions
        return _Level(level.first + 1, last)


def search_by_halves(num_positions: int, forced: Iterable[int], budget: int, segment: Segment) -> list[Found]:
    """Return the cheapest ladder of each length up to ``budget`` that there is, in O(n log n) segments a length.

    Args:
        num_positions: how many candidates there are, at least 1.
        forced: positions that every ladder must hold.
        budget: the greatest length.
        segment: the cost of a segment; serving a call at a larger size must never be cheaper.

    Then, for a ≤ b ≤ c ≤ d, segment(a, c) + segment(b, d) ≤ segment(a, d) + segment(b, c): the two sides differ in the calls
    between a and b alone, which the left serves at c and the right at d. So the best beginning of the last segment never
    falls as its end rises (take two that cross, and exchange them). The rules of ``_Bounds`` keep this: the beginnings that
    an end allows form a range, and both its bounds rise with the end.
    """
    bounds = _Bounds(num_positions, forced)
    levels = [_Level(0, 0, [0], [0])]
    for _ in range(min(budget, num_positions)):
        previous = levels[-1]
        level = bounds.next_level(previous)
        length = level.last - level.first + 1
        level.costs, level.before = [None] * length, [0] * length
        todo = [(level.first, level.last, previous.first, previous.last)]
        while todo:
            low, high, left, right = todo.pop()
            if low > high:
                continue
            top = (low + high) // 2
            begins = range(max(left, bounds.below(top)), min(right, top - 1) + 1)
            cost, best = min((previous.costs[begin - previous.first] + segment(begin, top), begin) for begin in begins)
            level.costs[top - level.first], level.before[top - level.first] = cost, best
            todo += [(low, top - 1, left, best), (top + 1, high, best, right)]
        levels.append(level)
    return _found(levels, num_positions)


def search_by_columns(num_positions: int, forced: Iterable[int], budget: int, column: Column) -> list[Found]:
    """Return the cheapest ladder of each length up to ``budget`` that there is, for costs of any kind.

    Each segment's cost is asked for once, and used for all lengths: O(n² · budget).

    Args:
        num_positions: how many candidates there are, at least 1.
        forced: positions that every ladder must hold.
        budget: the greatest length.
        column: the costs of the segments that end at a position.
    """
    bounds = _Bounds(num_positions, forced)
    levels = [_Level(0, 0, [0], [0])]
    for _ in range(min(budget, num_positions)):
        levels.append(bounds.next_level(levels[-1]))
    for top in range(1, num_positions + 1):
        below = bounds.below(top)
        costs = column(below, top)
        for previous, level in pairwise(levels):
            start, stop = max(below, previous.first), min(previous.last, top - 1) + 1
            if start >= stop:
                continue
            paths = previous.costs[start - previous.first : stop - previous.first]
            sums = list(map(add, paths, costs[start - below : stop - below]))
            level.costs.append(min(sums))
            level.before.append(start + sums.index(level.costs[-1]))
    return _found(levels, num_positions)


def _found(levels: Sequence[_Level], num_positions: int) -> list[Found]:
    found = []
    for length, level in enumerate(levels):
        if length and level.last == num_positions:
            positions = [num_positions]
            for shorter in reversed(levels[1 : length + 1]):
                positions.append(shorter.before[positions[-1] - shorter.first])
            found.append(Found(tuple(reversed(positions[:-1])), level.costs[-1]))
    return found
