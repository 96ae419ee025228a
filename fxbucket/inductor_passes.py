"""The one place for the names of Inductor's passes over a graph: one of them is kept from giving results another's memory.

Checked with torch 2.11.0, 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import fx

_REMOVED = tuple(getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div"))
"""What Inductor removes where it does nothing: a zero is added, or multiplied by one."""


@contextlib.contextmanager
def results_with_memory_of_their_own() -> Iterator[None]:
    """While the context is open, Inductor makes no graph that returns an argument, or one result twice, for a copy of it.

    In a graph that ends with ``x * torch.ones_like(x)`` (and, since torch 2.14, ``x * 1``) Inductor leaves the product out
    and returns ``x``. A piece that runs later may write to ``x``, and so would change a result that was right. Stands for
    ``torch._inductor.fx_passes.joint_graph.remove_no_ops``; other passes of the kind see to it themselves.
    """
    from torch._inductor.fx_passes import joint_graph

    with mock.patch.object(joint_graph, "remove_no_ops", _copying(joint_graph.remove_no_ops)):
        yield


def _copying(remove: Callable[..., None]) -> Callable[..., None]:
    """Return the pass such that it puts a copy where it removes an op whose memory is that of a result."""

    def removed(module: fx.GraphModule, *args: Any) -> None:
        graph = module.graph
        values = {node: node.meta["val"] for node in graph.nodes if "val" in node.meta}
        returned = {_storage(values.get(node)) for node in graph.output_node().all_input_nodes} - {None}
        copies: dict[fx.Node, fx.Node] = {}
        for node in list(graph.nodes):
            if node.target in _REMOVED and _storage(values.get(node)) in returned:
                with graph.inserting_after(node):
                    copy = graph.call_function(torch.ops.aten.clone.default, (node,))
                node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
                copy.meta = dict(node.meta)
                copies[copy] = node
        remove(module, *args)
        for copy, node in copies.items():
            if copy.args[0] is node:
                copy.replace_all_uses_with(node)
                graph.erase_node(copy)
        # It gives what stands in for a node the metadata of that node, its memory too, by which later passes tell copies.
        for node in graph.nodes:
            if node in values:
                node.meta["val"] = values[node]

    return removed


def _storage(value: object) -> int | None:
    """Return the identity of a tensor's memory; ``None`` for what is no plain tensor."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)
