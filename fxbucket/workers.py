"""Compilation in other processes: Inductor's front half is Python, so threads would take turns.

A task carries a piece's form and nothing else of the model; a worker answers with the artifact's bytes, or puts them into
the store that it shares with the caller.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import loky
import torch

from fxbucket.environment import Environment, environment
from fxbucket.inductor import inductor_settings, with_inductor_settings
from fxbucket.passes.errors import FxbucketError, StoreError
from fxbucket.passes.form import Form
from fxbucket.sealed import Stored
from fxbucket.store import Store
from fxbucket.stored import compile_to_store


@dataclass(frozen=True)
class Task:
    """One artifact to be compiled elsewhere.

    Attributes:
        key: the artifact's key.
        form: the piece; portable.
        options: Inductor's configuration for it.
        settings: every setting of Inductor as it is in the caller.
        environment: what the worker's environment must be.
        threads: torch's threads in the caller, which kernels are generated for.
        precision: the caller's precision of float32 products.
        folder: the store's folder, or ``None`` to have the bytes sent back.
        title: the piece and its bucket, for people.
    """

    key: str
    form: Form
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    environment: Environment
    threads: int
    precision: str
    folder: str | None
    title: str


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        kind: ``"made"``; ``"busy"``: another process is making it; ``"unsuitable"``: this process cannot make it;
            ``"failed"``: the compiler raised an error.
        stored: the artifact, where no store was given.
        note: the reason for all but ``"made"``.
        seconds: how long the compiler took; 0 where somebody else had made it by then.
    """

    kind: Literal["made", "busy", "unsuitable", "failed"]
    stored: Stored | None = None
    note: str = ""
    seconds: float = 0.0


def task_for(key: str, form: Form, options: Mapping[str, Any], now: Environment, folder: str | None, title: str) -> Task:
    """Return the task that makes an artifact in a process like this one; the arguments are the fields of :class:`Task`."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return Task(key, form, dict(options), inductor_settings(), now, threads, precision, folder, title)


def compile_task(task: Task) -> Outcome:
    """Compile one task; runs in a worker."""
    torch.set_num_threads(task.threads)
    torch.set_float32_matmul_precision(task.precision)
    with with_inductor_settings(task.settings):
        different = task.environment.differences(environment(task.options))
        if different:
            return Outcome("unsuitable", note=f"the worker is another kind of process: {'; '.join(different[:3])}")
        try:
            if task.folder is None:
                return _compiled(task, None)
            store = Store(Path(task.folder))
            with store.lock(task.key, wait=False) as held:
                if not held:
                    return Outcome("busy")
                with contextlib.suppress(StoreError):
                    if store.get(task.key) is not None:
                        return Outcome("made")
                return _compiled(task, store)
        except (AttributeError, ImportError) as error:
            return Outcome("unsuitable", note=f"the worker does not know an op or function of it: {error}")
        except StoreError as error:
            return Outcome("unsuitable", note=str(error))
        except FxbucketError as error:
            return Outcome("failed", note=str(error))


def _compiled(task: Task, store: Store | None) -> Outcome:
    compiled, stored, reason = compile_to_store(task.form, task.options, task.title)
    if stored is None:
        return Outcome("unsuitable", note=reason)
    if store is None:
        return Outcome("made", stored, seconds=compiled.seconds)
    store.put(task.key, stored)
    return Outcome("made", seconds=compiled.seconds)


class WorkerDiedError(FxbucketError, RuntimeError):
    """A worker process ended in the middle of a task."""


class WorkerPool(Executor):
    """Processes of this machine, one task each at a time, so that one that dies is known by its task.

    They start at their first task, do not import the caller's ``__main__``, and end when idle for a while.
    """

    def __init__(self, num_workers: int, idle_seconds: float = 60.0) -> None:
        self._idle_seconds = idle_seconds
        self._lanes: queue.SimpleQueue[loky.ProcessPoolExecutor | None] = queue.SimpleQueue()
        for _ in range(num_workers):
            self._lanes.put(None)
        self._threads = concurrent.futures.ThreadPoolExecutor(num_workers, thread_name_prefix="fxbucket-worker")
        self._running: set[loky.ProcessPoolExecutor] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``function`` in one of the processes; the future raises :class:`WorkerDiedError` where that one died."""
        return self._threads.submit(self._run, function, args, kwargs)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lane = self._lanes.get()
        try:
            if self._stopped:
                raise concurrent.futures.CancelledError
            if lane is None:
                lane = loky.ProcessPoolExecutor(max_workers=1, timeout=self._idle_seconds)
                with self._lock:
                    self._running.add(lane)
            return lane.submit(function, *args, **kwargs).result()
        except concurrent.futures.BrokenExecutor as error:
            if lane is not None:
                lane.shutdown(wait=False, kill_workers=True)
                with self._lock:
                    self._running.discard(lane)
            lane = None
            raise WorkerDiedError(f"the worker died: {str(error).splitlines()[0]}") from error
        finally:
            self._lanes.put(lane)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; with ``cancel_futures`` at once, in the middle of what they do."""
        self._stopped = True
        with self._lock:
            lanes = list(self._running)
        for lane in lanes:
            lane.shutdown(wait=False, kill_workers=cancel_futures)
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)


class Workers:
    """Chooses what compiles beside this process.

    Attributes:
        choice: a number of processes of this machine (0 and 1: none), an executor of the user's, or ``None``: as many as
            there are cores, where there is enough to do that starting them pays.
        behind: whether this process has calls to serve meanwhile, so that one worker is better than none.
    """

    def __init__(self, choice: int | Executor | None, behind: bool = False) -> None:
        self.choice = choice
        self.behind = behind

    def executor(self, num_tasks: int) -> Executor | None:
        """Return what is to run this many tasks; ``None`` where this process had better do it alone."""
        if _is_executor(self.choice):
            given: Executor = self.choice  # type: ignore[assignment]
            return given if num_tasks else None
        worth = min(_num_cores(), num_tasks // _WORTH_A_WORKER, _MOST_WORKERS)
        wanted = min(self.choice if isinstance(self.choice, int) else worth, num_tasks)
        if self.choice is None and self.behind:
            wanted = max(wanted, min(1, num_tasks))
            return _pool(wanted) if wanted else None
        return _pool(wanted) if wanted >= 2 else None

    def stop(self, futures: Sequence[Future[Any]]) -> None:
        """Cancel tasks that nobody waits for any more; processes of this machine are ended in the middle of theirs."""
        for future in futures:
            future.cancel()
        if not _is_executor(self.choice):
            _stop_pools()


_WORTH_A_WORKER = 4
"""How many artifacts pay for the start of one more process."""
_MOST_WORKERS = 16

_pools: dict[int, WorkerPool] = {}
_pools_lock = threading.Lock()


def _is_executor(choice: object) -> bool:
    """Whether something can be used like a ``concurrent.futures.Executor``; some libraries' do not subclass it."""
    return callable(getattr(choice, "submit", None))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _pool(num_workers: int) -> WorkerPool:
    """Return this process's pool of a size; its workers serve every model."""
    with _pools_lock:
        if num_workers not in _pools:
            _pools[num_workers] = WorkerPool(num_workers)
        return _pools[num_workers]


def _stop_pools() -> None:
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.shutdown(wait=False, cancel_futures=True)
