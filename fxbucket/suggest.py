"""Which sizes to pin: the ladder that wastes the least on the calls that were seen."""

from __future__ import annotations

import contextlib
import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from fxbucket.ladder_search import Found, search_by_columns, search_by_halves
from fxbucket.ladders import Costs, Ladder, Number, PaddingCost, linear, measured, powers_of_two
from fxbucket.passes.errors import OptionError


@dataclass(frozen=True)
class Suggestion(Ladder):
    """The sizes to pin; ``print`` shows tables.

    It is used as it is: ``fxbucket.compile(model, sizes={"tokens": suggestion.sizes})``.

    Attributes:
        histogram: the calls that it was made for, by size, ascending.
        ladders: others that are common, with no more sizes: powers of two, and equal steps.
    """

    histogram: Mapping[int, Number] = field(repr=False)
    ladders: tuple[Ladder, ...] = field(repr=False)

    def data(self) -> dict[str, Any]:
        """Return all of it but the histogram as plain data, ready for JSON."""
        ladders = [_plain(ladder) for ladder in self.ladders]
        return {**_plain(self), "ladders": ladders}

    def __str__(self) -> str:
        from fxbucket.tables import suggestion_text

        return suggestion_text(self)

    def _repr_html_(self) -> str:
        from fxbucket.tables import suggestion_html

        return suggestion_html(self)


def _plain(ladder: Ladder) -> dict[str, Any]:
    return {
        "name": ladder.name, "sizes": list(ladder.sizes), "calls": ladder.calls, "waste": ladder.waste,
        "waste_share": ladder.waste_share, "cost": ladder.cost, "steps": [asdict(step) for step in ladder.steps],
    }  # fmt: skip


def suggest_sizes(
    histogram: Mapping[int, float],
    budget: int = 8,
    *,
    padding_cost: PaddingCost = 1.0,
    compile_cost: float = 0.0,
    multiple_of: int = 1,
    must_include: Sequence[int] = (),
) -> Suggestion:
    """Return the sizes to pin so that padding calls up to the next pinned size wastes the least.

    The answer is exact: no other ladder within the budget costs less, as long as padding a call further never costs less.

    Args:
        histogram: size → how many calls had it, or their weight; a ``collections.Counter``, for example. Sizes without
            calls are left out; the largest of the others is always covered.
        budget: how many sizes to pin at most.
        padding_cost: of one row of padding; or a function ``(size, pinned) → cost`` of one call of that size, served at that
            pinned size, which must not fall as the pinned size grows. ``lambda size, pinned: pinned**2 - size**2`` is for
            attention. It is asked for each pair, some millions for a few thousand sizes.
        compile_cost: of one more pinned size, in the same unit, so that fewer than ``budget`` may be best. By default rows.
        multiple_of: pinned sizes are multiples of it.
        must_include: sizes that are pinned whatever they cost; they count towards the budget.

    Raises:
        OptionError: an argument is not as said here.

    Where ladders cost the same, the shorter is given.
    """
    calls = _checked_histogram(histogram)
    budget = _checked_int("budget", budget, 1)
    costs = Costs(
        _checked_results(padding_cost) if callable(padding_cost) else _checked_cost("padding_cost", padding_cost),
        _checked_cost("compile_cost", compile_cost),
        _checked_int("multiple_of", multiple_of, 1),
    )
    forced = _checked_forced(must_include, costs.multiple_of)
    largest = costs.rounded_up(max(calls))
    needed = forced | {max(forced | {largest})}
    if len(needed) > budget:
        raise OptionError(
            f"budget={budget} is too small for must_include={sorted(forced)} with a size that covers the largest, "
            f"{max(calls)}; give a budget of at least {len(needed)}, or leave some out."
        )
    # No other sizes need be looked at. Take any ladder, and a size S of it that need not be included. Let s be the largest
    # size that S serves, rounded up: s ≤ S, since S is a multiple too. With s in the place of S each call is served by the
    # same place of the ladder, at s instead of S, which costs no more where padding costs grow with the pinned size; and an
    # S that serves none can be left out. What remains holds sizes of the histogram, rounded up, and those to include.
    candidates = sorted({costs.rounded_up(size) for size in calls} | forced)
    forced_positions = [candidates.index(size) + 1 for size in sorted(forced)]
    search = _cheapest_by_function if callable(costs.padding) else _cheapest_by_rows
    positions = search(calls, candidates, forced_positions, budget, costs)
    best = measured("suggested", [candidates[position - 1] for position in positions], calls, costs)
    others = (powers_of_two(calls, budget, costs), linear(calls, budget, costs))
    return Suggestion(best.name, best.sizes, best.steps, best.cost, calls, others)


def _cheapest_by_rows(
    histogram: Mapping[int, Number], candidates: Sequence[int], forced: Sequence[int], budget: int, costs: Costs
) -> tuple[int, ...]:
    """Return the positions of the cheapest ladder's sizes among the candidates, where each row of padding costs the same."""
    price = costs.padding
    assert not callable(price)
    # Equal sums must compare as equal, and differences of prefix sums must be exact: as ints they are.
    scale = max(count.as_integer_ratio()[1] for count in histogram.values())
    calls, rows = [0], [0]
    for pairs in _calls_of(histogram, candidates):
        scaled = [(size, int(Fraction(count) * scale)) for size, count in pairs]
        calls.append(calls[-1] + sum(count for _, count in scaled))
        rows.append(rows[-1] + sum(size * count for size, count in scaled))

    def waste(below: int, top: int) -> int:
        return (calls[top] - calls[below]) * candidates[top - 1] - (rows[top] - rows[below])

    found = search_by_halves(len(candidates), forced, budget, waste)
    return _cheapest(found, lambda scaled: price * (scaled / scale), costs)


def _cheapest_by_function(
    histogram: Mapping[int, Number], candidates: Sequence[int], forced: Sequence[int], budget: int, costs: Costs
) -> tuple[int, ...]:
    """Return the positions of the cheapest ladder's sizes among the candidates, where a function says what padding costs."""
    price = costs.padding
    assert callable(price)
    calls = _calls_of(histogram, candidates)

    def column(below: int, top: int) -> list[Number]:
        pinned = candidates[top - 1]
        total: Number = 0
        found = []
        for pairs in calls[below:top][::-1]:
            for size, count in pairs:
                total += count * price(size, pinned)
            found.append(total)
        return found[::-1]

    return _cheapest(search_by_columns(len(candidates), forced, budget, column), lambda cost: cost, costs)


def _cheapest(found: Sequence[Found], padding: Callable[[Any], Number], costs: Costs) -> tuple[int, ...]:
    def total(ladder: Found) -> tuple[Number, int]:
        length = len(ladder.positions)
        return padding(ladder.cost) + costs.compilation * length, length

    return min(found, key=total).positions


def _calls_of(histogram: Mapping[int, Number], candidates: Sequence[int]) -> list[list[tuple[int, Number]]]:
    """Return for each candidate the sizes above the one before it and up to it, with their calls."""
    found: list[list[tuple[int, Number]]] = [[] for _ in candidates]
    for size, count in histogram.items():
        found[bisect_left(candidates, size)].append((size, count))
    return found


def _checked_histogram(histogram: object) -> dict[int, Number]:
    """Return the sizes that have calls, ascending."""
    if not isinstance(histogram, Mapping):
        raise OptionError(
            f"histogram is a {type(histogram).__name__}; give a dict from sizes to numbers of calls, such as "
            f"collections.Counter(sizes)."
        )
    found: dict[int, Number] = {}
    for key, value in histogram.items():
        size = _checked_int("a size of the histogram", key, 0)
        count = _checked_cost(f"the number of calls of size {size} in the histogram", value)
        found[size] = found.get(size, 0) + count
    if not found:
        raise OptionError("histogram is empty; give at least one size with its number of calls, such as {512: 1}.")
    if not any(found.values()):
        raise OptionError("histogram: no size has a call, so that any sizes would do; give at least one count above 0.")
    return {size: found[size] for size in sorted(found) if found[size]}


def _checked_forced(must_include: object, multiple_of: int) -> set[int]:
    if not isinstance(must_include, Sequence) or isinstance(must_include, str):
        raise OptionError(f"must_include={must_include!r}: give a list of sizes, such as [256].")
    forced = {_checked_int("a size of must_include", size, 0) for size in must_include}
    for size in sorted(forced):
        if size % multiple_of:
            near = sorted({size // multiple_of * multiple_of, -(-size // multiple_of) * multiple_of})
            raise OptionError(
                f"must_include: {size} is no multiple of multiple_of={multiple_of}; give {near[0]} or {near[1]}, or leave "
                f"it out."
            )
    return forced


def _checked_int(name: str, value: Any, least: int) -> int:
    # Sizes out of numpy and the like are ints by another name; a bool is none, though Python says so.
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise OptionError(f"{name} is {value!r}; give an int of at least {least}.")
    return number


def _checked_cost(name: str, value: Any) -> Number:
    if type(value) is int and value >= 0:
        return value
    number: Number = math.nan
    if not isinstance(value, (str, bytes, bool)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            number = operator.index(value)
    if not 0 <= number < math.inf:
        raise OptionError(f"{name} is {value!r}; give a finite number of at least 0.")
    return number


def _checked_results(padding_cost: Callable[[int, int], float]) -> Callable[[int, int], Number]:
    def checked(size: int, pinned: int) -> Number:
        cost = padding_cost(size, pinned)
        if type(cost) in (int, float) and 0 <= cost < math.inf:
            return cost
        return _checked_cost(f"padding_cost({size}, {pinned})", cost)

    return checked
