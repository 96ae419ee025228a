"""Chooses which processes compile beside this one: Inductor's front half is Python, so threads would take turns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait

from fxbucket.passes.errors import OptionError, StoppedError
from fxbucket.stored import first_line
from fxbucket.tasks import Outcome, Task, compile_task
from fxbucket.worker_pool import ProgramEndsError, WorkerPool


class Workers:
    """Chooses what compiles beside this process.

    Attributes:
        choice: a number of processes of this machine (0 and 1: none), an executor of the user's, or ``None``: as many as
            this rank has cores to itself, where there is enough to do that starting them pays.
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
        worth = min(max(_num_cores() // _num_ranks_here(), 1), num_tasks // _WORTH_A_WORKER, _MOST_WORKERS)
        wanted = min(self.choice if isinstance(self.choice, int) else worth, num_tasks)
        if self.choice is None and self.behind:
            wanted = max(wanted, min(1, num_tasks))
            return _pool(wanted) if wanted else None
        return _pool(wanted) if wanted >= 2 else None

    def run(self, executor: Executor, tasks: Sequence[Task], stopping: Callable[[], bool]) -> Generator[tuple[int, Outcome]]:
        """Have tasks done elsewhere; yields each one's place among them, and its outcome, as it comes.

        Where the iteration ends early, tasks that wait are cancelled, and processes of this machine are ended in the
        middle of theirs; close it, so that this happens at once.

        Args:
            executor: what :meth:`executor` gave.
            tasks: what is to be done.
            stopping: asked now and then whether nobody waits any more.

        Raises:
            OptionError: the executor does not give futures of the standard library.
            StoppedError: nobody waits any more.
        """
        futures: dict[Future[Outcome], int] = {}
        try:
            for number, task in enumerate(tasks):
                try:
                    future = executor.submit(compile_task, task)
                except Exception as error:  # another library's executor says in its own ways that it has ended
                    note = f"the executor did not take it: {first_line(error)}"
                    yield number, Outcome("unsuitable" if isinstance(error, StoppedError) else "lost", note=note)
                    continue
                if not isinstance(future, Future):
                    raise OptionError(
                        f"workers={executor!r} gives futures of {type(future).__module__}.{type(future).__qualname__}; give "
                        f"an executor whose submit() returns a concurrent.futures.Future."
                    )
                futures[future] = number
            while futures:
                if stopping():
                    raise StoppedError("the process ends; what was not compiled by then is left.")
                for future in wait(futures, timeout=_LOOK_UP, return_when=FIRST_COMPLETED).done:
                    yield futures.pop(future), self._outcome(future)
        except BaseException:
            for future in futures:
                future.cancel()
            if not _is_executor(self.choice):
                _stop_pools()
            raise

    def _outcome(self, future: Future[Outcome]) -> Outcome:
        try:
            return future.result()
        except (StoppedError, CancelledError) as error:
            if self.behind and isinstance(error, ProgramEndsError):
                raise  # nobody waits for what is compiled behind the calls' back
            return Outcome("unsuitable", note="the worker processes were ended")
        except BaseException as error:  # the worker's own, even what would end this process
            return Outcome("lost", note=first_line(error))


_LOOK_UP = 0.5
"""Seconds after which a wait for workers looks whether it is still wanted."""
_WORTH_A_WORKER = 4
"""How many artifacts pay for the start of one more process."""
_MOST_WORKERS = 16

# By the process too: a fork inherits pools whose processes are not its own.
_pools: dict[tuple[int, int], WorkerPool] = {}
_pools_lock = threading.Lock()


def _is_executor(choice: object) -> bool:
    """Whether something can be used like a ``concurrent.futures.Executor``; some libraries' do not subclass it."""
    return callable(getattr(choice, "submit", None))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _num_ranks_here() -> int:
    """Return how many processes of this machine torchrun started with this one; each would take all cores for itself."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(told), 1) if told.isdecimal() else 1


def _pool(num_workers: int) -> WorkerPool:
    """Return this process's pool of a size; its workers serve every model."""
    key = (os.getpid(), num_workers)
    with _pools_lock:
        if key not in _pools:
            _pools[key] = WorkerPool(num_workers)
        return _pools[key]


def _stop_pools() -> None:
    with _pools_lock:
        pools = [_pools.pop(key) for key in list(_pools) if key[0] == os.getpid()]
    for pool in pools:
        pool.shutdown(wait=False, cancel_futures=True)
