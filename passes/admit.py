"""Admit: keep a bucket only where the capture's ranges and guards hold for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy

from fxbucket.passes.buckets import Bucket, Range
from fxbucket.passes.captured import Axis, Capture
from fxbucket.passes.conditions import holds
from fxbucket.passes.errors import AxisError, SizeError
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Decision, Finding, Program
from fxbucket.passes.symbolic import Number, is_float_symbol, substitute, symbols_in
from fxbucket.passes.text import Namer, axis_namer, condition_text


def binding_for(capture: Capture, sizes: Mapping[str, Number]) -> dict[sympy.Symbol, Number]:
    """Return the value that each symbol has when these axes have these sizes.

    Args:
        capture: where the axes belong.
        sizes: axis name (or one of its expressions) → size. Axes that the graph does not depend on may have any.

    Raises:
        AxisError: the capture has no such axis.
        SizeError: a size contradicts the capture: out of range, not the number that the axis is fixed to, or two axes
            that are one symbol with two sizes. The message names the axis and what is possible.
    """
    binding: dict[sympy.Symbol, Number] = {}
    by_symbol: dict[sympy.Symbol, Axis] = {}
    named = [(capture.axis(name), size) for name, size in sizes.items() if name not in capture.unseen]
    parts = [(held, size, part) for held, size in named for part in (held.expression, *held.equal)]
    for axis, size, expression in parts:
        if not isinstance(expression, sympy.Basic):
            if size != expression:
                raise SizeError(f"axis {axis.name!r} is fixed at {expression} in this capture, so it cannot be {size}.")
            continue
        symbol, value = _solve(axis, expression, size, axis_namer(capture.axes))
        if symbol in binding and binding[symbol] != value:
            other = by_symbol[symbol]
            relation = f"{axis.name} = {other.name}"
            for held in (axis, other):
                if not isinstance(held.expression, sympy.Symbol):
                    relation = f"{held.name} = {axis_namer(capture.axes)(held.expression)}"
            asked = next(size for held, size in named if held is other)
            raise SizeError(
                f"axes {other.name!r} and {axis.name!r} depend on one another in this capture ({relation}), so "
                f"{axis.name} cannot be {size} beside {other.name}={asked}."
            )
        binding[symbol] = value
        by_symbol.setdefault(symbol, axis)
    for symbol, value in binding.items():
        bounds = capture.ranges.get(symbol)
        if bounds is not None and isinstance(value, int) and value not in bounds:
            axis = by_symbol[symbol]
            raise SizeError(
                f"size {value} of axis {axis.name!r} lies outside {bounds}, the range for which this capture is valid; "
                f"choose a size in it."
            )
    return binding


def _solve(axis: Axis, expression: sympy.Basic, size: Number, name: Namer) -> tuple[sympy.Symbol, Number]:
    """Return the symbol and value that give an axis this size."""
    if isinstance(expression, sympy.Symbol):
        return expression, size
    free = sorted(symbols_in(expression), key=str)
    if len(free) == 1:
        for root in sympy.solve(sympy.Eq(expression, size), free[0]):
            if root.is_integer and substitute(expression, {free[0]: int(root)}) == size:
                return free[0], int(root)
    raise SizeError(f"axis {axis.name!r} is {name(expression)} in this capture and cannot be {size}.")


def broken_guard(capture: Capture, binding: Mapping[sympy.Symbol, Number]) -> str:
    """Return the first guard that is false for a binding, in words, or an empty text.

    A guard that needs a symbol which the binding does not name is left to the call.
    """
    for guard in capture.guards:
        if holds(guard.condition, binding) is False:
            place = f" (asked for at {guard.origin})" if guard.origin else ""
            return f"the capture needs {condition_text(guard.condition, capture.axes)}{place}"
    return ""


def hints_beside(
    capture: Capture, binding: Mapping[sympy.Symbol, Number], hints: Mapping[sympy.Symbol, Number]
) -> dict[sympy.Symbol, Number]:
    """Return values for the symbols that a binding leaves open, which go with it under every guard of the capture.

    Args:
        capture: where the symbols belong.
        binding: the numbers that are settled.
        hints: values from some call; where ``s3 == s1*s2`` fails beside the binding, ``s3`` is computed anew.

    Raises:
        SizeError: no such values follow from these; a call with the binding's sizes would show some.
    """
    values = {symbol: hint for symbol, hint in {**capture.hints, **hints}.items() if symbol not in binding}
    for _ in range(2 * len(values) + 1):
        wrong = [guard for guard in capture.guards if holds(guard.condition, {**values, **binding}) is False]
        if not wrong:
            return values
        for guard in wrong:
            condition = guard.condition
            if not isinstance(condition, sympy.Eq):
                _move_one(capture, condition, values, binding)
                continue
            for target, expression in ((condition.lhs, condition.rhs), (condition.rhs, condition.lhs)):
                if target in values and target not in symbols_in(expression):
                    found = substitute(expression, {**values, **binding})
                    if isinstance(found, int) and found in capture.ranges[target]:
                        values[target] = found
                        break
    broken = condition_text(wrong[0].condition, capture.axes)
    raise SizeError(f"the sizes seen so far do not go with {binding}: the capture needs {broken}; name the other axes too.")


def _move_one(
    capture: Capture, condition: sympy.Basic, values: dict[sympy.Symbol, Number], binding: Mapping[sympy.Symbol, Number]
) -> None:
    """Give one symbol of a condition the nearest value with which it holds, and no other guard that held breaks."""
    held = [guard.condition for guard in capture.guards if holds(guard.condition, {**values, **binding}) is not False]
    for symbol in sorted(symbols_in(condition) & values.keys(), key=str):
        hint = values[symbol]
        if is_float_symbol(symbol):
            continue
        others = {other + shift for other in (*values.values(), *binding.values()) for shift in (-1, 0, 1)}
        near = {hint + shift for shift in range(-_NEAR, _NEAR + 1)}
        for candidate in sorted(
            others | near | _around_equality(condition, symbol, {**values, **binding}), key=lambda value: abs(value - hint)
        ):
            tried = {**values, symbol: candidate, **binding}
            if candidate in capture.ranges[symbol] and all(holds(one, tried) is not False for one in (condition, *held)):
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


def decide(capture: Capture, bucket: Bucket) -> Decision:
    """Return whether a bucket may be compiled for a capture, and if not which condition it breaks."""
    try:
        binding = binding_for(capture, bucket.sizes)
        for name, wanted in bucket.ranges.items():
            if name in capture.unseen:
                continue
            axis = capture.axis(name)
            if axis.is_fixed:
                raise SizeError(
                    f"axis {name!r} is fixed at {axis.expression} in this capture; a range needs one that varies."
                )
            if not _overlap(wanted, axis.range):
                raise SizeError(
                    f"range {wanted} of axis {name!r} lies outside {axis.range}, for which this capture is valid."
                )
    except (AxisError, SizeError) as error:
        return Decision(bucket, False, str(error))
    broken = broken_guard(capture, binding)
    return Decision(bucket, not broken, broken)


def _overlap(left: Range, right: Range) -> bool:
    end = min((bound for bound in (left.end, right.end) if bound is not None), default=None)
    return end is None or max(left.start, right.start) <= end


@dataclass(frozen=True)
class Admit(BasePass):
    """Decide for each bucket whether the capture's ranges and guards hold for it; fills ``program.decisions``.

    Attributes:
        buckets: what is asked for.
        strict: raise :class:`SizeError` for a bucket that breaks a condition instead of leaving it out.
    """

    buckets: tuple[Bucket, ...]
    strict: bool = False
    name: ClassVar[str] = "admit"

    def __post_init__(self) -> None:
        object.__setattr__(self, "buckets", tuple(self.buckets))

    def run(self, program: Program) -> Program:
        decisions = tuple(decide(program.capture, bucket) for bucket in self.buckets)
        refused = [decision for decision in decisions if not decision.admitted]
        if self.strict and refused:
            raise SizeError(f"bucket {refused[0].bucket} is refused: {refused[0].reason}")
        findings = (Finding(f"bucket {decision.bucket}", f"refused: {decision.reason}") for decision in refused)
        return replace(program, decisions=decisions).with_findings(*findings)

    def __str__(self) -> str:
        return f"Admit({len(self.buckets)} buckets)"
