"""One captured graph at run time: its buckets' functions, and what serves a call that none of them does."""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from fxbucket.build import Builder
from fxbucket.emit import Emitted, Timing, bucket_function, dispatch_function, key_function
from fxbucket.entry import Entry
from fxbucket.fragments import hand_on
from fxbucket.journal import Journal
from fxbucket.options import Options
from fxbucket.passes.admit import binding_for
from fxbucket.passes.aliasing import exposed_placeholders
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.concretize import Concretize
from fxbucket.passes.discover import cheapest_use
from fxbucket.passes.errors import FxbucketWarning, MissError, SizeError, VerifyError
from fxbucket.passes.pipeline import Pipeline
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import Number, symbols_in
from fxbucket.passes.verify import Verify
from fxbucket.profile import Recorder

MAX_DYNAMIC = 8
"""How many symbolic compilations one graph gets; each later call that none of them serves runs the graph as it is."""


class Dispatcher:
    """Serves the calls of one captured graph.

    Attributes:
        program: the graph, cut and with its admitted buckets; symbolic.
        entries: every bucket that was admitted or pinned, in order.
        dynamic: the symbolic compilations that serve misses.
        misses: how often each combination of sizes was not pinned, by the axes' names.
        eager_calls: how many calls ran the captured graph as it is.
        emitted: the look-up in front of the buckets.
    """

    def __init__(self, program: Program, options: Options, builder: Builder, journal: Journal) -> None:
        self.program = program
        self._journal = journal
        self.entries: list[Entry] = []
        self.dynamic: list[Entry] = []
        self.misses: Counter[str] = Counter()
        self.eager_calls = 0
        self._options = options
        self._builder = builder
        self._lock = threading.RLock()
        self._warned_of_overlap = False
        self._recorder: Recorder | None = None
        self._number = 0
        found = {symbol: cheapest_use(program, symbol) for symbol in program.capture.hints}
        self._uses = {symbol: use for symbol, use in found.items() if use is not None}
        self._read = key_function(list(self._uses.values())).function
        self._tables: dict[tuple[sympy.Symbol, ...], dict[Any, Callable[..., Any]]] = {}
        self.emitted = self._prepare()

    def compile_all(self, with_dynamic: bool = False) -> None:
        """Compile every admitted bucket that is not compiled yet.

        Args:
            with_dynamic: also compile what serves sizes that are not pinned, where ``on_miss`` asks for that.
        """
        with self._lock:
            waiting = [entry for entry in self.entries if entry.emitted is None]
            varies = bool(self.program.open_symbols) and not self.program.capture.refusal
            if with_dynamic and varies and self._options.on_miss == "dynamic" and not self.dynamic:
                self.dynamic.append(Entry(Bucket(), {}))
                waiting.append(self.dynamic[0])
            self._compile(waiting)

    def _prepare(self) -> Emitted:
        """Return the look-up in front of the buckets; their functions come as they are compiled."""
        capture = self.program.capture
        if capture.refusal:
            warnings.warn(f"a graph runs as it is, uncompiled: {capture.refusal}.", FxbucketWarning, stacklevel=2)
            return Emitted(self._run_as_captured, "")
        for decision in self.program.decisions:
            binding = binding_for(capture, decision.bucket.sizes) if decision.admitted else {}
            if decision.admitted and self._uses.keys() >= binding.keys():
                self._enter(Entry(decision.bucket, binding))
        if self._options.pins_seen:
            self._tables.setdefault(tuple(self._uses), {})
        tables = [([self._uses[symbol] for symbol in symbols], table) for symbols, table in self._tables.items()]
        exposed = exposed_placeholders(capture)
        return dispatch_function(tables, self._missed, capture.written, exposed, self._run_overlapping)

    def _enter(self, entry: Entry) -> None:
        """Make an entry known to the look-up; its first call compiles it if nothing did before."""
        symbols = tuple(symbol for symbol in self._uses if symbol in entry.binding)
        values = tuple(entry.binding[symbol] for symbol in symbols)
        key = values[0] if len(values) == 1 else values
        table = self._tables.setdefault(symbols, {})
        if key in table:
            # Another bucket differs from this one only in an axis that this graph does not depend on.
            return

        def first_call(*args: Any) -> Any:
            with self._lock:
                if entry.emitted is None:
                    # What the entry leaves open is best tried at the sizes that do occur beside it.
                    entry.hints = self._sizes(args)
                    self._compile_now(entry)
            return table[key](*args)

        table[key] = first_call
        self.entries.append(entry)
        entry.ready = lambda function: table.__setitem__(key, function)

    def _compile(self, entries: Sequence[Entry]) -> None:
        """Compile the pieces of several entries together, and put each one's function in the place that waits for it."""
        started = {}
        programs: list[tuple[Entry, Program]] = []
        for entry in entries:
            started[id(entry)] = time.perf_counter()
            self._journal.compiling(entry.bucket, len(self.program.pieces))
            try:
                programs.append((entry, self._program_for(entry)))
            except SizeError as error:
                # What goes with these sizes does not follow from the calls seen so far: its own first call tells.
                entry.note = str(error)
            except VerifyError as error:
                warnings.warn(f"bucket {entry.bucket} runs uncompiled: {error}", FxbucketWarning, stacklevel=2)
                entry.note = str(error)
                entry.emitted = Emitted(self._run_as_captured, "")
                entry.seconds = time.perf_counter() - started[id(entry)]
                self._journal.compiled(self.program, "", entry.seconds, (), entry.note)
                entry.ready(entry.emitted.function)
        prepared = {id(entry): time.perf_counter() - started[id(entry)] for entry, _ in programs}
        for (entry, program), built in zip(programs, self._builder.build([held for _, held in programs]), strict=True):
            entry.program, entry.artifacts, entry.note = program, built.artifacts, ""
            entry.conditions = self._checkable(built.conditions)
            entry.emitted = self._bucket_function(entry)
            entry.seconds = prepared[id(entry)] + sum(artifact.seconds for artifact in built.artifacts)
            self._journal.compiled(program, entry.emitted.source, entry.seconds, entry.artifacts, entry.note)
            entry.ready(entry.emitted.function)

    def _compile_now(self, entry: Entry) -> Callable[..., Any]:
        """Compile one entry for a call that waits for it; returns its function.

        Raises:
            SizeError: the entry's sizes cannot be made concrete.
        """
        self._compile([entry])
        if entry.emitted is None:
            raise SizeError(entry.note)
        return entry.emitted.function

    def _program_for(self, entry: Entry) -> Program:
        return Pipeline((Concretize(entry.bucket, remaining="keep", hints=entry.hints), Verify()))(self.program)

    def _checkable(self, conditions: Sequence[sympy.Basic]) -> tuple[sympy.Basic, ...]:
        """Return the conditions that a call's arguments can break."""
        # Dynamo checks the capture's own guards before every call of its graph.
        held = {guard.condition for guard in self.program.capture.guards}
        # What no argument of the graph holds can only have come from those guards.
        readable = {symbol for symbol in self.program.capture.hints if cheapest_use(self.program, symbol) is not None}
        return tuple(condition for condition in conditions if condition not in held and symbols_in(condition) <= readable)

    def _bucket_function(self, entry: Entry) -> Emitted:
        """Write the function of a compiled entry; while a profile is taken, one that reads the clock."""
        program, timing = entry.program, None
        assert program is not None  # its pieces were just compiled
        if self._recorder is not None:
            record, number = self._recorder.record, self._number
            names = tuple(piece.name for piece in program.pieces)
            bucket = str(entry.bucket)
            timing = Timing(self._recorder.clock, lambda marks: record(number, bucket, names, marks))
        return bucket_function(
            program, entry.artifacts, entry.conditions, self._refused, entry.counter, hand_on(self.program), timing
        )

    def profile(self, recorder: Recorder | None, number: int) -> None:
        """Have each call recorded from now on, under this number of the graph; with ``None`` no longer."""
        with self._lock:
            self._recorder, self._number = recorder, number
            for entry in (*self.entries, *self.dynamic):
                if entry.program is not None:
                    entry.emitted = self._bucket_function(entry)
                    entry.ready(entry.emitted.function)

    def _sizes(self, args: tuple[Any, ...]) -> dict[sympy.Symbol, Number]:
        values = self._read(args)
        return dict(zip(self._uses, values if len(self._uses) != 1 else (values,), strict=True))

    def _missed(self, args: tuple[Any, ...]) -> Any:
        """Serve a call whose sizes no table holds."""
        sizes = self._sizes(args)
        if self._options.pins_seen and self._uses and self._is_pinnable(sizes):
            with self._lock:
                if len(self.entries) < self._options.max_seen:
                    self._enter(Entry(Bucket.of(self._by_name(sizes)), sizes))
                    return self.emitted.function(*args)
        named = self._by_name(sizes, fixed=True)
        text = ", ".join(f"{name}={size}" for name, size in named.items()) or "no axis"
        self.misses[text] += 1
        on_miss = self._options.on_miss
        self._journal.missed(text, on_miss)
        if on_miss == "error" and named:
            pinned = "; ".join(str(bucket) for bucket in self._options.buckets) or "none"
            raise MissError(
                f"no bucket serves {text} and on_miss='error'. Pinned: {pinned}. Add the size, or choose on_miss='dynamic'."
            )
        if on_miss == "eager":
            return self._run_as_captured(*args)
        return self._run_dynamic(sizes, args)

    def _is_pinnable(self, sizes: Mapping[sympy.Symbol, Number]) -> bool:
        """Whether the sizes by the axes' names say all: not where two expressions of one axis differ in this call."""
        try:
            binding = binding_for(self.program.capture, self._by_name(sizes))
        except SizeError:
            return False
        return all(sizes.get(symbol, value) == value for symbol, value in binding.items())

    def _refused(self, args: tuple[Any, ...]) -> Any:
        """Serve a call that a bucket was found for, but whose other sizes break a condition of its compilation."""
        return self._run_dynamic(self._sizes(args), args)

    def _run_dynamic(self, sizes: Mapping[sympy.Symbol, Number], args: tuple[Any, ...]) -> Any:
        with self._lock:
            for entry in self.dynamic:
                if entry.emitted is not None and entry.accepts(sizes):
                    return entry.emitted.function(*args)
            if len(self.dynamic) >= MAX_DYNAMIC:
                self._journal.uncompiled(f"none of {MAX_DYNAMIC} symbolic compilations serves its sizes")
                return self._run_as_captured(*args)
            entry = Entry(Bucket(), {}, hints=sizes)
            function = self._compile_now(entry)
            self.dynamic.append(entry)
        return function(*args)

    def _by_name(self, sizes: Mapping[sympy.Symbol, Number], fixed: bool = False) -> dict[str, Number]:
        """Return sizes by the axes' names; with ``fixed`` also the axes that the user named and the capture fixed."""
        axes = self.program.axes
        named = {axis.name: sizes[axis.symbol] for axis in axes if axis.symbol in sizes and axis.symbol is not None}
        if fixed:
            named |= {axis.name: axis.hint for axis in axes if axis.is_fixed and axis.named}
        return named

    def _run_overlapping(self, *args: Any) -> Any:
        if not self._warned_of_overlap:
            self._warned_of_overlap = True
            warnings.warn(
                "a call's arguments share memory that the graph writes to, which the captured call's did not; such calls "
                "run uncompiled.",
                FxbucketWarning,
                stacklevel=2,
            )
        return self._run_as_captured(*args)

    def _run_as_captured(self, *args: Any) -> Any:
        self.eager_calls += 1
        recorder = self._recorder
        if recorder is None:
            return self.program.capture.module.forward(*args)
        started = recorder.clock()
        result = self.program.capture.module.forward(*args)
        recorder.record(self._number, "as captured", (), [started, recorder.clock()])
        return result
