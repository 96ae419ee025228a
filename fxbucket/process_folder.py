"""A folder for files that this process makes for itself, such as the libraries that its artifacts load."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import filelock

_PREFIX, _ALIVE = "fxbucket-run-", "alive"


def process_folder(name: str) -> Path:
    """Return a folder that goes when the process ends; what runs may still read files in it until then."""
    root = _root(os.getpid())
    if not _is_own(root):
        # Some systems remove what lies among temporary files for days; anybody may have made it anew.
        _root.cache_clear()
        root = _root(os.getpid())
    folder = root / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def _root(pid: int) -> Path:
    _remove_those_left()
    root = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with contextlib.suppress(OSError, NotImplementedError):  # without a lock, nobody removes it but this process
        lock = filelock.FileLock(root / _ALIVE, is_singleton=True)
        lock.acquire(timeout=0)
        _locks.append(lock)
    # The children of a fork inherit this, and must leave their parent's folder alone.
    atexit.register(lambda: shutil.rmtree(root, ignore_errors=True) if os.getpid() == pid else None)
    return root


_locks: list[filelock.BaseFileLock] = []


def _is_own(folder: Path) -> bool:
    try:
        facts = folder.lstat()
    except OSError:
        return False
    is_mine = not hasattr(os, "geteuid") or facts.st_uid == os.geteuid()
    return is_mine and stat.S_ISDIR(facts.st_mode) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _remove_those_left() -> None:
    """Remove the folders of processes that were killed: nobody holds their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        alive = folder / _ALIVE
        with contextlib.suppress(OSError, NotImplementedError, filelock.Timeout):
            if not _is_own(folder) or time.time() - alive.lstat().st_mtime < _BEGUN_BY_NOW:
                continue
            with filelock.FileLock(alive, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)


_BEGUN_BY_NOW = 60.0
"""Seconds after which a process that made a folder has locked it."""
