"""Processes of this machine that run functions: one each at a time, so that one that dies is known by its task."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

import loky

from fxbucket.passes.errors import FxbucketError, StoppedError


class WorkerDiedError(FxbucketError, RuntimeError):
    """A worker process ended in the middle of a task."""


class ProgramEndsError(StoppedError):
    """The program ends, and its workers with it."""


_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class WorkerPool(Executor):
    """Processes of this machine, one task each at a time.

    They start at their first task, do not import the caller's ``__main__``, end when idle for a while, and end at once, in
    the middle of what they do, when the program ends.

    Args:
        num_workers: how many processes.
        idle_seconds: how long one waits for its next task.
    """

    def __init__(self, num_workers: int, idle_seconds: float = 60.0) -> None:
        self._num_workers = num_workers
        self._idle_seconds = idle_seconds
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lanes: set[loky.ProcessPoolExecutor] = set()
        self._busy: set[loky.ProcessPoolExecutor] = set()
        self._num_threads = 0
        self._lock = threading.Lock()
        self._stopped: StoppedError | None = None

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``function`` in one of the processes; the future raises :class:`WorkerDiedError` where that one died.

        Raises:
            StoppedError: the pool is shut down.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            if self._num_threads < self._num_workers:
                self._num_threads += 1
                # Not the standard library's pool of threads: at the end of the program that would wait for all tasks.
                threading.Thread(target=self._serve, name=f"fxbucket-worker-{self._num_threads}", daemon=True).start()
            self._calls.put((future, function, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; with ``cancel_futures`` at once, in the middle of what they do."""
        self._stop(StoppedError("the worker processes have ended"), wait, cancel_futures)

    def _stop(self, reason: StoppedError, wait: bool, cancel_futures: bool) -> None:
        with self._lock:
            self._stopped = self._stopped or reason
            lanes = list(self._lanes)
        waiting = []
        with contextlib.suppress(queue.Empty):
            while cancel_futures:
                call = self._calls.get_nowait()
                if call is not None:
                    waiting.append(call[0])
        for future in waiting:
            future.cancel()
        for _ in range(self._num_threads):
            self._calls.put(None)
        if cancel_futures:
            for lane in lanes:
                # One that has nothing to do ends by itself, and takes what it holds of the system along.
                lane.shutdown(wait=wait, kill_workers=lane in self._busy)

    def _serve(self) -> None:
        """Run calls one after the other in one process, and in another when that one dies."""
        lane: loky.ProcessPoolExecutor | None = None
        while (call := self._calls.get()) is not None:
            if call[0].set_running_or_notify_cancel():
                lane = self._run(lane, *call)
            del call  # what nobody waits for any more is not held while there is nothing to do
        if lane is not None:
            lane.shutdown(wait=False)

    def _run(
        self,
        lane: loky.ProcessPoolExecutor | None,
        future: Future[Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> loky.ProcessPoolExecutor | None:
        """Run one call; returns the process that may run the next."""
        try:
            is_new = lane is None
            lane = lane or self._new_lane()
            self._busy.add(lane)
            answer = lane.submit(function, *args, **kwargs)
            if is_new:
                self._end_with_program()
            future.set_result(answer.result())
        except BaseException as error:  # whatever the function raised, even what would end this thread
            future.set_exception(self._told(error))
            if isinstance(error, BrokenExecutor):
                self._end(lane)
                return None
        finally:
            self._busy.discard(lane)
        return lane

    def _told(self, error: BaseException) -> BaseException:
        if self._stopped is not None:
            return self._stopped
        if isinstance(error, BrokenExecutor):
            reason = " ".join(str(error).split()) or type(error).__name__
            return WorkerDiedError(f"the worker died: {reason[:400]}")
        return error

    def _new_lane(self) -> loky.ProcessPoolExecutor:
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            lane = loky.ProcessPoolExecutor(max_workers=1, timeout=self._idle_seconds)
            self._lanes.add(lane)
            return lane

    def _end(self, lane: loky.ProcessPoolExecutor | None) -> None:
        if lane is not None:
            lane.shutdown(wait=False, kill_workers=True)
            with self._lock:
                self._lanes.discard(lane)

    def _end_with_program(self) -> None:
        """See to it that the end of the program does not wait for what workers do."""
        pid = os.getpid()

        def end() -> None:
            if os.getpid() == pid:  # a fork ends without its parent's workers
                self._stop(ProgramEndsError("the program ends"), wait=False, cancel_futures=True)

        # loky waits for its workers in functions of this kind, which atexit's come after. The last one is called first, and
        # loky adds one when an executor takes its first call.
        with contextlib.suppress(RuntimeError):  # the program ends already
            threading._register_atexit(end)  # type: ignore[attr-defined]
