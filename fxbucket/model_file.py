"""A saved model as a file: a header that says what it was made for, and a content that is looked at only when all fits.

Reading the content executes code, so a file that somebody else could have written is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fxbucket.passes.errors import StoreError
from fxbucket.private_files import who_else_may_write, write_whole

_MAGIC = b"fxbucket model 1\n"


@dataclass(frozen=True)
class ModelFile:
    """A saved model.

    Attributes:
        about: what it was made for, of what JSON knows; read before anything else.
        content: the rest; only :mod:`fxbucket.saving` knows what it means.
    """

    about: Mapping[str, Any]
    content: bytes


def write_model(path: Path, file: ModelFile) -> None:
    """Write a saved model in the place of whatever was there, all at once, readable and writable for this user alone.

    Raises:
        StoreError: it cannot be written; what was there stays.
    """
    header = json.dumps({"checksum": _sha(file.content), "about": file.about}, sort_keys=True).encode()
    whole = b"".join([_MAGIC, _sha(header).encode(), b"\n", header, b"\n", file.content])
    try:
        write_whole(path, whole, f".{path.name}-", ".unfinished")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}.") from error


def read_model(path: Path) -> ModelFile:
    """Return a saved model; its content is what was written, but nothing says yet that it fits this process.

    Raises:
        StoreError: there is no such file, others may write to it, or it is damaged or of another version.
    """
    try:
        with open(path, "rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            whole = file.read()
    except OSError as error:
        raise StoreError(f"the saved model {path} cannot be read: {error}.") from error
    if not whole.startswith(_MAGIC):
        raise StoreError(f"{path} is not a model that this version of fxbucket saved; save it again with this version.")
    checksum, header, content = [*whole[len(_MAGIC) :].split(b"\n", 2), b"", b""][:3]
    damaged = StoreError(f"the saved model {path} is damaged; save it again.")
    if _sha(header).encode() != checksum:
        raise damaged
    found = json.loads(header)
    if _sha(content) != found["checksum"]:
        raise damaged
    return ModelFile(found["about"], content)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check_private(path: Path, facts: os.stat_result) -> None:
    writer = who_else_may_write(facts)
    if writer == "its owner":
        raise StoreError(f"{path} belongs to another user (uid {facts.st_uid}); loading it would run that user's code.")
    if writer == "others":
        raise StoreError(f"{path} can be written by others, and loading runs its code; run `chmod go-w {path}`.")
