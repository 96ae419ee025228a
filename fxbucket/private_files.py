"""Files and folders that are this user's alone: whether one is, and how a file is written all at once."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Literal


def who_else_may_write(facts: os.stat_result) -> Literal["", "its owner", "others"]:
    """Return who beside this user could have written a file or folder with these facts; an empty text for nobody."""
    if not hasattr(os, "geteuid"):
        return ""  # Windows keeps user folders private by other means
    if facts.st_uid != os.geteuid():
        return "its owner"
    return "others" if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def write_whole(path: Path, content: bytes, prefix: str, suffix: str) -> None:
    """Write a file in the place of whatever was there, all at once, for this user alone.

    A writer that is killed leaves a file of another name beside it.

    Args:
        path: the file.
        content: all of it.
        prefix: how that other name begins.
        suffix: how it ends.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
