"""Sizes and ranges of sizes: what one compilation serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    """

    start: int
    end: int | None = None

    def __post_init__(self) -> None:
        for name, bound in (("start", self.start), ("end", self.end)):
            if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
                raise OptionError(f"Range: {name}={bound!r} is not an int; give two ints, or None for no upper bound.")
        if self.end is not None and self.end < self.start:
            raise OptionError(f"Range({self.start}, {self.end}) is empty: the end is below the start; both are inclusive.")

    def __contains__(self, size: object) -> bool:
        if not isinstance(size, int):
            return False
        return self.start <= size and (self.end is None or size <= self.end)

    def __str__(self) -> str:
        start = f"-{INFINITY_TEXT}" if self.start <= NO_LOWER_BOUND else str(self.start)
        return f"{start}..{INFINITY_TEXT if self.end is None else self.end}"


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
