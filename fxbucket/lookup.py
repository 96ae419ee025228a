"""The look-up in front of a graph's buckets: tables of pinned sizes, then ranges, the first that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy

from fxbucket.emit import Emitted, RangeTest, dispatch_function, key_function
from fxbucket.entry import Entry
from fxbucket.passes.aliasing import exposed_placeholders
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.discover import cheapest_use
from fxbucket.passes.program import Program, SymbolUse
from fxbucket.passes.symbolic import Number, symbols_in

Function = Callable[..., Any]
Table = tuple[list[SymbolUse], Mapping[Any, Function]]


class Lookup:
    """Which entry serves which sizes.

    Attributes:
        uses: where a call's arguments hold each symbol.
        padded: functions that pad a call and serve it, by the sizes of all symbols in order; ``None`` where no call is.
        seen: how often each combination of sizes was served by a range, by the sizes of all symbols in order.
    """

    def __init__(self, program: Program) -> None:
        found = {symbol: cheapest_use(program, symbol) for symbol in program.capture.hints}
        self.uses = {symbol: use for symbol, use in found.items() if use is not None}
        self.padded: dict[Any, Any] | None = None
        self.seen: dict[Any, int] = {}
        self._program = program
        self._read = key_function(list(self.uses.values())).function
        self._tables: dict[tuple[sympy.Symbol, ...], dict[Any, Function]] = {}
        self._tests: list[RangeTest] = []
        self._ranged: list[Function] = []

    def sizes(self, args: tuple[Any, ...]) -> dict[sympy.Symbol, Number]:
        """Return the value of each symbol in a call."""
        return self.named(self._read(args))

    def named(self, values: Any) -> dict[sympy.Symbol, Number]:
        """Return values in the order of ``uses``, alone where there is one symbol, by their symbols."""
        return dict(zip(self.uses, values if len(self.uses) != 1 else (values,), strict=True))

    def by_name(self, sizes: Mapping[sympy.Symbol, Number]) -> dict[str, Number]:
        """Return the values of symbols by the names of the axes that they are."""
        axes = self._program.axes
        return {axis.name: sizes[axis.symbol] for axis in axes if axis.symbol in sizes and axis.symbol is not None}

    def all_by_name(self, sizes: Mapping[sympy.Symbol, Number]) -> dict[str, Number]:
        """Return the same, and the axes that the user named and the capture fixed."""
        fixed = {axis.name: axis.hint for axis in self._program.axes if axis.is_fixed and axis.named}
        return self.by_name(sizes) | fixed

    def seen_of(self, bucket: Bucket) -> Bucket:
        """Return what a bucket says of axes that this graph depends on, or that its capture fixed."""
        capture = self._program.capture

        def is_seen(name: str) -> bool:
            if name in capture.unseen:
                return False
            axis = capture.axis(name)
            symbols = symbols_in([axis.expression, *axis.equal])
            return not symbols or not symbols.isdisjoint(self.uses)

        return Bucket(tuple((name, extent) for name, extent in bucket if is_seen(name)))

    def find(self, sizes: Mapping[sympy.Symbol, Number]) -> Function | None:
        """Return what serves these sizes, a pinned bucket's or a range's; ``None`` where they are a miss."""
        for symbols, table in self._tables.items():
            values = tuple(sizes[symbol] for symbol in symbols)
            found = table.get(values[0] if len(values) == 1 else values)
            if found is not None:
                return found
        return next((found for test, found in zip(self._tests, self._ranged, strict=True) if test.holds(sizes)), None)

    def pin_any(self) -> None:
        """Make room for entries that pin every symbol and come later."""
        self._tables.setdefault(tuple(self.uses), {})

    def pin(self, entry: Entry, function: Function) -> bool:
        """Have a function serve an entry's sizes until the entry has its own; ``False`` where another entry does."""
        symbols = tuple(symbol for symbol in self.uses if symbol in entry.binding)
        values = tuple(entry.binding[symbol] for symbol in symbols)
        key = values[0] if len(values) == 1 else values
        table = self._tables.setdefault(symbols, {})
        if key in table:
            # Another bucket differs from this one only in an axis that this graph does not depend on.
            return False
        table[key] = function
        entry.run = function
        entry.ready = lambda made: table.__setitem__(key, made)
        return True

    def add_range(self, entry: Entry, function: Function) -> bool:
        """Have a function serve the sizes of a range, as :meth:`pin` does; to be called before :meth:`emitted`."""
        binding = {symbol: value for symbol, value in entry.binding.items() if symbol in self.uses}
        test = RangeTest(binding, entry.bounds.ranges, entry.bounds.conditions)
        if test in self._tests or any(known.is_always for known in self._tests):
            return False
        number = len(self._tests)
        self._tests.append(test)
        self._ranged.append(function)
        entry.run = function
        entry.ready = lambda made: self._ranged.__setitem__(number, made)
        return True

    def emitted(self, missed: Function, overlapping: Function) -> Emitted:
        """Return the function that looks up a call's sizes and runs what it finds.

        Args:
            missed: gets the arguments of a call that nothing serves.
            overlapping: runs a call whose arguments share memory that the graph writes to.
        """
        tables: list[Table] = [([self.uses[symbol] for symbol in symbols], table) for symbols, table in self._tables.items()]
        if self.padded is not None:
            tables.append((list(self.uses.values()), self.padded))
        capture = self._program.capture
        ranged = (self._tests, self._ranged, self.seen)
        return dispatch_function(
            tables, missed, capture.written, exposed_placeholders(capture), overlapping, self.uses, ranged
        )


def sizes_text(named: Mapping[str, Number]) -> str:
    """Return sizes as people read them: ``batch=2, tokens=16``."""
    return ", ".join(f"{name}={size}" for name, size in named.items()) or "no axis"
