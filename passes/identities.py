"""Ops that return their very argument: replace their result by the argument.

``torch.nn.functional.dropout(x, training=False)`` gives ``x`` itself, though its schema promises a new tensor. A compiler
that trusts the schema loses a later write through the result.
"""

from __future__ import annotations

import torch
from torch import fx

from fxbucket.passes.captured import value_of
from fxbucket.passes.opnames import op_names

_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"})
_ALPHA_DROPOUTS = frozenset({"alpha_dropout", "feature_alpha_dropout"})


def _is_identity(node: fx.Node) -> bool:
    """Whether a node is a dropout that has nothing to drop, which ATen answers with the argument itself."""
    names = {name.rpartition("::")[2] for name in op_names(node) if name.startswith("aten::")}
    if names.isdisjoint(_DROPOUTS | _ALPHA_DROPOUTS) or not isinstance(_source(node), fx.Node):
        return False
    probability = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    default = names.isdisjoint(_ALPHA_DROPOUTS)
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", node.kwargs.get("train", default))
    return training is False or (isinstance(probability, (int, float)) and probability == 0)


def _source(node: fx.Node) -> object:
    return node.args[0] if node.args else node.kwargs.get("input")


def forward_identities(module: fx.GraphModule) -> tuple[fx.GraphModule, frozenset[str]]:
    """Return a graph in which no op returns its very argument, and which nodes a write through such a result reached.

    The graph is the same object where there was nothing to do. Fake tensors do not show the identity, so the writes that
    the capture counted on the result are told apart here.
    """
    found = {node.name for node in module.graph.nodes if node.op in ("call_function", "call_method") and _is_identity(node)}
    if not found:
        return module, frozenset()
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    written: set[str] = set()
    for node in list(graph.nodes):
        if node.name in found:
            source = _source(node)
            if not isinstance(source, fx.Node):
                continue
            value = value_of(node)
            if isinstance(value, torch.Tensor) and not value.is_inference() and value._version > 0:
                written.add(source.name)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    rebuilt = fx.GraphModule(module, graph)
    rebuilt.meta = dict(module.meta)
    return rebuilt, frozenset(written)
