"""Work that no call waits for: one thread a model, and an end that the interpreter can wait for."""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable

from fxbucket.torch_compat import compiling_behind

_open: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Runs tasks one after the other in a thread of its own, which starts with the first task."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task when those before it are done; it must see to its own errors."""
        with self._changed:
            if self._stopped:
                return
            self._unfinished += 1
            self._tasks.put(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fxbucket-background", daemon=True)
                self._thread.start()
                _open.add(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all tasks are done, at most ``timeout`` seconds; returns whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout)

    @property
    def stopped(self) -> bool:
        """Whether the process ends, so that a long task had better give up."""
        return self._stopped

    def stop(self) -> None:
        """Begin no other task; the one that runs may finish, or give up."""
        with self._changed:
            self._stopped = True
        self._tasks.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            try:
                if not self._stopped:
                    with compiling_behind():
                        task()
            finally:
                with self._changed:
                    self._unfinished -= 1
                    self._changed.notify_all()


_PATIENCE = 60.0
"""Seconds for which the end of the interpreter waits for one artifact: a thread that it leaves in a compiler would crash."""


@atexit.register
def _stop_all() -> None:
    for background in list(_open):
        background.stop()
