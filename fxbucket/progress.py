"""Progress of compilation: what compiles now, for whoever watches."""

from __future__ import annotations

import contextlib
import logging
import time
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
        batch: a number that the steps of one batch have in common.
    """

    bucket: str
    piece: str
    done: int
    total: int
    hits: int = 0
    batch: int = 0


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
    steps: dict[int, Progress] = {}

    def watch(step: Progress) -> None:
        steps[step.batch] = step
        # Of an earlier batch, the last step was told before it was done.
        earlier = [other for other in steps.values() if other.batch != step.batch]
        watcher(
            replace(
                step,
                done=step.done + sum(other.total for other in earlier),
                total=step.total + sum(other.total for other in earlier),
                hits=step.hits + sum(other.hits for other in earlier),
            )
        )

    return watch


@contextlib.contextmanager
def progress_bar() -> Iterator[None]:
    """While the context is open, show compilation as a bar on the terminal; plain lines where there is none.

    Both tell the bucket, the piece, how many of how many, how many came from the store, and the time that passed and that
    is left, as far as the artifacts that are done tell it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        started = time.monotonic()

        def tell(step: Progress) -> None:
            console.print(_line(step, time.monotonic() - started), markup=False, highlight=False, soft_wrap=True)

        with watched(_counted(tell)):
            yield
        return
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[hits]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("capturing", total=None, hits="")

        def show(step: Progress) -> None:
            about = f"{step.bucket} {step.piece}"
            bar.update(task, completed=step.done, total=step.total, description=about, hits=_hits(step))

        with watched(_counted(show)):
            yield
        bar.update(task, completed=bar.tasks[0].total or 0, description="compiled")


def _line(step: Progress, elapsed: float) -> str:
    """Return a step as a line of text; the first has nothing to reckon from."""
    parts = [f"compiling {step.bucket} {step.piece} ({step.done + 1}/{step.total})", f"{elapsed:.0f} s"]
    if step.done > step.hits:
        left = elapsed / (step.done - step.hits) * (step.total - step.done)
        parts.append(f"about {left:.0f} s left")
    return ", ".join([*parts, _hits(step)] if step.hits else parts)


def _hits(step: Progress) -> str:
    return f"{step.hits} from the store" if step.hits else ""
