"""Hints: the sizes at which a compiler tries what stays symbolic; they must go with what is settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from fxbucket.passes.buckets import Range
from fxbucket.passes.captured import Capture
from fxbucket.passes.conditions import holds
from fxbucket.passes.errors import SizeError
from fxbucket.passes.ranges import Bounds
from fxbucket.passes.symbolic import Number, is_float_symbol, substitute, symbols_in
from fxbucket.passes.text import condition_text

_NO_BOUNDS = Bounds()


def hints_beside(
    capture: Capture,
    binding: Mapping[sympy.Symbol, Number],
    hints: Mapping[sympy.Symbol, Number],
    bounds: Bounds = _NO_BOUNDS,
) -> dict[sympy.Symbol, Number]:
    """Return values for the symbols that a binding leaves open, which go with it under every guard of the capture.

    Args:
        capture: where the symbols belong.
        binding: the numbers that are settled.
        hints: values from some call; where ``s3 == s1*s2`` fails beside the binding, ``s3`` is computed anew.
        bounds: what else must hold of these symbols; its own hints come before those of the call.

    Raises:
        SizeError: no such values follow from these; a call with the binding's sizes would show some.
    """
    known = {**capture.hints, **hints, **bounds.hints}
    values = {symbol: hint for symbol, hint in known.items() if symbol not in binding}
    conditions = (*(guard.condition for guard in capture.guards), *bounds.conditions)
    ranges = {**capture.ranges, **bounds.ranges}
    for _ in range(2 * len(values) + 1):
        wrong = [condition for condition in conditions if holds(condition, {**values, **binding}) is False]
        if not wrong:
            return values
        for condition in wrong:
            if not _solve_one(condition, ranges, values, binding):
                _move_one(condition, conditions, ranges, values, binding)
    broken = condition_text(wrong[0], capture.axes)
    raise SizeError(f"the sizes seen so far do not go with {binding}: the capture needs {broken}; name the other axes too.")


def _solve_one(
    condition: sympy.Basic,
    ranges: Mapping[sympy.Symbol, Range],
    values: dict[sympy.Symbol, Number],
    binding: Mapping[sympy.Symbol, Number],
) -> bool:
    """Give the symbol that an equation says how to compute its value; ``False`` where it says that of none."""
    if isinstance(condition, sympy.Eq):
        for target, expression in ((condition.lhs, condition.rhs), (condition.rhs, condition.lhs)):
            if target in values and target not in symbols_in(expression):
                found = substitute(expression, {**values, **binding})
                if isinstance(found, int) and found in ranges[target]:
                    values[target] = found
                    return True
    return False


def _move_one(
    condition: sympy.Basic,
    conditions: Sequence[sympy.Basic],
    ranges: Mapping[sympy.Symbol, Range],
    values: dict[sympy.Symbol, Number],
    binding: Mapping[sympy.Symbol, Number],
) -> None:
    """Give one symbol of a condition the nearest value with which it holds, and no other one that held breaks."""
    held = [other for other in conditions if holds(other, {**values, **binding}) is not False]
    for symbol in sorted(symbols_in(condition) & values.keys(), key=str):
        hint, step = values[symbol], ranges[symbol].multiple_of
        if is_float_symbol(symbol):
            continue
        others = {other + shift for other in (*values.values(), *binding.values()) for shift in (-1, 0, 1)}
        near = {hint + shift * step for shift in range(-_NEAR, _NEAR + 1)}
        for candidate in sorted(
            others | near | _around_equality(condition, symbol, {**values, **binding}), key=lambda value: abs(value - hint)
        ):
            tried = {**values, symbol: candidate, **binding}
            if candidate in ranges[symbol] and all(holds(one, tried) is not False for one in (condition, *held)):
                values[symbol] = candidate
                return


def _around_equality(condition: sympy.Basic, symbol: sympy.Symbol, values: Mapping[sympy.Symbol, Number]) -> set[Number]:
    """Return the numbers beside which a comparison changes its answer, where sympy finds any."""
    if not isinstance(condition, sympy.core.relational.Relational):
        return set()
    others = {other: sympy.sympify(value) for other, value in values.items() if other != symbol}
    try:
        roots = sympy.solve(sympy.Eq(condition.lhs, condition.rhs).xreplace(others), symbol)
    except NotImplementedError:
        return set()
    return {int(root) + shift for root in roots if root.is_real for shift in (-1, 0, 1, 2)}


_NEAR = 64
"""How far from a hint another one is looked for; a remainder that a guard asks for is found within that."""
