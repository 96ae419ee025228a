"""What is kept of each capture of a model, so that it can be saved later."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from fxbucket.frame import before_capture_ends
from fxbucket.inlined import Inlined, inlined
from fxbucket.serialization_compat import captured_code, guarded_classes, guards_as_bytes, traced_code


@dataclass(eq=False)
class Record:
    """One capture, as far as its graph does not tell.

    Attributes:
        guards: what Dynamo checks before each call of it, as bytes; ``None`` until the capture has ended.
        inlined: the functions that it ran through, and the classes that it guards.
        bytecode: what Dynamo made of the captured function, where it was loaded and not captured.
        scope: the names that the bytecode and the guards look up, where it was loaded.
        reason: why it cannot be saved, or an empty text.
    """

    guards: bytes | None = None
    inlined: tuple[Inlined, ...] = ()
    bytecode: types.CodeType | None = None
    scope: tuple[tuple[str, Any], ...] = ()
    reason: str = "its capture did not end"


def record_capture(state: Any, is_own: bool) -> Record:
    """Return the record of the capture in progress; it is complete when the capture has ended.

    Args:
        state: what :func:`fxbucket.serialization_compat.capture_in_progress` gave.
        is_own: whether ``fxbucket.compile`` made the function that is captured.
    """
    record = Record()
    if state is None or not is_own:
        record.reason = "it was not captured by fxbucket.compile"
        return record
    code = captured_code(state)

    def complete() -> None:
        try:
            record.guards = guards_as_bytes(code, state)
            record.inlined = inlined(traced_code(state), guarded_classes(state))
            record.reason = ""
        except Exception as error:  # torch and pickle say in many ways that something cannot be written
            record.reason = f"its guards cannot be written: {type(error).__name__}: {error}"

    before_capture_ends(complete)
    return record
