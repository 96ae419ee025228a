"""Programs of buckets → artifacts: each different piece is made once, from the store, here, or by a worker."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fxbucket.compilers import compile_form, compile_piece, compiler_for
from fxbucket.custom_ops import reasons_to_keep_here
from fxbucket.environment import Environment, environment
from fxbucket.jobs import Built, Job, Made, built
from fxbucket.options import Options
from fxbucket.passes.collectives import is_collective
from fxbucket.passes.errors import FxbucketWarning, StoppedError, StoreError
from fxbucket.passes.form import Form, form_of
from fxbucket.passes.program import Piece, Program
from fxbucket.progress import Progress, report
from fxbucket.store import Store, Stored, default_folder
from fxbucket.stored import compile_to_store, compiling_apart, load_stored
from fxbucket.tasks import Outcome, task_for
from fxbucket.torch_compat import no_other_compilation
from fxbucket.workers import Workers


class Builder:
    """Makes artifacts for one model, and remembers them for its later captures.

    Args:
        options: the model's options.
        stopping: asked between two artifacts; when it says so, :class:`StoppedError` ends the build.
    """

    def __init__(self, options: Options, stopping: Callable[[], bool] = lambda: False) -> None:
        self._options = options
        self._stopping = stopping
        self._pinned_options = {**options.inductor_options, **options.pinned_inductor_options}
        compiler_for(options.compiler, self._pinned_options)  # looks whether Inductor has such options
        self._tuned_seconds = 0.0
        self._is_inductor = options.compiler == "inductor"
        # A callable of the user's may look at names, which are no part of a form.
        self._shares = isinstance(options.compiler, str)
        self._store = self._open_store() if self._is_inductor else None
        self._workers = Workers(options.workers, behind=options.compile_when == "background")
        self._lasting: dict[str, Made] = {}
        self._carried: Mapping[str, Stored] = {}
        self._compiles = True
        self._numbers = itertools.count()
        self._warned: set[str] = set()

    def build(self, programs: Sequence[Program]) -> list[Built]:
        """Make all artifacts of these programs, the largest first, and report the progress of all together.

        Raises:
            CompileError: a compiler failed; what was made before is kept.
            StoppedError: the process ends.
        """
        now = environment(self._options.inductor_options)
        pinned = environment(self._pinned_options) if self._options.pinned_inductor_options else now
        known_forms: dict[int, tuple[Form, str]] = {}
        plans = [[self._job(piece, program, now, pinned, known_forms) for piece in program.pieces] for program in programs]
        jobs: dict[str, Job] = {}
        for job in itertools.chain.from_iterable(plans):
            if job is not None and job.key not in self._lasting:
                jobs.setdefault(job.key, job)
        made = self._make(sorted(jobs.values(), key=lambda job: -len(job.piece.body)), now)
        known = self._lasting | made
        return [built(program, plan, known) for program, plan in zip(programs, plans, strict=True)]

    @property
    def made(self) -> tuple[Made, ...]:
        """Every artifact of this model that equal pieces share."""
        return tuple(self._lasting.values())

    def stored(self, key: str) -> Stored | None:
        """Return an artifact as bytes, where a saved model or the store holds it."""
        return self._carried.get(key) or (self._store.get(key) if self._store is not None else None)

    @contextlib.contextmanager
    def only(self, artifacts: Mapping[str, Stored]) -> Iterator[None]:
        """Use these artifacts; while the context is open, nothing is compiled, and a missing one is an error."""
        self._carried, self._compiles = {**self._carried, **artifacts}, not self._is_inductor
        try:
            yield
        finally:
            self._compiles = True

    def _job(
        self, piece: Piece, program: Program, now: Environment, pinned: Environment, known: dict[int, tuple[Form, str]]
    ) -> Job | None:
        if not piece.is_compiled:
            return None
        options = self._options.inductor_options
        if not self._shares:
            return Job(f"own {next(self._numbers)}", piece, program, None, False, "", options)
        if id(piece.module) not in known:
            # Equal pieces of one program run one graph, which is looked at once.
            form = form_of(piece, program)
            own = reasons_to_keep_here(piece.module, program.capture.ambient) if self._is_inductor else ()
            known[id(piece.module)] = form, "; ".join((*form.local_reasons, *now.local_reasons, *own))
        form, reason = known[id(piece.module)]
        if not form.is_portable and not form.is_static:
            # What a compiler relies on is recorded in the program's own environment.
            return Job(f"own {next(self._numbers)}", piece, program, form, False, "; ".join(form.local_reasons), options)
        key = now.key_of(form.digest)
        if pinned is now or not form.is_static:
            return Job(key, piece, program, form, True, reason, options)
        return Job(pinned.key_of(form.digest), piece, program, form, True, reason, self._pinned_options, key)

    def _make(self, jobs: Sequence[Job], now: Environment) -> dict[str, Made]:
        """Make the artifacts of these jobs; each is remembered as soon as it is there."""
        made: dict[str, Made] = {}
        hits = 0

        def finish(job: Job, result: Made) -> None:
            made[job.key] = result
            if job.is_lasting:
                self._lasting[job.key] = result

        batch = next(self._numbers)

        def tell(job: Job) -> None:
            report(Progress(str(job.program.bucket), job.piece.name, len(made), len(jobs), hits, batch))

        here: deque[Job] = deque()
        away: list[Job] = []
        for job in jobs:
            loaded = self._load(job)
            if loaded is not None:
                tell(job)
                hits += 1
                finish(job, loaded)
            elif self._is_inductor and _may_go_away(job):
                away.append(job)
            else:
                here.append(job)
        notes = self._send(away, here, now, finish, tell)
        tried, pause = 0, _PAUSE
        waited: dict[str, float] = {}
        while here:
            self._check_stopping()
            job = here.popleft()
            result = None
            if job.key in waited:
                # What others have made by now is read without its lock, so that those who wait for it do not queue.
                result = self._load(job)
            else:
                tell(job)
                waited[job.key] = time.monotonic()
            result = result or self._make_here(job, time.monotonic() - waited[job.key] > _PATIENCE)
            if result is None:
                # Another process is at it; meanwhile this one takes what nobody makes.
                here.append(job)
                tried += 1
                if tried >= len(here):
                    time.sleep(pause)
                    tried, pause = 0, min(pause * 2, _LONGEST_PAUSE)
                continue
            tried, pause = 0, _PAUSE
            finish(
                job, replace(result, note=result.note or notes.get(job.key, job.local_reason if self._is_inductor else ""))
            )
        return made

    def _send(
        self,
        away: Sequence[Job],
        here: deque[Job],
        now: Environment,
        finish: Callable[[Job, Made], None],
        tell: Callable[[Job], None],
    ) -> dict[str, str]:
        """Have workers make what they can, and put the rest into ``here``; returns why, by key."""
        executor = self._workers.executor(len(away))
        if executor is None:
            here.extend(away)
            return {}
        notes: dict[str, str] = {}
        folder = None if self._store is None else str(self._store.folder)
        tasks = [task_for(job.key, job.form, job.options, now, folder, job.title) for job in away if job.form is not None]
        with contextlib.closing(self._workers.run(executor, tasks, self._stopping)) as outcomes:
            for number, outcome in outcomes:
                job = away[number]
                tell(job)
                result, note = self._received(job, outcome)
                if result is not None:
                    finish(job, result)
                else:
                    notes[job.key] = note
                    here.append(job)
        return notes

    def _check_stopping(self) -> None:
        if self._stopping():
            raise StoppedError("the process ends; what was not compiled by then is left.")

    def _received(self, job: Job, outcome: Outcome) -> tuple[Made | None, str]:
        if outcome.kind in ("failed", "lost"):
            text = f"{job.title}: {outcome.note}"
            self._warn("worker", f"a worker failed, and this process compiles in its place: {text}")
        if outcome.kind not in ("made", "found"):
            return None, outcome.note
        if outcome.stored is None:
            result = self._load(job)
            if result is None:
                return None, "its worker stored it where this process does not find it"
            return (result if outcome.kind == "found" else replace(result, origin="worker", seconds=outcome.seconds)), ""
        try:
            with no_other_compilation():
                return Made(job, load_stored(outcome.stored), "worker", outcome.seconds), ""
        except Exception as error:  # torch says in many ways that it cannot read an artifact
            self._warn(
                "worker", f"what a worker made cannot be used, and this process compiles it again: {job.title}: {error}"
            )
            return None, f"what its worker made cannot be used: {error}"

    def _load(self, job: Job) -> Made | None:
        if not self._compiles and job.key not in self._carried:
            raise StoreError(f"{job.title} is not among the saved artifacts; save the model again.")
        if job.local_reason or not job.is_lasting:
            return None
        started = time.perf_counter()
        try:
            stored = self.stored(job.key)
            with no_other_compilation():
                compiled = None if stored is None else load_stored(stored)
        except Exception as error:  # torch says in many ways that it cannot read an artifact
            if not self._compiles:
                raise StoreError(f"{job.title}: torch cannot read the saved artifact: {error}") from error
            text = str(error) if isinstance(error, StoreError) else f"{job.title}: {type(error).__name__}: {error}"
            self._warn("read", f"an artifact in the store cannot be used and is compiled again: {text}")
            return None
        return None if compiled is None else Made(job, compiled, "loaded", time.perf_counter() - started)

    def _make_here(self, job: Job, is_impatient: bool) -> Made | None:
        """Compile a job in this process; ``None`` where another process is at it, unless it was for too long."""
        with no_other_compilation():
            if not job.untuned_key:
                return self._compile_here(job, is_impatient)
            most = self._options.tuning_seconds
            if most is not None and self._tuned_seconds >= most:
                untuned = replace(job, key=job.untuned_key, options=self._options.inductor_options, untuned_key="")
                made = self._load(untuned) or self._compile_here(untuned, is_impatient)
                return made and replace(
                    made, job=job, note=made.note or f"not tuned: the {most:g} seconds for that were spent"
                )
            made = self._compile_here(job, is_impatient)
            if made is not None and made.origin == "compiled":
                self._tuned_seconds += made.seconds
            return made

    def _compile_here(self, job: Job, is_impatient: bool) -> Made | None:
        store = self._store
        compiler = compiler_for(self._options.compiler, job.options)
        if store is None or job.form is None or job.local_reason:
            # What must not be stored must not come from torch's own caches either.
            with compiling_apart() if self._is_inductor and job.local_reason else contextlib.nullcontext():
                if job.form is None or not job.form.is_portable:
                    compiled = compile_piece(job.piece, job.program, compiler)
                else:
                    compiled = compile_form(job.form, compiler, job.title)
            return Made(job, compiled, "compiled", compiled.seconds)
        with store.lock(job.key, wait=False) as held:
            if not held and not is_impatient:
                return None
            found = self._load(job)
            if found is not None:
                return found
            compiled, stored, note = compile_to_store(job.form, job.options, job.title)
            if stored is not None:
                try:
                    store.put(job.key, stored)
                except StoreError as error:
                    note = str(error)
                    self._warn("write", f"artifacts are not stored: {error}")
            return Made(job, compiled, "compiled", compiled.seconds, note)

    def _open_store(self) -> Store | None:
        cache = self._options.cache
        if cache is None:
            return None
        try:
            return Store(default_folder() if cache == "default" else Path(cache))
        except StoreError as error:
            warnings.warn(f"artifacts are not stored: {error}", FxbucketWarning, stacklevel=2)
            return None

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(text, FxbucketWarning, stacklevel=2)


def _may_go_away(job: Job) -> bool:
    """Whether another process may compile a job."""
    if job.local_reason or job.form is None:
        return False
    # What is tuned is measured, which must not be beside others; and no worker is in the process groups of this rank.
    return not job.untuned_key and not any(map(is_collective, job.piece.module.graph.nodes))


_PAUSE = 0.05
"""Seconds between two looks at what other processes make; twice as many after each look that found nothing, up to:"""
_LONGEST_PAUSE = 1.0
_PATIENCE = 600.0
"""Seconds after which an artifact is made here too: whoever is at it may be suspended, or hang."""
