"""One captured graph at run time: its buckets' functions, and what serves a call that none of them does."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from fxbucket.background import Background
from fxbucket.build import Builder
from fxbucket.emit import Emitted
from fxbucket.entries import EntryCompiler
from fxbucket.entry import Entry, SavedEntry
from fxbucket.graph_pool import GraphPool
from fxbucket.graph_recorder import GraphRecorder
from fxbucket.journal import Journal
from fxbucket.lookup import Lookup, sizes_text
from fxbucket.options import ON_MISS, Options, check_choice
from fxbucket.padding import Padding
from fxbucket.passes.admit import binding_for, settled
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.captured import value_of
from fxbucket.passes.coverage import holes, overlaps
from fxbucket.passes.errors import FxbucketWarning, MissError, SizeError, StoppedError
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import Number, symbols_in
from fxbucket.profile import Recorder
from fxbucket.uncompiled import runner_of

MAX_DYNAMIC = 8
"""How many symbolic compilations one graph gets; each later call that none of them serves runs the graph as it is."""


class Dispatcher:
    """Serves the calls of one captured graph.

    Attributes:
        program: the graph, cut and with its admitted buckets; symbolic.
        entries: every bucket that was admitted or pinned, in order.
        dynamic: the symbolic compilations that serve misses.
        lookup: which entry serves which sizes.
        missed: how often no bucket served a combination of sizes, by the axes' names.
        eager_calls: how many calls ran the captured graph as it is.
        emitted: the look-up in front of the buckets.
        function: serves a call: the look-up itself, or what comes before it.
        padding: pads calls; ``None`` where no call may be.
        graphs: records the buckets; ``None`` where that was not asked for.
    """

    def __init__(
        self,
        program: Program,
        options: Options,
        builder: Builder,
        journal: Journal,
        background: Background | None = None,
        recordings: GraphPool | None = None,
    ) -> None:
        self.program = program
        self._journal = journal
        self.entries: list[Entry] = []
        self.dynamic: list[Entry] = []
        self.missed: Counter[tuple[tuple[str, Number], ...]] = Counter()
        self.eager_calls = 0
        self._run_uncompiled = runner_of(program.capture.module)
        self._options = options
        self._lock = threading.RLock()
        self._background = background
        self._compiler = EntryCompiler(program, builder, journal, self._refused, self._run_as_captured, debug=options.debug)
        self.graphs: GraphRecorder | None = None
        if recordings is not None:
            self.graphs = GraphRecorder(program, options, recordings, self.entries)
            self._compiler.graphs = self.graphs.recorded
        self._warned_of_overlap = self._warned_of_failure = False
        self.lookup = Lookup(program)
        if options.on_miss == "pad":
            self.lookup.padded = {}
        self.emitted = self._prepare()
        self.function = self.emitted.function
        may_pad = options.may_pad and not program.capture.refusal
        self.padding = Padding(program, options, journal, self.entries, self.lookup) if may_pad else None

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
            if self._background is None:
                self._compiler.compile(waiting)
                return
            for entry in waiting:
                # One by one, so that each bucket serves calls as soon as it is ready.
                self._compile_behind(entry)

    def restore(self, saved: Sequence[SavedEntry]) -> None:
        """Have the entries that a saved model had; all that they need is made now."""
        with self._lock:
            known = {entry.bucket: entry for entry in self.entries}
            entries = []
            for item in saved:
                entry = None if item.is_dynamic else known.get(item.bucket)
                if entry is None:
                    entry = Entry(item.bucket, item.binding)
                    if item.is_dynamic:
                        self.dynamic.append(entry)
                    else:
                        self._enter(entry)
                entry.hints = item.hints
                entries.append(entry)
            self._compiler.compile(entries)

    def _compile_behind(self, entry: Entry) -> None:
        """Compile an entry while calls go on; where that fails, its calls run as they were captured from then on."""
        assert self._background is not None  # who calls this has looked

        def task() -> None:
            try:
                self._compiler.compile([entry])
            except StoppedError:
                return
            except Exception as error:  # nobody waits for this thread, so whatever it is must be told here
                self._compiler.give_up(entry, f"{type(error).__name__}: {error}")
            if entry.emitted is None:
                self._compiler.give_up(entry, entry.note)
            if entry.program is None and not self._warned_of_failure:
                self._warned_of_failure = True
                text = f"bucket {entry.bucket} runs uncompiled, and so may others that explain() lists: {entry.note}"
                warnings.warn(text, FxbucketWarning, stacklevel=2)

        self._background.submit(task)

    def _prepare(self) -> Emitted:
        """Return the look-up in front of the buckets; their functions come as they are compiled."""
        capture = self.program.capture
        if capture.refusal:
            warnings.warn(f"a graph runs as it is, uncompiled: {capture.refusal}.", FxbucketWarning, stacklevel=2)
            return Emitted(self._run_as_captured, "")
        held = symbols_in([(value_of(node), node.args, node.kwargs) for node in capture.module.graph.nodes])
        for decision in self.program.decisions:
            if decision.admitted:
                binding, bounds = settled(capture, decision.bucket)
                # A graph of a model that breaks need not hold all that an axis names; it depends on what it holds.
                needed = held & binding.keys()
                if self.lookup.uses.keys() >= {*needed, *bounds.ranges, *symbols_in(bounds.conditions)}:
                    self._enter(Entry(self.lookup.seen_of(decision.bucket), binding, bounds=bounds))
        if self._options.pins_seen:
            self.lookup.pin_any()
        return self.lookup.emitted(self._missed, self._run_overlapping)

    def _enter(self, entry: Entry) -> None:
        """Make an entry known to the look-up; its first call compiles it if nothing did before."""

        def first_call(*args: Any) -> Any:
            if self._background is not None:
                return self._run_dynamic(self.lookup.sizes(args), args)
            self._compile_for_call(entry, self.lookup.sizes(args))
            assert entry.run is not None  # the compilation has put it there
            return entry.run(*args)

        enter = self.lookup.add_range if entry.bucket.ranges else self.lookup.pin
        if enter(entry, first_call):
            self.entries.append(entry)

    def _compile_for_call(self, entry: Entry, sizes: Mapping[sympy.Symbol, Number]) -> None:
        with self._lock:
            if entry.emitted is None:
                # What the entry leaves open is best tried at the sizes that do occur beside it.
                entry.hints = sizes
                self._compiler.compile_now(entry)

    def unready(self, sizes: Mapping[sympy.Symbol, Number]) -> Callable[[], object] | None:
        """Return what compiles all that a call of these sizes runs; ``None`` where all of it is compiled, or nothing is."""
        if self.program.capture.refusal:
            return None
        sizes = self.target(sizes)
        serving = self.lookup.find(sizes)
        entry = next((known for known in self.entries if known.run is serving), None)
        if entry is not None and entry.emitted is None:
            return lambda: self._compile_for_call(entry, sizes)
        if entry is None:
            if self._pins(sizes):
                return lambda: self._compile_for_call(self._pin(sizes), sizes)
            if self._answer(self.lookup.all_by_name(sizes)) in ("eager", "error"):
                return None
        elif entry.accepts(sizes):
            return None
        is_served = any(known.emitted is not None and known.accepts(sizes) for known in self.dynamic)
        return None if is_served or len(self.dynamic) >= MAX_DYNAMIC else lambda: self._new_dynamic(sizes)

    def profile(self, recorder: Recorder | None, number: int) -> None:
        """Have each call recorded from now on, under this number of the graph; with ``None`` no longer."""
        with self._lock:
            self._compiler.profile(recorder, number, (*self.entries, *self.dynamic))

    def _missed(self, args: tuple[Any, ...]) -> Any:
        """Serve a call whose sizes no table holds."""
        sizes = self.lookup.sizes(args)
        if self.graphs is not None:
            self.graphs.note(args)
        if self._pins(sizes):
            with self._lock:
                # Another thread may have taken the last place meanwhile.
                if self._pins(sizes):
                    entry = self._pin(sizes)
                    if self._background is not None:
                        self._compile_behind(entry)
                    return self.emitted.function(*args)
        named = self.lookup.all_by_name(sizes)
        text = sizes_text(named)
        on_miss = self._answer(named)
        self._journal.missed(text, on_miss)
        if on_miss == "pad" and self.padding is not None:
            padded = self.padding.function(sizes, args)
            if padded is not None:
                return padded(*args)
        self.missed[tuple(named.items())] += 1
        if on_miss == "error" and named:
            pinned = "; ".join(str(bucket) for bucket in self._options.buckets) or "none"
            raise MissError(
                f"no bucket serves {text} and on_miss='error'. Pinned: {pinned}. Add the size, or choose on_miss='dynamic'."
            )
        if on_miss == "eager":
            return self._run_as_captured(*args)
        return self._run_dynamic(sizes, args)

    @property
    def coverage(self) -> tuple[str, ...]:
        """Where the ranges that were asked for overlap, and what lies between them."""
        buckets = self._options.buckets
        return (*map(str, overlaps(buckets)), *map(str, holes(buckets)))

    @property
    def unpadded(self) -> tuple[str, ...]:
        """Why calls were not padded though that was asked for."""
        return () if self.padding is None else tuple(self.padding.refusals)

    def target(self, sizes: Mapping[sympy.Symbol, Number]) -> Mapping[sympy.Symbol, Number]:
        """Return the sizes at which calls of these sizes run: those of the bucket that they are padded to, or their own."""
        if self.padding is None or self.lookup.find(sizes) is not None or self._options.pins_seen:
            return sizes
        entry = self.padding.next_larger(sizes) if self._answer(self.lookup.all_by_name(sizes)) == "pad" else None
        return sizes if entry is None else {**sizes, **entry.binding}

    def _answer(self, named: Mapping[str, Number]) -> str:
        """Return what ``on_miss`` says of these sizes."""
        on_miss = self._options.on_miss
        if not callable(on_miss):
            return on_miss
        answer = on_miss(named)  # type: ignore[arg-type]
        check_choice(f"the answer of on_miss({dict(named)})", answer, ON_MISS)
        return answer

    def _pins(self, sizes: Mapping[sympy.Symbol, Number]) -> bool:
        """Whether sizes that missed are pinned from now on."""
        has_room = self._options.pins_seen and len(self.entries) < self._options.max_seen
        return has_room and bool(self.lookup.uses) and self._is_pinnable(sizes)

    def _pin(self, sizes: Mapping[sympy.Symbol, Number]) -> Entry:
        entry = Entry(Bucket.of(self.lookup.by_name(sizes)), sizes)
        self._enter(entry)
        return entry

    def _is_pinnable(self, sizes: Mapping[sympy.Symbol, Number]) -> bool:
        """Whether the sizes by the axes' names say all: not where two expressions of one axis differ in this call."""
        try:
            binding = binding_for(self.program.capture, self.lookup.by_name(sizes))
        except SizeError:
            return False
        return all(sizes.get(symbol, value) == value for symbol, value in binding.items())

    def _refused(self, args: tuple[Any, ...]) -> Any:
        """Serve a call that a bucket was found for, but whose other sizes break a condition of its compilation."""
        return self._run_dynamic(self.lookup.sizes(args), args)

    def _run_dynamic(self, sizes: Mapping[sympy.Symbol, Number], args: tuple[Any, ...]) -> Any:
        function = None
        with self._lock:
            for entry in self.dynamic:
                if entry.emitted is not None and entry.accepts(sizes):
                    function = entry.emitted.function
                    break
            else:
                function = self._new_dynamic(sizes)
        if function is None:
            return self._run_as_captured(*args)
        return function(*args)

    def _new_dynamic(self, sizes: Mapping[sympy.Symbol, Number]) -> Callable[..., Any] | None:
        """Compile the graph symbolically with these sizes as hints; ``None`` where the call had better not wait for it."""
        if len(self.dynamic) >= MAX_DYNAMIC:
            self._journal.uncompiled(f"none of {MAX_DYNAMIC} symbolic compilations serves its sizes")
            return None
        entry = Entry(Bucket(), {}, hints=sizes)
        if self._background is None:
            function = self._compiler.compile_now(entry)
            self.dynamic.append(entry)
            return function
        if self._options.on_miss not in ("eager", "error") and all(known.emitted is not None for known in self.dynamic):
            self.dynamic.append(entry)
            self._compile_behind(entry)
        return None

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
        recorder = self._compiler.recorder
        if recorder is None:
            return self._run_uncompiled(*args)
        started = recorder.clock()
        result = self._run_uncompiled(*args)
        recorder.record(self._compiler.number, "as captured", (), [started, recorder.clock()])
        return result
