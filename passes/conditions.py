"""Conditions on symbols: checked for values, as Python, and as text that can be read back.

Checked with torch 2.11.0, 2.13.0 and 2.14.1; ``torch.utils._sympy`` holds the functions of which torch makes conditions.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from fxbucket.passes.symbolic import Expression, Number, substitute


def holds(condition: Expression, values: Mapping[sympy.Symbol, Number]) -> bool | None:
    """Whether a condition is true for these values; ``None`` when a symbol that it needs has no value."""
    reduced = substitute(condition, values)
    if isinstance(reduced, sympy.Basic):
        return None
    return bool(reduced)


def divides(divisor: int, expression: sympy.Basic) -> sympy.Basic:
    """Return the condition that an expression is a multiple of a number, as torch writes it."""
    from torch.utils._sympy.functions import Mod

    return sympy.Eq(Mod(expression, divisor), 0)


def python_condition(condition: sympy.Basic) -> str:
    """Return a condition as Python source over its symbols' names: ``s77 % 8 == 0``."""
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(condition))


def condition_to_text(condition: sympy.Basic) -> str:
    """Return a condition as text that :func:`condition_from_text` reads back exactly."""
    return str(sympy.srepr(condition))


def condition_from_text(text: str) -> sympy.Basic:
    """Return the condition that a text of :func:`condition_to_text` stands for.

    Raises:
        ValueError: the text is of another kind.
    """
    from torch.utils._sympy import functions, numbers

    # Torch has a Min, Max and infinity of its own, which stand before those of sympy.
    known = {
        name: held
        for name, held in (vars(functions) | vars(numbers)).items()
        if isinstance(held, type) and issubclass(held, sympy.Basic)
    }
    try:
        found = eval(text, {"__builtins__": {}, **vars(sympy), **known})
    except Exception as error:
        raise ValueError(f"{text!r} is not a condition: {error}") from error
    if not isinstance(found, sympy.Basic):
        raise ValueError(f"{text!r} is not a condition.")
    return found
