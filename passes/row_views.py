"""Rules of padding for ops that move elements without looking at them: views, slices, joins, repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy

from fxbucket.passes.lowering import AtenCall, TensorValue
from fxbucket.passes.row_facts import (
    UNKNOWN,
    Contents,
    Factors,
    Rows,
    RuleBook,
    Verdict,
    fitting,
    is_nonnegative,
    safe,
    same_size,
    unsafe,
)
from fxbucket.passes.row_pointwise import at_padding, misfit
from fxbucket.passes.symbolic import Expression

RULES = RuleBook()

_TO_THE_END = 2**62
"""Ends of slices from here on are Python's way to say: all the rest."""


@RULES.rule("permute", "transpose", "t", "transpose_", "t_", "view_as_real", "view_as_complex")
def reorder(call: AtenCall, rows: Rows) -> Verdict:
    """Dims change places as a whole."""
    return safe(rows.of(call["self"]))


@RULES.rule("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze", "squeeze_", "unsqueeze_",
            sizes=("size", "shape", "stride"))  # fmt: skip
def reshape(call: AtenCall, rows: Rows) -> Verdict:
    """Safe where a padded dim keeps the same elements before it, so that what is real stays one block from index 0."""
    value, result = call["self"], call.results[0]
    if "dtype" in call.arguments and value.dtype.itemsize != result.dtype.itemsize and rows.padded_of(value, (-1,)):
        return unsafe("it reads the elements of a padded dim as others of another length")
    if "dtype" in call.arguments:
        return unsafe("it reads a dim that holds several") if value.key in rows.layouts else safe(UNKNOWN)
    layout: list[Factors] = []
    merges = ""
    inside = tuple(size for factors in rows.layout(value) for size in factors)
    for inner, outer in _groups(inside, result.shape):
        reason = _regrouped(inner, outer, rows)
        if not reason:
            layout += ((size,) for size in outer)
            continue
        factors = _merged_first(inner, outer, rows)
        if factors is None:
            return unsafe(reason)
        layout += (factors, *((size,) for size in outer[1:]))
        merges = merges or reason
    if merges:
        return Verdict(contents=(rows.of(value),), layout=tuple(layout), merges=merges)
    return safe(rows.of(value))


def merged(sizes: Sequence[Expression], rows: Rows) -> Factors:
    """Return the factors of a dim that holds dims of these sizes, in the one spelling that equal layouts share.

    What is not padded joins what stands before it: rows of 4 behind rows that are real are real, so that ``(tokens, 4)`` is
    ``4*tokens`` alone.
    """
    factors: list[Expression] = []
    for size in sizes:
        if size == 1:
            continue
        if factors and not rows.depends(size):
            factors[-1] = sympy.expand(sympy.sympify(factors[-1]) * sympy.sympify(size))
        else:
            factors.append(sympy.expand(sympy.sympify(size)))
    return tuple(factors) or (sympy.Integer(1),)


def _merged_first(inner: Sequence[Expression], outer: Sequence[Expression], rows: Rows) -> Factors | None:
    """Return what the first of some dims holds, where the others are whole rows of it; ``None`` if they are not."""
    factors = merged(inner, rows)
    if not outer or any(rows.depends(size) for size in outer[1:]):
        return None
    rest = sympy.Mul(*(sympy.sympify(size) for size in outer[1:]))
    last = sympy.expand(factors[-1] / rest)
    if last.is_integer is not True or not same_size(sympy.Mul(*factors[:-1]) * last, outer[0]):
        return None
    return (*factors[:-1], last)


def _groups(
    before: Sequence[Expression], after: Sequence[Expression]
) -> list[tuple[Sequence[Expression], Sequence[Expression]]]:
    """Cut two shapes of one tensor into the shortest stretches that hold the same elements."""
    sizes = [[sympy.Integer(1)], [sympy.Integer(1)]]
    for products, shape in zip(sizes, (before, after), strict=True):
        for size in shape:
            products.append(sympy.expand(products[-1] * size))
    groups = []
    start, start_after = 0, 0
    while start < len(before) or start_after < len(after):
        found = (len(before), len(after))
        for end in range(start, len(before)):
            fits = [other for other in range(start_after, len(after)) if sizes[0][end] == sizes[1][other]]
            fits = [other for other in fits if (end, other) != (start, start_after)]
            if fits:
                found = (end, fits[0])
                break
        groups.append((before[start : found[0]], after[start_after : found[1]]))
        start, start_after = found
    return groups


def _regrouped(inner: Sequence[Expression], outer: Sequence[Expression], rows: Rows) -> str:
    places = [[dim for dim, size in enumerate(shape) if rows.depends(size)] for shape in (inner, outer)]
    if not places[0] and not places[1]:
        return ""
    text = f"it makes ({', '.join(map(rows.name, outer))}) of ({', '.join(map(rows.name, inner))}), "
    if len(places[0]) != 1 or len(places[1]) != 1:
        return text + "where padding does not stay behind what is real"
    ahead, ahead_after = (
        sympy.expand(sympy.Mul(*(sympy.sympify(size) for size in shape[: place[0]])))
        for shape, place in zip((inner, outer), places, strict=True)
    )
    if not same_size(ahead, ahead_after):
        return text + "where padding comes between what is real"
    return ""


@RULES.rule("expand", sizes=("size",))
def expand(call: AtenCall, rows: Rows) -> Verdict:
    """The same elements again, along the new dims."""
    value, result = call["self"], call.results[0]
    reason = misfit(value, result, rows)
    if reason:
        return unsafe(reason)
    repeated = tuple(value.shape) != tuple(result.shape)
    known = rows.of(value)
    return safe(Contents(at_padding(value, result, rows), known.everywhere, known.below), narrowed=repeated)


@RULES.rule("repeat", sizes=("repeats",))
def repeat(call: AtenCall, rows: Rows) -> Verdict:
    """Safe along dims that are not padded; a padded dim may only stand once."""
    value, repeats = call["self"], call["repeats"]
    shift = len(repeats) - len(value.shape)
    for dim in rows.padded(value):
        if repeats[dim + shift] != 1:
            return unsafe(f"it repeats {rows.axis(value, (dim,))}, and padding comes between")
    if any(rows.depends(count) for count in repeats):
        return safe(_everywhere(value, rows))
    return safe(rows.of(value))


@RULES.rule("select")
def select(call: AtenCall, rows: Rows) -> Verdict:
    """On a padded dim the index must count from the start."""
    value, index = call["self"], call["index"]
    if rows.padded_of(value, (call["dim"],)) and not is_nonnegative(index):
        return unsafe(
            f"index {rows.name(index)} counts from the end of {rows.axis(value, rows.padded_of(value, (call['dim'],)))}"
        )
    return safe(rows.of(value))


def _slice_reason(value: TensorValue, dim: int, start: object, rows: Rows) -> str:
    if rows.padded_of(value, (dim,)) and not is_nonnegative(0 if start is None else start):
        return f"a slice from {rows.name(start)} counts from the end of {rows.axis(value, rows.padded_of(value, (dim,)))}"
    return ""


def _reaches_end(value: TensorValue, dim: int, end: object) -> bool:
    size = value.shape[dim]
    return end is None or (isinstance(end, int) and end >= _TO_THE_END) or (
        isinstance(end, (int, sympy.Basic)) and same_size(end, size)
    )  # fmt: skip


@RULES.rule("slice", sizes=("end",))
def slice_(call: AtenCall, rows: Rows) -> Verdict:
    """It must begin at a fixed place; where it ends before its source does, its padding holds real elements of that."""
    value, result = call["self"], call.results[0]
    dim = call["dim"] % len(value.shape)
    reason = _slice_reason(value, dim, call["start"], rows)
    if reason:
        return unsafe(reason)
    if dim in rows.padded(result) and not _reaches_end(value, dim, call["end"]):
        return safe(_everywhere(value, rows), narrowed=True)
    return safe(rows.of(value))


def _everywhere(value: TensorValue, rows: Rows) -> Contents:
    known = rows.of(value)
    return Contents(known.everywhere, known.everywhere, known.below)


@RULES.rule("slice_scatter")
def slice_scatter(call: AtenCall, rows: Rows) -> Verdict:
    """It must write real rows to real rows, and padded ones to padding."""
    value, source = call["self"], call["src"]
    dim = call["dim"] % len(value.shape)
    reason = _slice_reason(value, dim, call["start"], rows)
    if reason:
        return unsafe(reason)
    if rows.padded_of(source, (dim,)) and not _reaches_end(value, dim, call["end"]):
        return unsafe(f"it writes padded rows of {rows.axis(source, (dim,))} to rows that are real")
    return _written_part(call, rows, tuple(source.shape[dim] if at == dim else size for at, size in enumerate(value.shape)))


@RULES.rule("select_scatter")
def select_scatter(call: AtenCall, rows: Rows) -> Verdict:
    """On a padded dim the index must count from the start."""
    value, index = call["self"], call["index"]
    dim = call["dim"] % len(value.shape)
    if rows.padded_of(value, (dim,)) and not is_nonnegative(index):
        return unsafe(f"index {rows.name(index)} counts from the end of {rows.axis(value, (dim,))}")
    return _written_part(call, rows, tuple(size for at, size in enumerate(value.shape) if at != dim))


def _written_part(call: AtenCall, rows: Rows, shape: tuple[Expression, ...]) -> Verdict:
    source = call["src"]
    reason = misfit(source, TensorValue(-1, -1, shape, source.dtype), rows)
    return unsafe(reason) if reason else safe(UNKNOWN)


@RULES.rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", sizes=("split_size", "split_sizes"))
def split(call: AtenCall, rows: Rows) -> Verdict:
    """Each part must begin at a fixed place; only the last one may be written to, the others end before their source."""
    value: TensorValue = call["self"]
    dim = call["dim"] % len(value.shape)
    reasons: dict[int, str] = {}
    narrowed = set()
    contents = []
    start: Expression = 0
    for position, part in enumerate(call.results):
        is_last = position == len(call.results) - 1
        if rows.depends(start):
            reasons[position] = f"it begins at {rows.name(start)} of {rows.axis(value, (dim,))}, which is the bucket's place"
        if dim in rows.padded(part) and not (is_last and dim in rows.padded(value)):
            narrowed.add(position)
            contents.append(_everywhere(value, rows))
        else:
            contents.append(rows.of(value))
        start = sympy.sympify(start) + sympy.sympify(part.shape[dim])
    return Verdict(contents=tuple(contents), reasons=reasons, narrowed=frozenset(narrowed))


@RULES.rule("unbind")
def unbind(call: AtenCall, rows: Rows) -> Verdict:
    """Safe along a dim that is not padded; how many parts there are is fixed."""
    value: TensorValue = call["self"]
    taken = rows.padded_of(value, (call["dim"],))
    if taken:
        return unsafe(f"it gives one tensor for each row of {rows.axis(value, taken)}")
    return safe(*(rows.of(value) for _ in call.results))


@RULES.rule("cat")
def cat(call: AtenCall, rows: Rows) -> Verdict:
    """Only the last tensor may be padded along the dim that is joined."""
    tensors = call["tensors"]
    result = call.results[0]
    dim = call["dim"] % len(result.shape)
    held = [value for value in tensors if value.shape != (0,) or len(result.shape) == 1]
    for value in held[:-1]:
        if rows.padded_of(value, (dim,)):
            return unsafe(f"it puts rows behind the padding of {rows.axis(value, (dim,))}")
    known = [rows.of(value) for value in held if rows.padded(value)]
    padding = fitting(known).padding if known else None
    all_of = fitting(rows.of(value) for value in held)
    return safe(Contents(padding, all_of.everywhere, all_of.below))


@RULES.rule("stack")
def stack(call: AtenCall, rows: Rows) -> Verdict:
    """Tensors of one shape, along a new dim."""
    return safe(fitting(rows.of(value) for value in call["tensors"]))


@RULES.rule("constant_pad_nd")
def constant_pad(call: AtenCall, rows: Rows) -> Verdict:
    """At the end of a padded dim it may only cut, or add what the padding holds already."""
    value, pad = call["self"], call["pad"]
    contents = rows.of(value)
    is_same = contents.padding is not None and contents.padding == call["value"]
    for number in range(len(pad) // 2):
        dim = len(value.shape) - 1 - number
        if not rows.padded_of(value, (dim,)):
            continue
        before, after = pad[2 * number : 2 * number + 2]
        if not isinstance(before, int) or not isinstance(after, int):
            return unsafe(f"it pads {rows.axis(value, (dim,))} by a size")
        if after > 0 and not is_same:
            return unsafe(f"it puts {after} rows behind the padding of {rows.axis(value, (dim,))}")
    changed = any(amount != 0 for amount in pad)
    return safe(Contents(contents.padding if is_same else None) if changed else contents)


@RULES.rule("diagonal", "unfold")
def narrowing_view(call: AtenCall, rows: Rows) -> Verdict:
    """Each element stands at a place that its own index tells, counted from the start."""
    return safe(_everywhere(call["self"], rows), narrowed=True)


@RULES.rule("tril", "triu", "tril_", "triu_")
def triangle(call: AtenCall, rows: Rows) -> Verdict:
    """Which elements become 0 depends on their own index."""
    zero = rows.of(call["self"]).padding == 0 and math.copysign(1, rows.of(call["self"]).padding or 0) > 0
    return safe(Contents(rows.of(call["self"]).padding) if zero else UNKNOWN)
