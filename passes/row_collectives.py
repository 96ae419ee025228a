"""Rules of padding for collectives: every rank pads alike, since every rank runs the same bucket.

That holds where all ranks have the same sizes. Where they do not, rows of one rank lie beside padding of another:
:func:`met_by_other_ranks` finds the calls in which that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from fxbucket.passes.lowering import AtenCall, Lowered
from fxbucket.passes.opnames import names_of_callable, spellings_of
from fxbucket.passes.row_facts import Rows, Rule, RuleBook, Verdict, safe, unsafe
from fxbucket.passes.symbolic import symbols_in

_SPACE = "_c10d_functional::"


def _alike(call: AtenCall, rows: Rows) -> Verdict:
    """Each element is made from the same element of every rank, so padding from padding alone."""
    return safe()


def _waited(call: AtenCall, rows: Rows) -> Verdict:
    return safe(rows.of(call["tensor"]))


def _gathered(call: AtenCall, rows: Rows) -> Verdict:
    """Rows of all ranks one behind the other: padding of one lies before rows of the next."""
    value = call["input"]
    if 0 not in rows.padded(value):
        return safe(rows.of(value))
    if value.key in rows.layouts:
        return unsafe("it gathers rows that lie between padding already")
    ranks = sympy.Integer(call["group_size"])
    reason = f"it puts rows of each rank behind the padding of another ({rows.axis(value, (0,))})"
    layout = ((ranks, value.shape[0]), *((size,) for size in value.shape[1:]))
    return Verdict(contents=(rows.of(value),), layout=layout, merges=reason)


def _dealt(call: AtenCall, rows: Rows) -> Verdict:
    """Dim 0 is cut into as many parts as there are ranks, wherever padding lies in it."""
    value = call["input"]
    if 0 in rows.padded(value):
        return unsafe(f"it deals out {rows.axis(value, (0,))} among the ranks, and the parts of the bucket are longer")
    return safe()


RULES = RuleBook(
    {
        f"{_SPACE}all_reduce": Rule(_alike),
        f"{_SPACE}all_reduce_": Rule(_alike),
        f"{_SPACE}broadcast": Rule(_alike),
        f"{_SPACE}wait_tensor": Rule(_waited),
        f"{_SPACE}all_gather_into_tensor": Rule(_gathered),
        f"{_SPACE}reduce_scatter_tensor": Rule(_dealt),
        f"{_SPACE}all_to_all_single": Rule(_dealt),
    }
)

SAME_LAYOUT = {f"{_SPACE}all_reduce": "input", f"{_SPACE}broadcast": "input", f"{_SPACE}wait_tensor": "tensor"}
"""Collectives whose result has the layout of this argument."""


def met_by_other_ranks(lowered: Lowered, symbols: frozenset[sympy.Symbol], row_safe_ops: Sequence[Any]) -> str:
    """Return why a graph cannot be padded where ranks have different sizes, or an empty text.

    Args:
        lowered: the graph's ops.
        symbols: those of which the ranks have different values.
        row_safe_ops: ops of which the user promises that each row depends on its own row alone, on other ranks too.
    """
    trusted = frozenset().union(*(spellings_of(op) for op in row_safe_ops))
    for call in lowered.calls:
        is_collective = call.op.partition("::")[0].endswith("c10d_functional") and call.op not in (f"{_SPACE}wait_tensor",)
        if not is_collective or not trusted.isdisjoint(names_of_callable(call.target)):
            continue
        if not symbols.isdisjoint(symbols_in([value.shape for value in (*call.tensors, *call.results)])):
            return (
                f"{call.node.name}: {call.op} brings rows of ranks together, and padding of one rank would meet rows of "
                f'another; declare it with row_safe_ops=["{call.op}"] if each row depends on its own row alone'
            )
    return ""
