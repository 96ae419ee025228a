"""Admit: keep a bucket only where the capture's ranges and guards hold for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy

from fxbucket.passes.buckets import Bucket
from fxbucket.passes.captured import Axis, Capture
from fxbucket.passes.conditions import holds
from fxbucket.passes.errors import AxisError, SizeError
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Decision, Finding, Program
from fxbucket.passes.ranges import Bounds, bounds_of
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


def with_floats(
    capture: Capture, binding: Mapping[sympy.Symbol, Number], hints: Mapping[sympy.Symbol, Number], title: str
) -> dict[sympy.Symbol, Number]:
    """Return a binding with the floats of a call, too: compilers take each as a constant of its own.

    Raises:
        SizeError: it breaks a guard of the capture; begins with ``title``.
    """
    found = dict(binding)
    for symbol, hint in {**capture.hints, **hints}.items():
        if is_float_symbol(symbol):
            found.setdefault(symbol, hint)
    broken = broken_guard(capture, found)
    if broken:
        raise SizeError(f"{title} breaks a guard: {broken}.")
    return found


def broken_guard(capture: Capture, binding: Mapping[sympy.Symbol, Number]) -> str:
    """Return the first guard that is false for a binding, in words, or an empty text.

    A guard that needs a symbol which the binding does not name is left to the call.
    """
    for guard in capture.guards:
        if holds(guard.condition, binding) is False:
            place = f" (asked for at {guard.origin})" if guard.origin else ""
            return f"the capture needs {condition_text(guard.condition, capture.axes)}{place}"
    return ""


def decide(capture: Capture, bucket: Bucket) -> Decision:
    """Return whether a bucket may be compiled for a capture, and if not which condition it breaks."""
    try:
        binding, _ = settled(capture, bucket)
    except (AxisError, SizeError) as error:
        return Decision(bucket, False, str(error))
    broken = broken_guard(capture, binding)
    return Decision(bucket, not broken, broken)


def settled(capture: Capture, bucket: Bucket) -> tuple[dict[sympy.Symbol, Number], Bounds]:
    """Return the number of each symbol that a bucket settles, and what it says of the others.

    Raises:
        AxisError, SizeError: as :func:`binding_for` and :func:`bounds_of` do.
    """
    binding, bounds = binding_for(capture, bucket.sizes), bounds_of(capture, bucket.ranges)
    for symbol, held in bounds.ranges.items():
        if symbol in binding and binding[symbol] not in held:
            raise SizeError(f"bucket {bucket} asks for one size that is {binding[symbol]} and in {held}; both are one axis.")
    broken = [condition for condition in bounds.conditions if holds(condition, binding) is False]
    if broken:
        raise SizeError(f"bucket {bucket} needs {condition_text(broken[0], capture.axes)}, which its own sizes break.")
    return binding, bounds.beside(binding)


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
