"""Progress of compilation: what compiles now, for whoever watches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """One step of compilation.

    Attributes:
        bucket: the bucket's text.
        piece: the piece's name.
        done: how many artifacts of this batch are finished.
        total: how many the batch holds.
        hits: how many of the finished ones came from the store.
    """

    bucket: str
    piece: str
    done: int
    total: int
    hits: int = 0


Watcher = Callable[[Progress], None]

_log = logging.getLogger("fxbucket.compile")

_watcher: ContextVar[Watcher | None] = ContextVar("fxbucket_progress", default=None)


def report(progress: Progress) -> None:
    """Tell the watcher, if there is one, and Python's logging."""
    _log.debug("compiling %s %s, %d of %d", progress.bucket, progress.piece, progress.done + 1, progress.total)
    watcher = _watcher.get()
    if watcher is not None:
        watcher(progress)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """While the context is open, ``watcher`` is told of every artifact that is compiled in this thread."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def _counted(watcher: Watcher) -> Watcher:
    """Return a watcher that counts on from batch to batch: pinned sizes are one, what serves the others is the next."""
    earlier = total = 0
    last: int | None = None

    def watch(step: Progress) -> None:
        nonlocal earlier, total, last
        if last is None or step.done <= last:
            earlier, total = total, total + step.total
        last = step.done
        watcher(replace(step, done=earlier + step.done, total=total))

    return watch


@contextlib.contextmanager
def progress_bar() -> Iterator[None]:
    """While the context is open, show compilation as a bar on the terminal; plain lines where there is none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:

        def tell(step: Progress) -> None:
            console.print(f"compiling {step.bucket} {step.piece} ({step.done + 1}/{step.total})")

        with watched(_counted(tell)):
            yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("capturing", total=None)

        def show(step: Progress) -> None:
            bar.update(task, completed=step.done, total=step.total, description=f"{step.bucket} {step.piece}")

        with watched(_counted(show)):
            yield
        bar.update(task, completed=bar.tasks[0].total or 0, description="compiled")
