"""An entry of the store as bytes: what it is of and how long its parts are, under checksums."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from fxbucket.passes.errors import StoreError

_MAGIC = b"fxbucket artifact 1\n"


@dataclass(frozen=True)
class Stored:
    """One artifact as it is stored.

    Attributes:
        payload: what the compiler's own save wrote.
        libraries: shared libraries that the artifact loads, by their path in the compiler's folder, with ``/``.
        about: plain facts for people and for the reader, by name, of what JSON knows: a title, conditions, seconds of
            compilation.
    """

    payload: bytes
    libraries: Mapping[str, bytes] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Header:
    """What stands before an entry's content.

    Attributes:
        key: the artifact's key.
        checksum: a SHA-256 of all that follows, in hexadecimal.
        payload: the bytes of the payload.
        libraries: the bytes of each library, in their order.
        about: as in :class:`Stored`.
    """

    key: str
    checksum: str
    payload: int
    libraries: Mapping[str, int]
    about: Mapping[str, Any]

    def __post_init__(self) -> None:
        is_well_formed = (
            isinstance(self.key, str)
            and isinstance(self.checksum, str)
            and isinstance(self.about, dict)
            and isinstance(self.libraries, dict)
            and all(type(size) is int and size >= 0 for size in (self.payload, *self.libraries.values()))
        )
        if not is_well_formed:
            raise ValueError("the header is not of the form that is written")


def seal(key: str, stored: Stored) -> bytes:
    """Return an entry as bytes, with nothing in them that depends on when or where they are written.

    Raises:
        StoreError: the path of a library leads out of the compiler's folder.
    """
    for name in stored.libraries:
        _check_inside(f"the artifact {key}", name)
    body = b"".join([stored.payload, *stored.libraries.values()])
    sizes = {name: len(content) for name, content in stored.libraries.items()}
    header = Header(key, _sha(body), len(stored.payload), sizes, dict(stored.about))
    # The order of libraries is that of their bytes, so the keys are not sorted.
    line = json.dumps(asdict(header)).encode()
    return _MAGIC + _sha(line).encode() + b"\n" + line + b"\n" + body


def unseal(name: object, key: str, file: BinaryIO) -> Stored:
    """Return the entry that a file holds.

    Args:
        name: what errors call it.
        key: the key that it must be of.
        file: read to its end.

    Raises:
        StoreError: it is damaged, cut off, of another key or of another version of the store.
    """
    header = read_header(name, key, file)
    body = file.read()
    if _sha(body) != header.checksum or len(body) != header.payload + sum(header.libraries.values()):
        raise StoreError(f"{name} is damaged.")
    content = io.BytesIO(body)
    payload = content.read(header.payload)
    return Stored(payload, {path: content.read(size) for path, size in header.libraries.items()}, header.about)


def read_header(name: object, key: str, file: BinaryIO) -> Header:
    """Return the header of an entry, and leave the file where its content begins; the arguments are those of :func:`unseal`.

    Raises:
        StoreError: it is damaged, cut off, of another key or of another version of the store.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise StoreError(f"{name} is not of this version of the store.")
    checksum, line = file.readline(_CHECKSUM_LINE), file.readline()
    if not line.endswith(b"\n") or checksum != _sha(line[:-1]).encode() + b"\n":
        raise StoreError(f"{name} is damaged.")
    try:
        header = Header(**json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{name} has a header that cannot be read: {error}.") from error
    if header.key != key:
        raise StoreError(f"{name} is of another key, {header.key[:80]!r}.")
    for path in header.libraries:
        _check_inside(name, path)
    return header


_CHECKSUM_LINE = 65


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_inside(name: object, path: str) -> None:
    parts = path.split("/")
    if (
        not all(parts)
        or {".", ".."} & set(parts)
        or any(letter in path for letter in "\\\0:")
        or PurePosixPath(path).is_absolute()
    ):
        raise StoreError(f"{name} holds a library outside its folder: {path!r}.")
