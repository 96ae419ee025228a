"""What ranges of axes say of a capture's symbols: bounds, and conditions where an axis is an expression of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy

from fxbucket.passes.buckets import NO_LOWER_BOUND, Range
from fxbucket.passes.captured import Axis, Capture
from fxbucket.passes.conditions import divides
from fxbucket.passes.errors import SizeError
from fxbucket.passes.symbolic import Number, is_float_symbol, substitute, symbols_in


@dataclass(frozen=True)
class Bounds:
    """What must hold of symbols for a call's axes to be in their ranges, and in those of the capture.

    Attributes:
        ranges: the range of each symbol that an axis is.
        conditions: what else must hold: ranges of axes that are expressions.
        hints: the value of each bounded symbol at which a compiler may try things.
    """

    ranges: Mapping[sympy.Symbol, Range] = field(default_factory=dict)
    conditions: tuple[sympy.Basic, ...] = ()
    hints: Mapping[sympy.Symbol, Number] = field(default_factory=dict)

    @property
    def assumptions(self) -> tuple[sympy.Basic, ...]:
        """What a compiler may assume beside ``start`` and ``end``: the conditions, and by what symbols can be divided.

        Every divisor is there, since torch does not conclude from multiples of 64 to those of 16.
        """
        found = [
            divides(divisor, symbol)
            for symbol, held in self.ranges.items()
            for divisor in sympy.divisors(held.multiple_of)
            if divisor > 1
        ]
        return (*self.conditions, *found)

    def beside(self, binding: Mapping[sympy.Symbol, Number]) -> Bounds:
        """Return what is left to hold where these symbols have numbers, which are in their ranges."""
        left = {symbol: held for symbol, held in self.ranges.items() if symbol not in binding}
        conditions = tuple(condition for condition in self.conditions if not symbols_in(condition) <= binding.keys())
        return Bounds(left, conditions, {symbol: hint for symbol, hint in self.hints.items() if symbol not in binding})

    def holds(self, sizes: Mapping[sympy.Symbol, Number]) -> bool:
        """Whether these sizes, one for each symbol, are in all ranges."""
        inside = all(sizes[symbol] in bounds for symbol, bounds in self.ranges.items())
        return inside and all(substitute(condition, sizes) is True for condition in self.conditions)


def bounds_of(capture: Capture, ranges: Mapping[str, Range]) -> Bounds:
    """Return what ranges of axes, by name or expression, say of a capture's symbols.

    An axis that the graph does not depend on, or that the capture fixed at a size of its range, says nothing.

    Raises:
        AxisError: the capture has no such axis.
        SizeError: no size of a range is one for which the capture is valid.
    """
    found: dict[sympy.Symbol, Range] = {}
    hints: dict[sympy.Symbol, Number] = {}
    conditions: list[sympy.Basic] = []
    for name, wanted in ranges.items():
        if name in capture.unseen:
            continue
        axis = capture.axis(name)
        for expression in (axis.expression, *axis.equal):
            if not isinstance(expression, sympy.Basic):
                if expression not in wanted:
                    raise SizeError(f"axis {name!r} is fixed at {expression} in this capture, which is not in {wanted}.")
            elif isinstance(expression, sympy.Symbol):
                _check_int(axis, expression)
                bounds = found.get(expression, axis.range).common(wanted)
                if bounds is None:
                    raise SizeError(
                        f"range {wanted} of axis {name!r} has no size in {found.get(expression, axis.range)}, for which "
                        f"this capture is valid; choose a range that has."
                    )
                found[expression] = bounds
                hints[expression] = bounds.middle
            else:
                conditions += _limits(expression, wanted)
                hints |= _near_middle(axis, expression, wanted, capture.hints)
    return Bounds(found, tuple(dict.fromkeys(conditions)), hints)


def _check_int(axis: Axis, symbol: sympy.Symbol) -> None:
    if is_float_symbol(symbol):
        raise SizeError(f"axis {axis.name!r} is a float in this capture; only ints have ranges.")


def _limits(expression: sympy.Basic, wanted: Range) -> list[sympy.Basic]:
    """Return the conditions that an expression is in a range."""
    found: list[sympy.Basic] = []
    if wanted.start > NO_LOWER_BOUND:
        found.append(sympy.Ge(expression, wanted.start))
    if wanted.end is not None:
        found.append(sympy.Le(expression, wanted.end))
    if wanted.multiple_of > 1:
        found.append(divides(wanted.multiple_of, expression))
    return [condition for condition in found if condition is not sympy.true]


def _near_middle(
    axis: Axis, expression: sympy.Basic, wanted: Range, hints: Mapping[sympy.Symbol, Number]
) -> dict[sympy.Symbol, Number]:
    """Return values with which an expression of one symbol is in its range, close to the middle where that is possible."""
    free = sorted(symbols_in(expression), key=str)
    if substitute(expression, hints) in wanted:
        return {}
    if len(free) == 1:
        span = [wanted.middle, wanted.first, *(() if wanted.last is None else (wanted.last,))]
        span += [wanted.middle + shift * wanted.multiple_of for shift in range(-_TRIED, _TRIED + 1)]
        for size in span:
            for root in sympy.solve(sympy.Eq(expression, size), free[0]) if size in wanted else ():
                if root.is_integer and root > 1 and substitute(expression, {free[0]: int(root)}) == size:
                    return {free[0]: int(root)}
    raise SizeError(f"axis {axis.name!r} is {expression} in this capture, and no size in {wanted} was found for it.")


_TRIED = 16
"""How many members on either side of the middle are tried; what ``2*s`` or ``s + 3`` can be is found within that."""
