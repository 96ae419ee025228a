"""Artifacts on disk, by content: an entry is one file, and a damaged or foreign one is no entry.

Loading an artifact executes code, so a store lies in a folder that only its user can write to, and an entry is looked at
only after its checksum is right. What that trusts is said in docs/security.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import platformdirs

from fxbucket.passes.errors import StoreError
from fxbucket.private_files import who_else_may_write, write_whole
from fxbucket.sealed import Stored as Stored
from fxbucket.sealed import read_header, seal, unseal

_SUFFIX, _LOCK, _UNFINISHED = ".artifact", ".lock", ".unfinished"
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class EntryFacts:
    """What a listing tells of one entry.

    Attributes:
        key: its key, as its file is named.
        path: its file.
        size: its bytes.
        used: when it was last used, in seconds since 1970.
        about: what it says of itself; see :class:`Stored`.
        fault: why it cannot be used, or an empty text.
    """

    key: str
    path: Path
    size: int
    used: float
    about: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


def default_folder() -> Path:
    """Return ``$FXBUCKET_CACHE_DIR``, or the folder that the system keeps for this user's caches."""
    chosen = os.environ.get("FXBUCKET_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("fxbucket", appauthor=False))


class Store:
    """A folder of artifacts.

    Args:
        folder: made if it is not there; ``~`` is this user's home.

    Raises:
        StoreError: the folder is not private to this user, or cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        try:
            # Neither a later chdir() nor a link that is set anew leads to another folder.
            self.folder = folder.expanduser().resolve()
            _make_private(self.folder)
        except StoreError:
            raise
        except (OSError, ValueError, RuntimeError) as error:  # no home, a NUL in a path, links in a circle
            raise StoreError(f"the store {folder} cannot be used: {error}; choose another folder with cache=.") from error

    def get(self, key: str) -> Stored | None:
        """Return an entry; ``None`` where there is none.

        Raises:
            StoreError: there is a file, but it is damaged, foreign or not private; or this is no key.
        """
        path = self._path(key)
        try:
            with _opened(path) as file:
                stored = unseal(path, key, file)
                used = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}.") from error
        if abs(time.time() - used) > _USED_LATELY:
            with contextlib.suppress(OSError):
                os.utime(path)  # what was used last goes last when the store is pruned
        return stored

    def put(self, key: str, stored: Stored) -> int:
        """Write an entry in the place of any other with its key, all at once; returns its bytes.

        Raises:
            StoreError: it could not be written; nothing is left of it. Or this is no key.
        """
        path = self._path(key)
        content = seal(key, stored)
        try:
            self._make_folder_of(path)
            # What a writer that is killed leaves, nobody reads and prune() takes away.
            write_whole(path, content, "tmp", _UNFINISHED)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}.") from error
        return len(content)

    @contextlib.contextmanager
    def lock(self, key: str, wait: bool = True) -> Iterator[bool]:
        """Hold a key, so that no other process makes its artifact meanwhile.

        A holder that dies lets go. Where the folder cannot hold locks, every process makes the artifact for itself.

        Args:
            key: the artifact's key.
            wait: wait until whoever holds it lets go; otherwise give ``False`` at once.
        """
        path = self._path(key).with_suffix(_LOCK)
        # A lock that is the mere existence of a file would outlive its holder, where another machine cannot know of that.
        lock = filelock.FileLock(path, fallback_to_soft=False)
        held = True
        try:
            self._make_folder_of(path)
            lock.acquire(timeout=-1 if wait else 0)
        except filelock.Timeout:
            held = False
        except (OSError, NotImplementedError, StoreError):
            pass  # put() tells what is wrong with the folder
        try:
            yield held
        finally:
            with contextlib.suppress(OSError):
                lock.release()

    def entries(self) -> Iterator[EntryFacts]:
        """Yield what each entry tells, in order of their keys; its content is not checked."""
        return self._told(lambda path, file: read_header(path, path.stem, file).about)

    def verify(self) -> Iterator[EntryFacts]:
        """Yield each entry with what is wrong with it, an empty text where nothing is; none counts as used by that."""
        return self._told(lambda path, file: unseal(path, path.stem, file).about)

    def prune(self, max_bytes: int) -> list[EntryFacts]:
        """Remove what cannot be used, then what was used longest ago, until no more than ``max_bytes`` are left.

        What writers that were killed left goes too. Damage behind an entry's header is not looked for: see :meth:`verify`.

        Returns:
            The entries that were removed.

        Raises:
            StoreError: something could not be removed.
        """
        self._sweep()
        found = sorted(self.entries(), key=lambda facts: (not facts.fault, facts.used))
        size = sum(facts.size for facts in found)
        removed = []
        for facts in found:
            if not facts.fault and size <= max_bytes:
                break
            _remove(facts.path)
            size -= facts.size
            removed.append(facts)
        return removed

    def clear(self) -> int:
        """Remove every entry; returns how many there were.

        Raises:
            StoreError: something could not be removed.
        """
        return len(self.prune(-1))

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise StoreError(f"{key!r} is no key: a key has 64 hexadecimal digits, in lower case.")
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    def _make_folder_of(self, path: Path) -> None:
        # Somebody may have removed the store since it was opened.
        _make_private(self.folder)
        _make_private(path.parent)

    def _told(self, read: Callable[[Path, BinaryIO], Mapping[str, Any]]) -> Iterator[EntryFacts]:
        for path in sorted(self.folder.glob(f"??/*{_SUFFIX}")):
            size, used, fault = 0, 0.0, ""
            about: Mapping[str, Any] = {}
            try:
                facts = path.lstat()
                size, used = facts.st_size, facts.st_mtime
                if self._path(path.stem) != path:
                    fault = f"{path} lies in the wrong folder."
                with _opened(path) as file:
                    about = read(path, file)
            except FileNotFoundError:
                continue  # another process has pruned it
            except (OSError, StoreError) as error:
                fault = str(error)
            yield EntryFacts(path.stem, path, size, used, about, fault)

    def _sweep(self) -> None:
        """Remove what is left of writers that were killed, and locks that nobody holds."""
        for path in self.folder.glob(f"??/*{_UNFINISHED}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > _FINISHED_BY_NOW:
                    _remove(path)
        for path in self.folder.glob(f"??/*{_LOCK}"):
            if _KEY.fullmatch(path.stem):
                with self.lock(path.stem, wait=False) as held, contextlib.suppress(OSError):
                    if held:
                        path.unlink()


_USED_LATELY = 600.0
"""Seconds in which an entry that is used again is not marked again: a thousand ranks that start read, and do not write."""
_FINISHED_BY_NOW = 3600.0
"""Seconds after which a file that was never finished belongs to no living writer."""


def _make_private(folder: Path) -> None:
    """Make a folder for this user alone if it is not there; raise where somebody else could write to it."""
    # Given to mkdir() with parents, the mode would not be theirs; the parents are the system's or the user's affair.
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_private(folder, folder.lstat())


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open an entry to be read; raise where somebody else could have written it."""
    _check_private(path.parent, path.parent.lstat())
    # Neither follow a link nor wait for the other end of a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise StoreError(f"{path} is not a file.")
        _check_private(path, facts)
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def _check_private(path: Path, facts: os.stat_result) -> None:
    """Raise where somebody else could have written what lies here."""
    if stat.S_ISLNK(facts.st_mode):
        raise StoreError(f"{path} is a link; a store keeps its entries in folders of its own.")
    writer = who_else_may_write(facts)
    if writer == "its owner":
        raise StoreError(f"{path} belongs to another user (uid {facts.st_uid}); choose a folder of your own with cache=.")
    if writer == "others":
        raise StoreError(f"{path} can be written by others; run `chmod go-w {path}`, or choose another folder with cache=.")


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be removed: {error}.") from error
