"""Dims that hold several: what becomes of padding where a view makes one dim of some, ``(5, tokens)`` → ``(5*tokens,)``.

Padding then lies between what is real. An op that treats each place of such a dim alike, as a matrix product does its rows,
may still follow, and a later view may take the dim apart again; that is how ``linear`` treats tensors of three dims.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy

from fxbucket.passes.lowering import AtenCall, TensorValue
from fxbucket.passes.row_collectives import SAME_LAYOUT
from fxbucket.passes.row_facts import Factors, Layout, Rows, Rule, broadcast_dims, dims_of
from fxbucket.passes.row_pointwise import pointwise
from fxbucket.passes.row_reductions import reduction
from fxbucket.passes.row_views import expand


def carried(call: AtenCall, rule: Rule, rows: Rows) -> Layout | None:
    """Return the layout of what a call gives where its arguments have dims that hold several; ``None`` if it has none.

    The call was found safe for padding that lies behind what is real; here each dim must keep the order that it has.
    """
    if rule.judge in (pointwise, expand):
        return _along(call, rows)
    if rule.judge is reduction:
        value = call["self"]
        reduced = dims_of(call, value)
        kept = len(call.results[0].shape) == len(value.shape)
        one: Factors = (sympy.Integer(1),)
        layout = rows.layout(value)
        return tuple(one if dim in reduced else factors for dim, factors in enumerate(layout) if kept or dim not in reduced)
    name = call.op.removeprefix("aten::")
    if name in _SAME:
        return rows.layout(call[_SAME[name]])
    return _BY_DIMS[name](call, rows) if name in _BY_DIMS else None


_SAME = {
    "_softmax": "self", "_log_softmax": "self", "_safe_softmax": "self", "native_layer_norm": "input",
    "_fused_rms_norm": "input", **SAME_LAYOUT,
}  # fmt: skip
"""Ops whose first result has the layout of this argument."""


def _along(call: AtenCall, rows: Rows) -> Layout | None:
    result: TensorValue = call.results[0]
    layout: list[Factors] = [(size,) for size in result.shape]
    seen: set[int] = set()
    for operand in call.tensors:
        for dim, place in broadcast_dims(operand, result.shape):
            if operand.shape[dim] == 1:
                continue
            factors = rows.layout(operand)[dim]
            if place in seen and factors != layout[place]:
                return None
            layout[place] = factors
            seen.add(place)
    return tuple(layout)


def _product(left: str, right: str, batched: bool, added: str = "") -> Callable[[AtenCall, Rows], Layout | None]:
    def layout(call: AtenCall, rows: Rows) -> Layout | None:
        if added and call.arguments.get(added) is not None and call[added].key in rows.layouts:
            return None
        one, other = rows.layout(call[left]), rows.layout(call[right])
        if one[-1] != other[-2] or (batched and one[0] != other[0]):
            return None
        return (*one[:-1], other[-1])

    return layout


def _linear(call: AtenCall, rows: Rows) -> Layout | None:
    if any(value.key in rows.layouts for value in call.tensors[1:]):
        return None
    return (*rows.layout(call["input"])[:-1], rows.layout(call["weight"])[0])


def _transposed(call: AtenCall, rows: Rows) -> Layout:
    layout = list(rows.layout(call["self"]))
    one, other = call.arguments.get("dim0", 0), call.arguments.get("dim1", -1)
    layout[one], layout[other] = layout[other], layout[one]
    return tuple(layout)


def _permuted(call: AtenCall, rows: Rows) -> Layout:
    layout = rows.layout(call["self"])
    return tuple(layout[dim] for dim in call["dims"])


_BY_DIMS: dict[str, Callable[[AtenCall, Rows], Layout | None]] = {
    "mm": _product("self", "mat2", batched=False),
    "bmm": _product("self", "mat2", batched=True),
    "addmm": _product("mat1", "mat2", batched=False, added="self"),
    "baddbmm": _product("batch1", "batch2", batched=True, added="self"),
    "linear": _linear,
    "transpose": _transposed,
    "t": _transposed,
    "permute": _permuted,
}
