"""Discover: which arguments of a call carry which symbol, and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import sympy
import torch

from fxbucket.passes.captured import Placeholder, value_of
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Program, SymbolUse
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, expression_of, is_float_symbol, is_wrapper_subclass, symbols_in


def uses_of(placeholder: Placeholder, value: object) -> Iterator[SymbolUse]:
    """Yield every number of one argument that depends on a symbol."""
    if isinstance(value, SYMBOLIC_TYPES):
        expression = expression_of(value)
        if symbols_in(expression):
            yield SymbolUse(placeholder.index, "value", -1, expression)
    elif isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided and not is_wrapper_subclass(value)
        numbers: list[tuple[str, int, object]] = [("size", dim, size) for dim, size in enumerate(value.shape)]
        if strided:
            numbers += [("stride", dim, stride) for dim, stride in enumerate(value.stride())]
            numbers.append(("offset", -1, value.storage_offset()))
        for field, dim, number in numbers:
            if symbols_in(number):
                expression = expression_of(number)  # type: ignore[arg-type]
                yield SymbolUse(placeholder.index, field, dim, expression)  # type: ignore[arg-type]


def _float_use(program: Program, placeholder: Placeholder) -> Iterator[SymbolUse]:
    """Yield the symbol of a Python float, which torch passes as a float64 tensor of no dimensions."""
    for axis in program.axes:
        if axis.symbol is not None and is_float_symbol(axis.symbol) and placeholder.source in axis.sources:
            yield SymbolUse(placeholder.index, "item", -1, axis.symbol)


_FIELD_ORDER = {"value": 0, "item": 0, "size": 1, "stride": 2, "offset": 3}


def cheapest_use(program: Program, symbol: sympy.Symbol) -> SymbolUse | None:
    """Return the place from which a call reads a symbol at the least cost: an int argument, else a size, else a stride.

    A place that holds the symbol within an expression does not count. ``None`` when there is no such place.
    """
    plain = [use for use in program.uses if use.expression == symbol]
    return min(plain, key=lambda use: (_FIELD_ORDER[use.field], use.placeholder, use.dim), default=None)


@dataclass(frozen=True)
class Discover(BasePass):
    """Find which placeholder positions, dims, strides and offsets carry which symbol; fills ``program.uses``."""

    name: ClassVar[str] = "discover"

    def run(self, program: Program) -> Program:
        nodes = [node for node in program.capture.module.graph.nodes if node.op == "placeholder"]
        uses = tuple(
            use
            for placeholder, node in zip(program.capture.placeholders, nodes, strict=True)
            for use in (*uses_of(placeholder, value_of(node)), *_float_use(program, placeholder))
        )
        found = replace(program, uses=uses)
        missing = [axis for axis in program.axes if axis.symbol is not None and cheapest_use(found, axis.symbol) is None]
        return found.with_findings(
            *(Finding(axis.name, "no argument of this graph holds it alone; it cannot be looked up") for axis in missing)
        )
