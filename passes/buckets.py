"""Sizes and ranges of sizes: what one compilation serves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fxbucket.passes.errors import OptionError

INFINITY_TEXT = "∞"
NO_LOWER_BOUND = -(2**63)
"""The ``start`` of a range without a lower bound: the smallest int of 64 bits."""


@dataclass(frozen=True)
class Range:
    """An inclusive range of ints.

    Attributes:
        start: the smallest member.
        end: the largest member, or ``None`` when there is no bound.
        multiple_of: every member is a multiple of it. Default: 1.
        hint: the member at which a compiler tries things; ``None`` for the one in the middle.
    """

    start: int
    end: int | None = None
    multiple_of: int = 1
    hint: int | None = None

    def __post_init__(self) -> None:
        given = (("start", self.start), ("end", self.end), ("multiple_of", self.multiple_of), ("hint", self.hint))
        for name, number in given:
            optional = name in ("end", "hint")
            if (number is None and not optional) or (number is not None and not is_int(number)):
                more = ", or None for no upper bound" if name == "end" else ""
                raise OptionError(f"Range: {name}={number!r} is not an int; give ints{more}.")
        if self.multiple_of < 1:
            raise OptionError(f"Range: multiple_of={self.multiple_of} is below 1; give a positive int.")
        if self.end is not None and self.end < self.start:
            raise OptionError(f"Range({self.start}, {self.end}) is empty: the end is below the start; both are inclusive.")
        if self.last is not None and self.last < self.first:
            raise OptionError(
                f"Range({self.start}, {self.end}, multiple_of={self.multiple_of}) is empty: no multiple of "
                f"{self.multiple_of} lies between; the next one is {self.first}."
            )
        if self.hint is not None and self.hint not in self:
            raise OptionError(f"Range: hint={self.hint} is not in {self}; choose a member.")

    def __contains__(self, size: object) -> bool:
        if not isinstance(size, int) or size < self.start:
            return False
        return (self.end is None or size <= self.end) and size % self.multiple_of == 0

    @property
    def first(self) -> int:
        """The smallest member."""
        return -(-self.start // self.multiple_of) * self.multiple_of

    @property
    def last(self) -> int | None:
        """The largest member, or ``None`` when there is no bound."""
        return None if self.end is None else self.end // self.multiple_of * self.multiple_of

    @property
    def middle(self) -> int:
        """The hint; else the member in the middle, and where there is no bound one that is not small."""
        if self.hint is not None:
            return self.hint
        if self.end is None:
            return max(self.first, -(-_NOT_SMALL // self.multiple_of) * self.multiple_of)
        start = self.start if self.start > NO_LOWER_BOUND else min(self.end, 0)
        return max(self.first, (start + self.end) // 2 // self.multiple_of * self.multiple_of)

    def common(self, other: Range) -> Range | None:
        """Return the range of what is in both, without a hint that is not; ``None`` where that is nothing."""
        start = max(self.start, other.start)
        ends = [end for end in (self.end, other.end) if end is not None]
        multiple_of = math.lcm(self.multiple_of, other.multiple_of)
        end = min(ends, default=None)
        if end is not None and (end < start or end // multiple_of * multiple_of < start):
            return None
        found = Range(start, end, multiple_of)
        return next(
            (replace(found, hint=hint) for hint in (self.hint, other.hint) if hint is not None and hint in found), found
        )

    def __str__(self) -> str:
        start = f"-{INFINITY_TEXT}" if self.start <= NO_LOWER_BOUND else str(self.start)
        step = f" by {self.multiple_of}" if self.multiple_of != 1 else ""
        return f"{start}..{INFINITY_TEXT if self.end is None else self.end}{step}"


_NOT_SMALL = 1024
"""Where a range without an end is tried: a compiler that sees a small size chooses for small sizes."""


def is_int(value: object) -> bool:
    """Whether a value is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


Extent = int | float | Range
"""What a bucket says of one axis: exactly this size, or any size of this range."""


@dataclass(frozen=True)
class Bucket:
    """What one compilation serves: for each axis that it names one size, or an inclusive range.

    Attributes:
        extents: ``(axis name, extent)`` in the order of the axes. An axis that is not named may have any size that the
            capture allows; the bucket with no extent at all is the dynamic one.
    """

    extents: tuple[tuple[str, Extent], ...] = ()

    @staticmethod
    def of(extents: Mapping[str, Extent]) -> Bucket:
        """Return the bucket with these extents, one for each axis name."""
        return Bucket(tuple(extents.items()))

    @property
    def is_dynamic(self) -> bool:
        """Whether the bucket names no axis, and so serves every size that its artifacts' guards allow."""
        return not self.extents

    @property
    def sizes(self) -> dict[str, int | float]:
        """The axes that this bucket pins to one size (or to one number, for a float of the call)."""
        return {name: extent for name, extent in self.extents if not isinstance(extent, Range)}

    @property
    def ranges(self) -> dict[str, Range]:
        """The axes for which this bucket serves a range."""
        return {name: extent for name, extent in self.extents if isinstance(extent, Range)}

    def admits(self, sizes: Mapping[str, int | float]) -> bool:
        """Whether every axis that the bucket names has, in ``sizes``, a value that the bucket serves."""
        for name, extent in self.extents:
            size = sizes.get(name)
            if size is None:
                return False
            if size not in extent if isinstance(extent, Range) else size != extent:
                return False
        return True

    def __str__(self) -> str:
        if self.is_dynamic:
            return "dynamic"
        return ", ".join(f"{name}={extent}" for name, extent in self.extents)

    def __iter__(self) -> Iterator[tuple[str, Extent]]:
        return iter(self.extents)
