"""Sizes and ranges as users give them → buckets, checked at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from fxbucket.axes import AxisSpec
from fxbucket.passes.buckets import Bucket, Extent, Range, is_int
from fxbucket.passes.errors import OptionError, SizeError, nearest


def pinned_combinations(sizes: object) -> list[dict[str, Extent]]:
    """Return every pinned combination of the option ``sizes`` as ``{axis: size}``.

    Raises:
        OptionError: it is not what :class:`fxbucket.options.Options` says of it.
    """
    if sizes == "seen":
        return []
    if isinstance(sizes, str):
        raise OptionError(f"sizes={sizes!r} is not possible; {nearest(sizes, ['seen'])}.")
    if isinstance(sizes, Mapping):
        for axis, listed in sizes.items():
            _check_list(axis, listed)
        if not sizes:
            return []
        return [dict(zip(sizes, values, strict=True)) for values in itertools.product(*sizes.values())]
    if isinstance(sizes, Sequence):
        if not sizes:
            raise OptionError("sizes=[] is empty; give at least one combination, or leave the option out.")
        found = []
        for combination in sizes:
            if not isinstance(combination, Mapping) or not combination:
                raise OptionError(f"sizes: {combination!r} is not a combination; give dicts such as {{'x.shape[0]': 8}}.")
            for axis, size in combination.items():
                _check_size(axis, size)
            found.append(dict(combination))
        for index, combination in enumerate(found):
            if combination in found[:index]:
                raise OptionError(f"sizes: the combination {combination} is listed twice; leave one out.")
        return found
    raise OptionError(f"sizes={sizes!r}: give {{axis: [sizes]}}, a list of combinations, or 'seen'.")


def range_combinations(ranges: object) -> list[dict[str, Extent]]:
    """Return every rectangle of the option ``ranges`` as ``{axis: extent}``, in the order in which they are tried.

    Raises:
        OptionError: it is not what :class:`fxbucket.options.Options` says of it.
    """
    if isinstance(ranges, Mapping):
        crossed: dict[str, list[Extent]] = {}
        for axis, listed in ranges.items():
            if not isinstance(listed, Sequence) or isinstance(listed, str):
                raise OptionError(f"ranges of axis {axis!r}: {listed!r} is not a list; write [{listed!r}] for one range.")
            if not listed:
                raise OptionError(f"ranges of axis {axis!r}: the list is empty; give a range, or leave the axis out.")
            if len(listed) == 2 and all(is_int(end) for end in listed):
                raise OptionError(f"ranges of axis {axis!r}: {listed!r} are two ints; write [({listed[0]}, {listed[1]})].")
            crossed[axis] = [_extent(axis, item) for item in listed]
        found = [dict(zip(crossed, extents, strict=True)) for extents in itertools.product(*crossed.values())]
        found = [extents for extents in found if extents]
    elif isinstance(ranges, Sequence) and not isinstance(ranges, str):
        found = []
        for combination in ranges:
            if not isinstance(combination, Mapping) or not combination:
                raise OptionError(
                    f"ranges: {combination!r} is not a rectangle; give dicts such as {{'x.shape[0]': (8, 64)}}."
                )
            found.append({axis: _extent(axis, item) for axis, item in combination.items()})
    else:
        raise OptionError(f"ranges={ranges!r}: give {{axis: [(start, end), ...]}} or a list of {{axis: (start, end)}}.")
    for index, extents in enumerate(found):
        if extents in found[:index]:
            raise OptionError(f"ranges: {Bucket.of(extents)} is listed twice; leave one out.")
        if not any(isinstance(extent, Range) for extent in extents.values()):
            raise OptionError(f"ranges: {Bucket.of(extents)} has sizes alone; list it under sizes.")
    return found


def _extent(axis: object, given: object) -> Extent:
    """Return one extent: a :class:`Range`, a pair of ends, or a size."""
    if isinstance(given, Range) or is_int(given):
        return given  # type: ignore[return-value]
    if isinstance(given, tuple) and len(given) == 2:
        return Range(*given)
    raise OptionError(f"ranges of axis {axis!r}: {given!r} is not a range; give (start, end), both inclusive, or a Range.")


def named_buckets(combinations: Sequence[Mapping[str, Extent]], name_of: Callable[[str], str]) -> tuple[Bucket, ...]:
    """Return the buckets of combinations, by the axes' names.

    Raises:
        OptionError: two spellings of one combination are one axis.
    """
    for extents in combinations:
        spelled: dict[str, str] = {}
        for name in extents:
            if spelled.setdefault(name_of(name), name) != name:
                raise OptionError(f"sizes: {spelled[name_of(name)]!r} and {name!r} are one axis; give its sizes once.")
    return tuple(Bucket.of({name_of(name): extent for name, extent in extents.items()}) for extents in combinations)


def _check_list(axis: object, listed: object) -> None:
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise OptionError(f"sizes of axis {axis!r}: {listed!r} is not a list of ints; write [{listed!r}] for one size.")
    if not listed:
        raise OptionError(f"sizes of axis {axis!r}: the list is empty; give at least one size, or leave the axis out.")
    for size in listed:
        _check_size(axis, size)
    twice = sorted({size for size in listed if list(listed).count(size) > 1})
    if twice:
        raise OptionError(f"sizes of axis {axis!r}: {twice} is listed more than once; leave the duplicates out.")


def _check_size(axis: object, size: object) -> None:
    if not is_int(size):
        hint = "use ranges for a range" if isinstance(size, (Range, tuple)) else "sizes are ints"
        raise OptionError(f"sizes of axis {axis!r}: {size!r} is {type(size).__name__}; {hint}.")


def check_negative(specs: Sequence[AxisSpec], buckets: Sequence[Bucket]) -> None:
    """Raise :class:`SizeError` where a bucket asks a tensor for fewer than 0 rows."""
    of_tensors = {spec.name for spec in specs if any(reading.dim is not None for reading in spec.readings)}
    for bucket in buckets:
        for name, extent in bucket:
            size = extent.last if isinstance(extent, Range) else extent
            if size is not None and size < 0 and name in of_tensors:
                raise SizeError(f"size {extent} of axis {name!r} is negative; a tensor has 0 rows or more.")
