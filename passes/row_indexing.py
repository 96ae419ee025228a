"""Rules of padding for ops that read or write where an index says."""

from __future__ import annotations

import sympy
import torch

from fxbucket.passes.lowering import AtenCall, TensorValue
from fxbucket.passes.row_facts import UNKNOWN, Contents, Rows, RuleBook, Verdict, is_nonnegative, safe, same_size, unsafe
from fxbucket.passes.row_pointwise import misfit
from fxbucket.passes.symbolic import Expression

RULES = RuleBook()

_BY_DATA = "how many rows it gives depends on the data, padded rows too"


@RULES.rule("nonzero", "nonzero_static", "masked_select", "_unique2", "unique_consecutive", "unique_dim")
def by_data(call: AtenCall, rows: Rows) -> Verdict:
    """Each element decides where the others go."""
    return unsafe(_BY_DATA)


@RULES.rule("bincount", "histc", "masked_scatter", "masked_scatter_", "take", "put", "put_", "isin")
def over_all(call: AtenCall, rows: Rows) -> Verdict:
    """Each element counts for all of the result."""
    return unsafe("it goes over every row, padded rows too")


@RULES.rule("embedding")
def embedding(call: AtenCall, rows: Rows) -> Verdict:
    """Each index reads one row of a table."""
    return _read_from(call, rows, call["weight"], (0,), call["indices"])


@RULES.rule("index_select")
def index_select(call: AtenCall, rows: Rows) -> Verdict:
    """Each index reads one row."""
    return _read_from(call, rows, call["self"], (call["dim"],), call["index"])


@RULES.rule("gather")
def gather(call: AtenCall, rows: Rows) -> Verdict:
    """Along the other dims each index stands at the place that it reads."""
    return _read_from(call, rows, call["self"], (call["dim"],), call["index"])


def _read_from(
    call: AtenCall, rows: Rows, table: TensorValue, dims: tuple[int, ...], index: TensorValue | None = None
) -> Verdict:
    read = rows.padded_of(table, dims)
    if read and not (index is not None and len(read) == 1 and _stays_real(index, table.shape[read[0]], rows)):
        return unsafe(f"it reads from {rows.axis(table, read)} where an index says, which may be a padded row")
    return safe(Contents(below=rows.of(table).below))


def _stays_real(index: TensorValue, size: Expression, rows: Rows) -> bool:
    """Whether an index surely names rows below a size, counted from the start, and so real ones where it is real itself."""
    below = rows.of(index).below
    return below is not None and is_nonnegative(sympy.expand(sympy.sympify(size) - sympy.sympify(below)))


@RULES.rule("bucketize")
def bucketize(call: AtenCall, rows: Rows) -> Verdict:
    """Each element is compared with every boundary."""
    return _read_from(call, rows, call["boundaries"], (0,)) if isinstance(call["self"], TensorValue) else unsafe("no tensor")


@RULES.rule("searchsorted")
def searchsorted(call: AtenCall, rows: Rows) -> Verdict:
    """Each element is compared with every boundary of its row."""
    return _read_from(call, rows, call["sorted_sequence"], (-1,))


def _indexed(call: AtenCall, rows: Rows) -> tuple[str, tuple[int, ...], bool]:
    """Return why an index cannot be followed, the dims of ``self`` that it stands for, and whether an index is padded."""
    value: TensorValue = call["self"]
    dims: list[int] = []
    bounded: set[int] = set()
    dim = 0
    for index in call["indices"]:
        if index is None:
            dim += 1
            continue
        taken = len(index.shape) if index.dtype in (torch.bool, torch.uint8) else 1
        if index.dtype in (torch.bool, torch.uint8) and rows.padded(index):
            return f"it reads where a mask over {rows.axis(index, rows.padded(index))} says: {_BY_DATA}", (), True
        dims += range(dim, dim + taken)
        if taken == 1 and _stays_real(index, value.shape[dim], rows):
            bounded.add(dim)
        dim += taken
    padded_index = any(rows.padded(index) for index in call["indices"] if index is not None)
    at = tuple(dim for dim in rows.padded_of(value, dims) if dim not in bounded)
    if at:
        return f"it goes to {rows.axis(value, at)} where an index says, which may be a padded row", (), padded_index
    return "", tuple(dims), padded_index


@RULES.rule("index", "_unsafe_index")
def index(call: AtenCall, rows: Rows) -> Verdict:
    """Indices are broadcast to each other, and each reads one place of the dims that it stands for."""
    reason, _, _ = _indexed(call, rows)
    return unsafe(reason) if reason else safe(Contents(below=rows.of(call["self"]).below))


def _is_masked_fill(call: AtenCall) -> bool:
    """Whether an index is one mask that lies along the first dims of ``self``, and one number is written where it says."""
    (mask, *others) = call["indices"]
    if mask is None or mask.dtype is not torch.bool or any(index is not None for index in others):
        return False
    along = call["self"].shape[: len(mask.shape)]
    fits = len(along) == len(mask.shape) and all(map(same_size, mask.shape, along))
    return fits and all(size == 1 for size in call["values"].shape) and not call["accumulate"]


@RULES.rule("index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_")
def index_put(call: AtenCall, rows: Rows) -> Verdict:
    """Safe where indices are not padded: padded values then go to padding alone."""
    if _is_masked_fill(call):
        return safe(UNKNOWN)
    reason, dims, padded_index = _indexed(call, rows)
    if reason:
        return unsafe(reason)
    if padded_index:
        return unsafe("it writes where padded indices say")
    value, values = call["self"], call["values"]
    rest = tuple(size for dim, size in enumerate(value.shape) if dim not in dims)
    # Values are laid along the indices' dims and the rest of self; where these stand depends on the indices, so that
    # only values whose padded dims lie in a common tail are followed.
    tail = len(value.shape) - 1 - max(dims, default=-1)
    for back in range(1, len(values.shape) + 1):
        size = values.shape[-back]
        if rows.depends(size) and (back > tail or not same_size(size, rest[-back])):
            return unsafe(f"it writes padded values along {rows.axis(values, (len(values.shape) - back,))}")
    return safe(UNKNOWN)


@RULES.rule("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")
def scatter(call: AtenCall, rows: Rows) -> Verdict:
    """Along the other dims each index stands at the place that it writes to."""
    value, where = call["self"], call["index"]
    source = call.arguments.get("src")
    dim = call["dim"] % max(len(value.shape), 1)
    for tensor in (value, where, *((source,) if isinstance(source, TensorValue) else ())):
        along = rows.padded_of(tensor, (dim,))
        if along:
            return unsafe(f"it writes along {rows.axis(tensor, along)} where an index says")
    for other in rows.padded(where):
        if not same_size(where.shape[other], value.shape[other]):
            return unsafe(f"it writes padded rows of {rows.axis(where, (other,))} to rows that are real")
    return safe(UNKNOWN)


@RULES.rule("index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_", "index_reduce",
            "index_reduce_")  # fmt: skip
def index_write(call: AtenCall, rows: Rows) -> Verdict:
    """Safe where the dim that is written to and its index are not padded."""
    value = call["self"]
    dim = call["dim"] % max(len(value.shape), 1)
    if rows.padded(call["index"]) or rows.padded_of(value, (dim,)):
        return unsafe(f"it writes along dim {dim} where an index says, which may be that of a padded row")
    source = call.arguments.get("source")
    if isinstance(source, TensorValue):
        shape = tuple(source.shape[dim] if place == dim else size for place, size in enumerate(value.shape))
        if len(source.shape) != len(shape):
            return unsafe("its source has other dims")
        reason = misfit(source, TensorValue(-1, -1, shape, source.dtype), rows)
        if reason:
            return unsafe(reason)
    return safe(UNKNOWN)
