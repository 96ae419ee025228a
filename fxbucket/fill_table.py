"""The plan of copies with padding: how each is walked, in words as wide as it allows, as a table of ints.

A dim is four numbers: the destination's and the source's size, the destination's and the source's stride. Planning is in
bytes; neighbouring dims become one where both tensors allow, so that a contiguous tensor whose first dim is padded is one
flat stretch, of which the source is the first part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

MAX_DIMS = 8
HEAD = 8
COLUMNS = HEAD + 4 * MAX_DIMS
BLOCK_WORDS = 1024
WIDEST = 8
ITEM_SIZES = frozenset({1, 2, 4, 8, 16})


class Dim(NamedTuple):
    """One dim of a copy; sizes and strides are all in bytes, or all in words."""

    size: int
    source_size: int
    stride: int
    source_stride: int


@dataclass(frozen=True)
class Walk:
    """How a destination is walked.

    Attributes:
        word: bytes that are moved at once.
        dims: outermost first; sizes and strides in words.
    """

    word: int
    dims: tuple[Dim, ...]

    @property
    def num_words(self) -> int:
        """Words of the destination."""
        number = 1
        for dim in self.dims:
            number *= dim.size
        return number


@dataclass(frozen=True)
class Plan:
    """One copy with padding.

    Attributes:
        address: where the destination lies.
        wide: the walk in the widest words.
        narrow: the walk for a source that does not lie at a multiple of such a word.
        fill: the words of 8 bytes that padding consists of, at even and at odd places.
    """

    address: int
    wide: Walk
    narrow: Walk
    fill: tuple[int, int]

    @property
    def num_blocks(self) -> int:
        """Blocks of ``BLOCK_WORDS`` wide words."""
        return -(-self.wide.num_words // BLOCK_WORDS)

    def rows(self, first_block: int) -> list[list[int]]:
        """Return the two rows of the table: for sources that are aligned, and for those that are not."""
        return [self._row(walk, first_block) for walk in (self.wide, self.narrow)]

    def _row(self, walk: Walk, first_block: int) -> list[int]:
        steps = self.wide.word // walk.word
        row = [first_block, self.address, walk.word, steps, walk.num_words, len(walk.dims), *self.fill]
        for dim in reversed(walk.dims):
            row.extend(dim)
        return row + [0] * (COLUMNS - len(row))


def plan_of(destination: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], fill: complex) -> Plan | None:
    """Return the plan of a copy into a destination.

    Args:
        destination: strided memory without overlap.
        sizes: of the source, none larger than the destination's.
        strides: of the source, in elements.
        fill: a number that the destination's dtype holds.

    Returns:
        ``None`` where the kernel cannot do it: an unusual size of elements, or more than ``MAX_DIMS`` dims that cannot be
        merged.
    """
    size = destination.element_size()
    if size not in ITEM_SIZES:
        return None
    is_empty = 0 in sizes
    shapes = zip(destination.shape, sizes, destination.stride(), strides, strict=True)
    dims = [Dim(most, number, step * size, origin * size) for most, number, step, origin in shapes if most != 1]
    dims.sort(key=lambda dim: -dim.stride)
    dims = merged([*dims, Dim(size, size, 1, 1)], is_empty)  # the bytes of an element are its innermost dim
    address = destination.data_ptr()
    widest_item = min(size, WIDEST)
    wide = _walk(dims, address, widest_item, WIDEST)
    narrow = _walk(dims, address, widest_item, widest_item)
    if wide is None or narrow is None or len(wide.dims) > MAX_DIMS or len(narrow.dims) > MAX_DIMS:
        return None
    return Plan(address, wide, narrow, fill_words(fill, destination.dtype))


def merged(dims: Iterable[Dim], is_empty: bool) -> list[Dim]:
    """Return the fewest dims, outermost first, that walk the same memory.

    Args:
        dims: outermost first.
        is_empty: whether the source holds nothing at all; then no dim of it holds anything.
    """
    found: list[Dim] = []
    for dim in dims:
        inner = dim._replace(source_size=0) if is_empty else dim
        if inner.source_size <= 1:
            inner = inner._replace(source_stride=inner.stride)
        if found and _are_one(found[-1], inner):
            outer = found.pop()
            inner = inner._replace(size=outer.size * inner.size, source_size=outer.source_size * inner.source_size)
        found.append(inner)
    return found


def _are_one(outer: Dim, inner: Dim) -> bool:
    if outer.stride != inner.size * inner.stride:
        return False
    # Of a source with one row, only the row's length matters.
    return outer.source_size <= 1 or (
        inner.source_size == inner.size and outer.source_stride == inner.source_size * inner.source_stride
    )


def _walk(dims: Sequence[Dim], address: int, narrowest: int, widest: int) -> Walk | None:
    """Return the walk in the widest words between two widths that all of the destination and the source consist of."""
    *outer, inner = dims
    if (inner.stride, inner.source_stride) != (1, 1):
        return None
    word = widest
    while word >= narrowest:
        strides = [number for dim in outer for number in (dim.stride, dim.source_stride)]
        if all(number % word == 0 for number in (address, inner.size, inner.source_size, *strides)):
            last = Dim(inner.size // word, inner.source_size // word, 1, 1)
            inwords = [dim._replace(stride=dim.stride // word, source_stride=dim.source_stride // word) for dim in outer]
            return Walk(word, tuple(inwords if inwords and last.size == 1 else [*inwords, last]))
        word //= 2
    return None


def fill_words(fill: complex, dtype: torch.dtype) -> tuple[int, int]:
    """Return 16 bytes of padding as two ints: a number in a dtype, over and over.

    Raises:
        RuntimeError, TypeError: the dtype cannot hold the number.
    """
    item = torch.full((1,), fill, dtype=dtype).view(torch.uint8)
    even, odd = item.repeat(16 // item.numel()).view(torch.int64).tolist()
    return even, odd


def table_of(plans: Sequence[Plan]) -> tuple[list[list[int]], list[int]]:
    """Return the rows of all plans, two a plan, and for each block its plan times 16, plus the word's bytes less one."""
    rows: list[list[int]] = []
    owners: list[int] = []
    for position, plan in enumerate(plans):
        rows.extend(plan.rows(len(owners)))
        owners.extend([position * 16 + plan.wide.word - 1] * plan.num_blocks)
    return rows, owners
