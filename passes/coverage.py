"""Coverage: where buckets of ranges overlap, and which sizes between them none serves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fxbucket.passes.buckets import Bucket, Extent, Range

MOST_CELLS = 20_000
"""Tables of more cells than this are not searched for holes; 100 ranges on each of two axes still are."""


@dataclass(frozen=True)
class Overlap:
    """Two buckets of ranges that share sizes; the first serves these.

    Attributes:
        first: the bucket that is tried first.
        second: the other.
        common: what both hold.
    """

    first: Bucket
    second: Bucket
    common: Bucket

    def __str__(self) -> str:
        if self.common == self.second:
            return f"{self.second} lies in {self.first} and is never used; put it before, or leave it out"
        return f"{self.first} and {self.second} overlap in {self.common}; the first serves it"


@dataclass(frozen=True)
class Hole:
    """Sizes between those of the buckets that none of them serves.

    Attributes:
        bucket: the sizes.
        but: sizes of these that are served: multiples, as the buckets have them.
    """

    bucket: Bucket
    but: tuple[Bucket, ...] = ()

    def __str__(self) -> str:
        but = f", but for {' and '.join(map(str, self.but))}" if self.but else ""
        return f"no bucket serves {self.bucket}{but}"


def overlaps(buckets: Sequence[Bucket]) -> tuple[Overlap, ...]:
    """Return every two buckets of ranges that share sizes, in order. A pinned size in a range is no overlap."""
    ranged = [bucket for bucket in buckets if bucket.ranges]
    found = []
    for first, second in itertools.combinations(ranged, 2):
        common = _common(first, second)
        if common is not None:
            found.append(Overlap(first, second, common))
    return tuple(found)


def _common(first: Bucket, second: Bucket) -> Bucket | None:
    """Return what two buckets share, with the extents of ``second`` where they are all of it; ``None`` for nothing."""
    mine, other = dict(first), dict(second)
    found: dict[str, Extent] = {}
    for name in dict.fromkeys([*other, *mine]):
        both = _both(mine.get(name), other.get(name))
        if both is None:
            return None
        found[name] = both
    return Bucket.of(found)


def _both(left: Extent | None, right: Extent | None) -> Extent | None:
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, Range) and isinstance(right, Range):
        common = left.common(right)
        same = common is not None and (common.first, common.last, common.multiple_of) == (
            right.first, right.last, right.multiple_of
        )  # fmt: skip
        return right if same else common
    if isinstance(left, Range):
        return right if right in left else None
    if isinstance(right, Range):
        return left if left in right else None
    return left if left == right else None


def holes(buckets: Sequence[Bucket]) -> tuple[Hole, ...]:
    """Return the sizes between the smallest and the largest of these buckets, on each axis, that none of them serves.

    Empty where no bucket has ranges: between pinned sizes there is always something. Also empty where the table is larger
    than :data:`MOST_CELLS` cells.
    """
    if not any(bucket.ranges for bucket in buckets):
        return ()
    names = list(dict.fromkeys(name for bucket in buckets for name, _ in bucket))
    cuts = [_stretches([dict(bucket)[name] for bucket in buckets if name in dict(bucket)]) for name in names]
    num_cells = 1
    for stretches in cuts:
        num_cells *= len(stretches)
    if num_cells > MOST_CELLS:
        return ()
    found: list[tuple[tuple[Range, ...], tuple[Bucket, ...]]] = []
    for cell in itertools.product(*cuts):
        by_name = dict(zip(names, cell, strict=True))
        over = [bucket for bucket in buckets if _reaches(bucket, by_name)]
        partly = tuple(bucket for bucket in over if any(held.multiple_of > 1 for held in bucket.ranges.values()))
        if len(partly) < len(over) or any(_holds_all(bucket, by_name) for bucket in partly):
            continue
        last = found[-1] if found else None
        if last is not None and last[1] == partly and _is_next(last[0], cell):
            found[-1] = ((*cell[:-1], Range(last[0][-1].start, cell[-1].end)), partly)
        else:
            found.append((cell, partly))
    return tuple(Hole(Bucket.of(dict(zip(names, map(_extent, cell), strict=True))), partly) for cell, partly in found)


def _stretches(extents: Sequence[Extent]) -> list[Range]:
    """Return consecutive stretches such that each extent's ends lie between two of them."""
    edges: set[int] = set()
    unbounded = False
    for extent in extents:
        if not isinstance(extent, Range):
            edges |= {int(extent), int(extent) + 1}
            continue
        edges.add(extent.first)
        unbounded |= extent.last is None
        if extent.last is not None:
            edges.add(extent.last + 1)
    ordered = sorted(edges)
    found = [Range(start, end - 1) for start, end in itertools.pairwise(ordered)]
    return [*found, Range(ordered[-1])] if unbounded else found


def _reaches(bucket: Bucket, cell: dict[str, Range]) -> bool:
    """Whether a bucket holds a cell, or its multiples."""
    for name, extent in bucket:
        stretch = cell[name]
        if not isinstance(extent, Range):
            if not stretch.start == extent == stretch.end:
                return False
        elif stretch.start < extent.first or (
            extent.last is not None and (stretch.end is None or stretch.end > extent.last)
        ):
            return False
    return True


def _holds_all(bucket: Bucket, cell: dict[str, Range]) -> bool:
    """Whether a bucket of multiples that reaches a cell holds every size of it."""
    return all(
        extent.multiple_of == 1 or (cell[name].start == cell[name].end and cell[name].start in extent)
        for name, extent in bucket.ranges.items()
    )


def _is_next(left: tuple[Range, ...], right: tuple[Range, ...]) -> bool:
    """Whether two cells are one longer stretch along the last axis."""
    return left[:-1] == right[:-1] and left[-1].end is not None and left[-1].end + 1 == right[-1].start


def _extent(stretch: Range) -> Extent:
    return stretch.start if stretch.start == stretch.end else stretch
