"""Buckets of one captured graph → functions: made concrete, verified, built, and put where the look-up finds them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from fxbucket.build import Builder
from fxbucket.emit import Emitted, Timing, bucket_function
from fxbucket.entry import Entry
from fxbucket.fragments import hand_on
from fxbucket.journal import Journal
from fxbucket.passes.bound import Bound
from fxbucket.passes.concretize import Concretize
from fxbucket.passes.discover import cheapest_use
from fxbucket.passes.errors import FxbucketWarning, SizeError, VerifyError
from fxbucket.passes.pipeline import Pipeline
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import symbols_in
from fxbucket.passes.verify import Verify
from fxbucket.profile import Recorder
from fxbucket.torch_compat import without_saved_tensor_hooks


def _sizing(entry: Entry) -> Concretize | Bound:
    """Return the pass that makes a program an entry's."""
    if entry.bucket.ranges:
        return Bound(entry.bucket, hints=entry.hints)
    return Concretize(entry.bucket, remaining="keep", hints=entry.hints)


@dataclass(eq=False)
class EntryCompiler:
    """Compiles the entries of one graph.

    Attributes:
        program: the graph, cut and with its admitted buckets; symbolic.
        builder: makes the artifacts.
        journal: is told.
        refused: serves a call that breaks a condition of the entry that was found for it.
        as_captured: runs the captured graph as it is.
        graphs: wraps the function of a pinned entry so that it is recorded as a CUDA graph, where that was asked for.
        recorder: gets the record of each call, while a profile is taken.
        number: the graph's number in such records.
        debug: whether artifacts are called with all their wrappers and checks.
    """

    program: Program
    builder: Builder
    journal: Journal
    refused: Callable[[tuple[Any, ...]], Any]
    as_captured: Callable[..., Any]
    graphs: Callable[[Entry, Callable[..., Any]], Callable[..., Any]] | None = None
    recorder: Recorder | None = None
    number: int = 0
    debug: bool = False

    @without_saved_tensor_hooks()
    def compile(self, entries: Sequence[Entry]) -> None:
        """Compile the pieces of several entries together, and put each one's function in the place that waits for it.

        An entry that cannot be made concrete stays without a function, and its note says why.

        Raises:
            CompileError: a compiler failed.
        """
        programs: list[tuple[Entry, Program, float]] = []
        for entry in entries:
            started = time.perf_counter()
            self.journal.compiling(entry.bucket, len(self.program.pieces))
            try:
                program = Pipeline((_sizing(entry), Verify()))(self.program)
            except SizeError as error:
                # What goes with these sizes does not follow from the calls seen so far: its own first call tells.
                entry.note = str(error)
            except VerifyError as error:
                warnings.warn(f"bucket {entry.bucket} runs uncompiled: {error}", FxbucketWarning, stacklevel=2)
                self.give_up(entry, str(error))
            else:
                programs.append((entry, program, time.perf_counter() - started))
        built = self.builder.build([program for _, program, _ in programs])
        for (entry, program, seconds), done in zip(programs, built, strict=True):
            entry.program, entry.artifacts, entry.note = program, done.artifacts, ""
            entry.conditions = self._checkable(done.conditions, program.assumed)
            entry.seconds = seconds + sum(artifact.seconds for artifact in done.artifacts)
            entry.emitted = self._function(entry)
            self.journal.compiled(entry.bucket, program, entry.emitted.source, entry.seconds, entry.artifacts)
            self._serve(entry)

    def compile_now(self, entry: Entry) -> Callable[..., Any]:
        """Compile one entry for a call that waits for it; returns its function.

        Raises:
            SizeError: the entry's sizes cannot be made concrete.
            CompileError: a compiler failed.
        """
        self.compile([entry])
        if entry.emitted is None:
            raise SizeError(entry.note)
        return entry.run or entry.emitted.function

    def give_up(self, entry: Entry, reason: str) -> None:
        """Have an entry run the captured graph as it is."""
        entry.note = reason
        entry.emitted = Emitted(self.as_captured, "")
        self.journal.compiled(entry.bucket, self.program, "", 0.0, note=reason)
        entry.serve(entry.emitted.function)

    def profile(self, recorder: Recorder | None, number: int, entries: Sequence[Entry]) -> None:
        """Write the functions of these entries anew: with a recorder such that read the clock."""
        self.recorder, self.number = recorder, number
        for entry in entries:
            if entry.program is not None:
                entry.emitted = self._function(entry)
                self._serve(entry)

    def _serve(self, entry: Entry) -> None:
        """Put an entry's function where its calls find it."""
        assert entry.emitted is not None  # it was just made
        function = entry.emitted.function
        # A recording has no places where a clock could be read.
        entry.serve(function if self.graphs is None or self.recorder is not None else self.graphs(entry, function))

    def _function(self, entry: Entry) -> Emitted:
        program, timing = entry.program, None
        assert program is not None  # its pieces were just compiled
        if self.recorder is not None:
            record, number = self.recorder.record, self.number
            names = tuple(piece.name for piece in program.pieces)
            bucket = str(entry.bucket)
            timing = Timing(self.recorder.clock, lambda marks: record(number, bucket, names, marks))
        return bucket_function(
            program,
            entry.artifacts,
            entry.conditions,
            self.refused,
            entry.counter,
            hand_on(self.program),
            timing,
            self.debug,
        )

    def _checkable(self, conditions: Sequence[sympy.Basic], assumed: Sequence[sympy.Basic]) -> tuple[sympy.Basic, ...]:
        """Return the conditions that a call's arguments can break."""
        # Dynamo checks the capture's own guards before every call of its graph, and the look-up what ranges assume.
        held = {*(guard.condition for guard in self.program.capture.guards), *assumed}
        # What no argument of the graph holds can only have come from those guards.
        readable = {symbol for symbol in self.program.capture.hints if cheapest_use(self.program, symbol) is not None}
        return tuple(condition for condition in conditions if condition not in held and symbols_in(condition) <= readable)
