"""Artifacts on disk, by content: an entry is one file, and a damaged or foreign one is no entry.

Loading an artifact executes code, so a store lies in a folder that only its user can write to, and an entry is looked at
only after its checksum is right. What that trusts is said in docs/security.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from fxbucket.passes.errors import StoreError

_MAGIC = b"fxbucket artifact 1\n"
_SUFFIX = ".artifact"


@dataclass(frozen=True)
class Stored:
    """One artifact as it is stored.

    Attributes:
        payload: what the compiler's own save wrote.
        libraries: shared libraries that the artifact loads, by their path in the compiler's folder.
        about: plain facts for people and for the reader: a title, conditions, seconds of compilation.
    """

    payload: bytes
    libraries: Mapping[str, bytes] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EntryFacts:
    """What a listing tells of one entry: its key, file, bytes, when it was last used, and what it says of itself."""

    key: str
    path: Path
    size: int
    used: float
    about: Mapping[str, Any]
    fault: str = ""


def default_folder() -> Path:
    """Return ``$FXBUCKET_CACHE_DIR``, or the folder that the system keeps for this user's caches."""
    chosen = os.environ.get("FXBUCKET_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("fxbucket", appauthor=False))


class Store:
    """A folder of artifacts.

    Raises:
        StoreError: the folder is not private to this user, or cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(folder, os.stat(folder))
        except OSError as error:
            raise StoreError(f"the store {folder} cannot be used: {error}; choose another folder with cache=.") from error

    def get(self, key: str) -> Stored | None:
        """Return an entry; ``None`` where there is none.

        Raises:
            StoreError: there is a file, but it is damaged, foreign or not private.
        """
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                _check_private(path, os.fstat(file.fileno()))
                content = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"the entry {path} cannot be read: {error}.") from error
        entry = _decoded(path, key, content)
        with contextlib.suppress(OSError):
            os.utime(path)  # what was used last goes last when the store is pruned
        return entry

    def put(self, key: str, entry: Stored) -> int:
        """Write an entry in the place of any other with its key, all at once; returns its bytes.

        Raises:
            StoreError: it could not be written; nothing is left of it.
        """
        path = self._path(key)
        content = _encoded(key, entry)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A writer that is killed leaves a file of another name, which nobody reads and prune() takes away.
            handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".unfinished")
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
        except OSError as error:
            raise StoreError(f"the entry {path} cannot be written: {error}.") from error
        return len(content)

    @contextlib.contextmanager
    def lock(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Hold a key, so that no other process makes its artifact meanwhile.

        A holder that dies lets go. Where the folder cannot hold locks, every process makes the artifact for itself.

        Args:
            key: the artifact's key.
            wait: wait until whoever holds it lets go; otherwise give ``False`` at once.
        """
        path = self._path(key).with_suffix(".lock")
        lock = filelock.FileLock(path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if wait else 0)
        except filelock.Timeout:
            yield False
            return
        except (OSError, NotImplementedError):
            yield True
            return
        try:
            yield True
        finally:
            lock.release()

    def entries(self) -> Iterator[EntryFacts]:
        """Yield what each entry tells, in order of their keys; its content is not checked."""
        for path in sorted(self.folder.glob(f"??/*{_SUFFIX}")):
            try:
                facts = path.stat()
                with open(path, "rb") as file:
                    header = _header(path, file.read(_MOST_HEADER))[0]
                yield EntryFacts(path.stem, path, facts.st_size, facts.st_mtime, header.get("about", {}))
            except (OSError, StoreError) as error:
                yield EntryFacts(path.stem, path, 0, 0.0, {}, str(error))

    def verify(self) -> Iterator[EntryFacts]:
        """Yield each entry with what is wrong with it, an empty text where nothing is."""
        for facts in self.entries():
            fault = facts.fault
            if not fault:
                try:
                    self.get(facts.key)
                except StoreError as error:
                    fault = str(error)
            yield EntryFacts(facts.key, facts.path, facts.size, facts.used, facts.about, fault)

    def prune(self, max_bytes: int) -> list[EntryFacts]:
        """Remove damaged entries and what writers left, then those used longest ago until ``max_bytes`` are kept."""
        for path in self.folder.glob("??/*.unfinished"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _FINISHED_BY_NOW:
                    path.unlink()
        kept = 0
        removed = []
        for facts in sorted(self.entries(), key=lambda facts: facts.used, reverse=True):
            if facts.fault or kept + facts.size > max_bytes:
                with contextlib.suppress(OSError):
                    facts.path.unlink()
                removed.append(facts)
            else:
                kept += facts.size
        return removed

    def clear(self) -> int:
        """Remove every entry; returns how many there were."""
        return len(self.prune(0))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_SUFFIX}"


_MOST_HEADER = 1 << 20
_FINISHED_BY_NOW = 3600.0
"""Seconds after which a file that was never finished belongs to no living writer."""


def _check_private(path: Path, facts: os.stat_result) -> None:
    """Raise where somebody else could have written what lies here."""
    if not hasattr(os, "geteuid"):
        return  # Windows keeps user folders private by other means
    if facts.st_uid != os.geteuid():
        raise StoreError(f"{path} belongs to another user (uid {facts.st_uid}); choose a folder of your own with cache=.")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(f"{path} can be written by others; run `chmod go-w {path}`, or choose another folder with cache=.")


def _encoded(key: str, entry: Stored) -> bytes:
    body = b"".join([entry.payload, *entry.libraries.values()])
    header = {
        "key": key,
        "checksum": hashlib.sha256(body).hexdigest(),
        "payload": len(entry.payload),
        "libraries": {name: len(content) for name, content in entry.libraries.items()},
        "about": dict(entry.about),
    }
    line = json.dumps(header, sort_keys=True).encode()
    return _MAGIC + hashlib.sha256(line).hexdigest().encode() + b"\n" + line + b"\n" + body


def _header(path: Path, content: bytes) -> tuple[Mapping[str, Any], int]:
    """Return an entry's header and where its body begins."""
    magic, checksum, line, *_ = [*content.split(b"\n", 3), b"", b"", b""]
    if magic + b"\n" != _MAGIC:
        raise StoreError(f"the entry {path} is not of this version of the store.")
    if hashlib.sha256(line).hexdigest().encode() != checksum:
        raise StoreError(f"the entry {path} is damaged.")
    found: Mapping[str, Any] = json.loads(line)
    return found, len(magic) + len(checksum) + len(line) + 3


def _decoded(path: Path, key: str, content: bytes) -> Stored:
    header, start = _header(path, content)
    body = content[start:]
    if header["key"] != key:
        raise StoreError(f"the entry {path} is of another key.")
    if hashlib.sha256(body).hexdigest() != header["checksum"]:
        raise StoreError(f"the entry {path} is damaged.")
    payload, rest = body[: header["payload"]], body[header["payload"] :]
    libraries = {}
    for name, size in header["libraries"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise StoreError(f"the entry {path} holds a library outside its folder: {name}.")
        libraries[name], rest = rest[:size], rest[size:]
    return Stored(payload, libraries, header["about"])
