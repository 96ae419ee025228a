"""The errors that fxbucket raises: one root, one kind a cause.

Every message names the thing that is wrong, what was possible, and the mend. Each kind also subclasses the builtin that
a caller would expect, so that ``except ValueError`` keeps working for those who do not know fxbucket.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FxbucketError(Exception):
    """Root of every error that fxbucket raises on purpose."""


class OptionError(FxbucketError, ValueError):
    """An option is unknown, has the wrong type, or holds a value that it cannot hold."""


class AxisError(FxbucketError, ValueError):
    """An axis expression cannot be read, names no argument, or does not give an int."""


class SizeError(FxbucketError, ValueError):
    """A size lies outside its axis's range, breaks a guard of the capture, or is missing."""


class BoundaryError(FxbucketError, ValueError):
    """A boundary matches no node of the graph, or two boundaries cannot be combined."""


class CaptureError(FxbucketError, RuntimeError):
    """The model could not be captured as one graph, or the graph holds a value that fxbucket cannot carry."""


class PreconditionError(FxbucketError, RuntimeError):
    """A pass was given a program that an earlier pass should have prepared."""


class PassError(FxbucketError, RuntimeError):
    """A pass failed or broke its own promise; the message names the passes that ran before it."""


class VerifyError(FxbucketError, RuntimeError):
    """Metadata that a pass wrote differs from metadata derived afresh."""


class CompileError(FxbucketError, RuntimeError):
    """A compiler failed on one piece for one bucket."""


class CopyError(FxbucketError, ValueError):
    """A tensor does not fit the memory that it is to be copied into."""


class GradientError(FxbucketError, RuntimeError):
    """Gradients are recorded through an op that has no backward."""


class StoppedError(FxbucketError, RuntimeError):
    """Compilation was given up because the process ends."""


class StoreError(FxbucketError, RuntimeError):
    """The artifact store cannot be used, or an entry of it is damaged, foreign or open to others."""


class MissError(FxbucketError, LookupError):
    """No bucket serves a call's sizes and ``on_miss="error"`` was asked for."""


class RankMismatchError(FxbucketError, RuntimeError):
    """Ranks would not run the same: their sizes, models or options differ; the message names ranks and what they have."""


class MissingRankError(FxbucketError, TimeoutError):
    """A rank did not come in time, or is gone; the message names it as far as that can be known."""


class StaleResultError(FxbucketError, RuntimeError):
    """A result in memory of a CUDA graph was read after a later call wrote over it."""


class UnsupportedTorchError(FxbucketError, ImportError):
    """The installed torch is older than the oldest that fxbucket supports."""


class DrawingError(FxbucketError, RuntimeError):
    """A picture could not be laid out or written."""


class FxbucketWarning(UserWarning):
    """Something still gives right results, but not the way that was asked for."""


def nearest(name: str, possible: Iterable[str], limit: int = 8) -> str:
    """Return the clause of an error message that says what was possible, nearest match first.

    Args:
        name: what the user wrote.
        possible: every name that would have been right.
        limit: how many names to list at most; the rest are counted.
    """
    names = sorted(set(possible))
    if not names:
        return "nothing was possible here"
    close = difflib.get_close_matches(name, names, n=limit, cutoff=0.5)
    if close and len(names) > limit:
        more = len(names) - len(close)
        return f"did you mean {_listed(close)}? ({more} more are possible)" if more else f"did you mean {_listed(close)}?"
    ordered = close + [other for other in names if other not in close]
    shown = ordered[:limit]
    rest = len(ordered) - len(shown)
    return f"possible: {_listed(shown)}" + (f" and {rest} more" if rest else "")


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
