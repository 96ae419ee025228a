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
    """One function that a capture ran through, or one class whose methods it may have looked up.

    Attributes:
        module: the module whose file holds it; empty for code that was generated.
        name: its qualified name.
        digest: a SHA-256 of its bytecode and of all functions in it, in hexadecimal.
        leads_to: the same of what the name leads to in its module, such as what a decorator made of it; empty where it
            leads to nothing, and of a class.
        is_class: whether it is a class: then the digest is of all methods that it has and inherits.
    """

    module: str
    name: str
    digest: str
    leads_to: str = ""
    is_class: bool = False


def inlined(codes: Iterable[types.CodeType], classes: Iterable[type]) -> tuple[Inlined, ...]:
    """Return what to know functions and classes by.

    Torch's nested functions and its classes are left out, which its version tells; a function of torch that was replaced
    under its name is told like any other.
    """
    homes = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    found: set[Inlined] = set()
    for code in codes:
        module, name = homes.get(code.co_filename) or "", code.co_qualname
        leads_to = held_digest(_held(module, name))
        if not code.co_filename.startswith("<fxbucket ") and (leads_to or not code.co_filename.startswith(_TORCH)):
            found.add(Inlined(module, name, digest_of(code), leads_to))
    for kind in classes:
        if not _is_builtin(kind):
            found.add(Inlined(kind.__module__, kind.__qualname__, class_digest(kind), is_class=True))
    return tuple(sorted(found, key=lambda item: (item.module, item.name, item.digest)))


_TORCH = str(Path(torch.__file__).parent)


def missing_here(wanted: Iterable[Inlined]) -> list[str]:
    """Return, for people, each function and class that is not in this process as it was where the model was captured."""
    missing = []
    unnamed = []
    for item in wanted:
        text = f"{item.module}.{item.name}" if item.module else item.name
        held = _held(item.module, item.name)
        if item.is_class:
            if not isinstance(held, type) or class_digest(held) != item.digest:
                missing.append(text)
        elif held_digest(held) != item.leads_to:
            missing.append(text)
        elif item.digest not in item.leads_to:
            unnamed.append((item, text))
    if unnamed:
        names = {item.name for item, _ in unnamed}
        # A function within a function, or a generated one, is found by no name; but it is there, if what made it was run.
        present = {(code.co_qualname, digest_of(code)) for code in _all_code() if code.co_qualname in names}
        missing += [text for item, text in unnamed if (item.name, item.digest) not in present]
    return missing


def _held(module: str, name: str) -> object:
    """Return what a qualified name leads to in a module; ``None`` where it leads to nothing."""
    held: object = sys.modules.get(module)
    for part in name.split("."):
        held = vars(held).get(part) if isinstance(held, (type, types.ModuleType)) else None
    return held


def held_digest(held: object) -> str:
    """Return a SHA-256 of a function, of those that it closes over or wraps, in hexadecimal; empty for anything else."""
    return "".join(dict.fromkeys(_digests(held, set())))


def _digests(held: object, seen: set[int]) -> Iterator[str]:
    if id(held) in seen:
        return
    seen.add(id(held))
    if isinstance(held, types.FunctionType):
        yield digest_of(held.__code__)
        for cell in held.__closure__ or ():
            try:
                yield from _digests(cell.cell_contents, seen)
            except ValueError:  # the cell is empty
                continue
    elif isinstance(held, (staticmethod, classmethod)):
        yield from _digests(held.__func__, seen)
    elif isinstance(held, property):
        for part in (held.fget, held.fset, held.fdel):
            yield from _digests(part, seen)
    elif hasattr(held, "__wrapped__") and not isinstance(held, (type, types.ModuleType, torch.nn.Module)):
        yield from _digests(held.__wrapped__, seen)


def _is_builtin(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "builtins")


def class_digest(kind: type) -> str:
    """Return a SHA-256 of all methods that a class has and inherits, in hexadecimal.

    Its other attributes are guarded. Torch's own classes count by name: torch puts methods of its own in the place of
    theirs when something is first compiled.
    """
    sha = hashlib.sha256()
    for base in kind.__mro__:
        sha.update(f"class {base.__module__}.{base.__qualname__};".encode())
        if _is_builtin(base):
            continue
        for name, held in sorted(vars(base).items()):
            found = held_digest(held)
            if found:
                sha.update(f"{name} {found};".encode())
    return sha.hexdigest()


def _all_code() -> Iterator[types.CodeType]:
    for held in gc.get_objects():
        if type(held) is types.FunctionType:
            yield from _with_inner(held.__code__)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


@functools.lru_cache(maxsize=1 << 14)
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
