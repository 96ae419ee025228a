"""Axes, sizes, buckets and numbers of bytes as texts of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from fxbucket.passes.buckets import Extent, Range
from fxbucket.passes.errors import OptionError

_RANGE = re.compile(r"(\d+)\.\.(\d*)(?:\s+by\s+(\d+))?")
_QUOTED_OR_COMMA = re.compile(r"""'[^']*'|"[^"]*"|\[[^\]]*\]|,""")


def axes_of(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return ``axes`` for texts such as ``tokens=x.shape[0]``; several expressions by commas, or by another text.

    Raises:
        OptionError: a text is not of that form.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, expressions = text.partition("=")
        if not equals or not name.strip().isidentifier() or not expressions.strip():
            raise OptionError(f"--axes {text!r}: write a short name and what reads it, such as tokens=x.shape[0].")
        found.setdefault(name.strip(), []).extend(_split(expressions))
    return found


def sizes_of(texts: Iterable[str]) -> Any:
    """Return ``sizes`` for texts of the command line.

    Args:
        texts: ``tokens=256,512`` lists sizes of one axis, and axes are crossed; ``b=1,t=128`` is one combination, and only
            combinations are pinned; ``seen`` pins every combination at its first call.

    Raises:
        OptionError: a text is not of one of these forms, or forms are mixed.
    """
    texts = list(texts)
    if texts == ["seen"]:
        return "seen"
    pairs = [_pairs(text) for text in texts]
    if any(len(one) > 1 for one in pairs):
        for text, one in zip(texts, pairs, strict=True):
            if any(len(listed) != 1 for listed in one.values()):
                raise OptionError(
                    f"--sizes {text!r} lists sizes of one axis beside combinations of axes; write each combination as its "
                    f"own --sizes: --sizes b=1,t=128 --sizes b=8,t=64."
                )
        return [{name: listed[0] for name, listed in one.items()} for one in pairs]
    found: dict[str, list[int]] = {}
    for one in pairs:
        for name, listed in one.items():
            found.setdefault(name, []).extend(listed)
    return found


def bucket_of(text: str) -> dict[str, Extent]:
    """Return the extents of one bucket for a text such as ``b=1,t=128`` or ``t=256..4096 by 64``.

    Raises:
        OptionError: it is not of that form.
    """
    found: dict[str, Extent] = {}
    for part in _split(text):
        name, equals, extent = (item.strip() for item in part.rpartition("="))
        if not equals and found:
            last = next(reversed(found))
            raise OptionError(f"--bucket {text!r}: axis {last!r} has several sizes; a bucket has one, or a range.")
        if not name:
            raise OptionError(f"--bucket {text!r}: name the axis: tokens={extent} or x.shape[0]={extent}.")
        if name in found:
            raise OptionError(f"--bucket {text!r}: axis {name!r} stands there twice; a bucket has one size or range of it.")
        bounds = _RANGE.fullmatch(extent)
        try:
            if bounds is None:
                found[name] = int(extent)
            else:
                found[name] = Range(int(bounds[1]), int(bounds[2]) if bounds[2] else None, int(bounds[3] or 1))
        except ValueError as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(
                f"--bucket {text!r}: {extent!r} is neither an int nor a range; write for example tokens=512, or "
                f"tokens=256..4096 by 64."
            ) from None
    return found


def size_of(text: str, option: str) -> int:
    """Return a number of bytes for a text such as ``500MB``, ``1.5 GiB`` or ``1024``; kB is 1000 bytes, KiB 1024.

    Raises:
        OptionError: it is not of that form.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", text, re.IGNORECASE | re.ASCII)
    if found is None or (found[3] and not found[2]):
        raise OptionError(f"{option} {text!r} is not a size; write for example 500MB, 2GB, 1.5GiB, or a number of bytes.")
    power = " kmgt".index(found[2].lower() or " ")
    return int(Fraction(found[1]) * (1024 if found[3] else 1000) ** power)


def _pairs(text: str, option: str = "--sizes") -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    name = ""
    for part in _split(text):
        head, equals, number = part.rpartition("=")
        if equals:
            name = head.strip()
            if name in found:
                raise OptionError(f"{option} {text!r}: axis {name!r} stands there twice.")
        try:
            found.setdefault(name, []).append(int(number))
        except ValueError:
            raise OptionError(
                f"{option} {text!r}: {number.strip()!r} is not an int; write for example tokens=512."
            ) from None
    if "" in found:
        raise OptionError(f"{option} {text!r}: name the axis: tokens={text.strip()} or x.shape[0]={text.strip()}.")
    return found


def _split(text: str) -> list[str]:
    """Return the parts of a text between commas that stand neither in brackets nor in quotes."""
    parts, start = [], 0
    for found in _QUOTED_OR_COMMA.finditer(text):
        if found[0] == ",":
            parts.append(text[start : found.start()])
            start = found.end()
    return [part.strip() for part in (*parts, text[start:])]
