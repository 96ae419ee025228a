"""The Python that a capture ran through: known by its bytecode, so that another process can tell that it has the same."""

from __future__ import annotations

import functools
import gc
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Inlined:
    """One function that a capture ran through.

    Attributes:
        module: the module whose file holds it; empty for code that was generated.
        name: its qualified name.
        digest: a SHA-256 of its bytecode and of all functions in it, in hexadecimal.
    """

    module: str
    name: str
    digest: str


def inlined(codes: Iterable[types.CodeType]) -> tuple[Inlined, ...]:
    """Return what to know code by; torch's own is left out, which the version of torch tells."""
    homes = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    own = (_TORCH, "<fxbucket ")
    found = {
        Inlined(homes.get(code.co_filename) or "", code.co_qualname, digest_of(code))
        for code in codes
        if not code.co_filename.startswith(own)
    }
    return tuple(sorted(found, key=lambda item: (item.module, item.name, item.digest)))


_TORCH = str(Path(torch.__file__).parent)


def missing_here(wanted: Iterable[Inlined]) -> list[str]:
    """Return, for people, each function that is not in this process as it was where the model was captured."""
    missing = []
    rest = []
    for item in wanted:
        named = _named(item)
        if named is None:
            rest.append(item)
        elif digest_of(named) != item.digest:
            missing.append(_text(item))
    if rest:
        names = {item.name for item in rest}
        # A function within a function, or a generated one, is found by no name; but it is there, if what made it was run.
        present = {(code.co_qualname, digest_of(code)) for code in _all_code() if code.co_qualname in names}
        missing += [_text(item) for item in rest if (item.name, item.digest) not in present]
    return missing


def _text(item: Inlined) -> str:
    return f"{item.module}.{item.name}" if item.module else item.name


def _named(item: Inlined) -> types.CodeType | None:
    """Return the code that a name leads to in this process; ``None`` where it leads to no plain function."""
    held: object = sys.modules.get(item.module)
    for part in item.name.split("."):
        held = vars(held).get(part) if isinstance(held, (type, types.ModuleType)) else None
    if isinstance(held, (staticmethod, classmethod)):
        held = held.__func__
    if not isinstance(held, types.FunctionType) or held.__code__.co_qualname != item.name:
        return None
    return held.__code__


def _all_code() -> Iterator[types.CodeType]:
    for held in gc.get_objects():
        if type(held) is types.FunctionType:
            yield from _with_inner(held.__code__)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


@functools.lru_cache(maxsize=4096)
def digest_of(code: types.CodeType) -> str:
    """Return a SHA-256 of what code does, in hexadecimal; where it stands in its file does not count."""
    sha = hashlib.sha256(code.co_code)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount)
    sha.update(repr((*names, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)).encode())
    for constant in code.co_consts:
        sha.update(f"{_constant(constant)};".encode())
    return sha.hexdigest()


def _constant(constant: object) -> str:
    if isinstance(constant, types.CodeType):
        return digest_of(constant)
    if isinstance(constant, frozenset):
        return f"frozenset {sorted(map(_constant, constant))}"
    if isinstance(constant, tuple):
        return f"tuple {[_constant(item) for item in constant]}"
    return f"{type(constant).__name__} {constant!r}"
