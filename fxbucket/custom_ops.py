"""Ops of the user's own whose definition a compiler reads: what was compiled is as old as that definition.

To most compilations an op that torch does not know is a name that is called. Some, though, take it apart: into the ops that
it is made of, or, for a backward, into what its author registered. Nothing of that is part of a piece's form, so that such
a piece lives no longer than the process, in which ops are rarely defined anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fxbucket.inductor import is_op_rewritten
from fxbucket.passes.ambient import Ambient
from fxbucket.passes.captured import value_of
from fxbucket.torch_compat import kernels_read_by_tracing


def reasons_to_keep_here(module: fx.GraphModule, ambient: Ambient) -> list[str]:
    """Return, for each op that compilation takes apart and that is not torch's, a clause that says so.

    Args:
        module: a piece's module.
        ambient: the switches under which it was captured.
    """
    names = taken_apart(module, ambient)
    return [f"calls {name}, which is compiled into it and may be another op tomorrow" for name in names]


def taken_apart(module: fx.GraphModule, ambient: Ambient) -> list[str]:
    """Return the names of the ops in a piece that compilation takes apart and that are not torch's; arguments as above."""
    found: dict[str, None] = {}
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    differentiates = _differentiates(nodes, ambient)
    for op in dict.fromkeys(op for node in nodes for op in overloads_of(node.target)):
        if op.namespace not in _OF_TORCH and (kernels_read_by_tracing(op, differentiates) or is_op_rewritten(op)):
            found[f"{op.namespace}::{op._opname}"] = None
    return list(found)


def overloads_of(target: Any) -> Iterator[torch._ops.OpOverload]:
    """Yield the overloads that a node's target may call; nothing for what is no op."""
    if isinstance(target, torch._ops.OpOverload):
        yield target
    elif isinstance(target, torch._ops.OpOverloadPacket):
        yield from (getattr(target, name) for name in target.overloads())


def _differentiates(nodes: list[fx.Node], ambient: Ambient) -> bool:
    """Whether the piece may have a backward."""
    switches = any("grad" in getattr(node.target, "__name__", str(node.target)) for node in nodes)
    inputs = [value_of(node) for node in nodes if node.op in ("placeholder", "get_attr")]
    wants = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    return wants and (ambient.grad_enabled or switches)


_OF_TORCH = frozenset({"aten", "prim", "prims", "inductor", "quantized", "mkldnn", "mkl", "onednn", "profiler", "c10d",
                       "_c10d_functional", "c10d_functional", "rngprims", "streams", "debugprims", "bucketing"})  # fmt: skip
"""Namespaces of ops that come with torch, and change with its version alone."""
