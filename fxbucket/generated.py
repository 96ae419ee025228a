"""Functions made from source text, whose lines tracebacks and torch can find."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterable
from typing import Any

_numbers = itertools.count(1)


def function_from(source: str, name: str, title: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """Compile source text and return one function of it.

    Args:
        source: Python that defines the function.
        name: the function's name.
        title: what stands in tracebacks in the place of a file name.
        namespace: the function's globals.
    """
    filename = f"<fxbucket {title} #{next(_numbers)}>"
    # Without an entry here torch 2.11 takes a function for a builtin and captures it by position.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)
    made: Callable[..., Any] = namespace[name]
    return made


def free_prefix(names: Iterable[str]) -> str:
    """Return a prefix that none of these names has, for what generated code calls its own."""
    own, taken = "_", tuple(names)
    while any(name.startswith(own) for name in taken):
        own += "_"
    return own
