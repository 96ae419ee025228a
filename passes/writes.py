"""Which nodes may write to their arguments, and pieces that write to memory which two of their inputs share."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import torch
from torch import fx

from fxbucket.passes.aliasing import storage_of, was_written
from fxbucket.passes.captured import value_of
from fxbucket.passes.kernel_calls import is_kernel_call

_WRITERS = frozenset(
    ["setitem", *(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor",
                                           "lshift", "rshift", "matmul", "concat"))]
)  # fmt: skip
"""Functions of ``operator`` that write to their first argument."""

_STATISTICS = frozenset({"batch_norm", "instance_norm"})
"""Functions that update running statistics which they are given."""


def may_write(node: fx.Node) -> bool:
    """Whether a node may write to one of its arguments; where that cannot be told, it may."""
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(getattr(target, name)._schema.is_mutable for name in target.overloads())
    name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    if name.endswith("_") or name in _WRITERS or name in _STATISTICS:
        return True
    return "out" in node.kwargs or is_kernel_call(node) or _is_in_place(node)


def _is_in_place(node: fx.Node) -> bool:
    """Whether a function is asked for its in-place form, such as ``relu(x, inplace=True)``."""
    if "inplace" in node.kwargs:
        return node.kwargs["inplace"] is not False
    if isinstance(node.target, str) or not any(argument is True for argument in node.args):
        return False
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return False  # a builtin, which has no such argument
    return bound.arguments.get("inplace", False) is not False


def holds_write(module: fx.GraphModule) -> bool:
    """Whether a graph, or the body of a higher-order op in it, holds a node that may write."""
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    return any(may_write(node) for graph in graphs for node in graph.nodes)


def writes_to_shared_inputs(module: fx.GraphModule) -> bool:
    """Whether a piece may write to memory that two of its inputs share.

    AOTAutograd rebuilds such inputs as views of one base; it refuses some of them, and fails on others (seen with an
    expanded view, with a view made under ``no_grad``, and where the length of the memory is symbolic).
    """
    storages: Counter[int] = Counter()
    written: set[int] = set()
    # Inner values may have no memory to ask for, such as those within a vmap.
    for value in (value_of(node) for node in module.graph.nodes if node.op == "placeholder"):
        storage = storage_of(value)
        if storage < 0:
            continue
        storages[storage] += 1
        if was_written(value):
            written.add(storage)
    return any(storages[storage] > 1 for storage in written) and holds_write(module)
