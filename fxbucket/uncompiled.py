"""Graphs and pieces that run uncompiled, right where the captured graph alone would not be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def runner_of(module: fx.GraphModule) -> Callable[..., Any]:
    """Return what runs a captured graph uncompiled.

    A checkpoint is captured as an op that compilers read. Called as it is, it runs its body again for the backward with
    other random numbers, so that gradients belong to other dropout masks than the results; what is returned calls torch's
    own checkpoint in its place.
    """
    return _mended(module).forward


def _mended(module: fx.GraphModule) -> fx.GraphModule:
    bodies = {name: inner for name, inner in module.named_children() if isinstance(inner, fx.GraphModule)}
    mended = {name: _mended(inner) for name, inner in bodies.items()}
    has_own = any(node.target is _CHECKPOINT for node in module.graph.nodes)
    if not has_own and all(mended[name] is inner for name, inner in bodies.items()):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if node.target is _CHECKPOINT:
            node.target = _checkpointed
    made = fx.GraphModule(module, graph)
    for name, inner in mended.items():
        if hasattr(made, name):
            setattr(made, name, inner)
    made.meta.update(module.meta)
    return made


def _checkpointed(body: fx.GraphModule, *args: Any, **settings: Any) -> Any:
    # What the body saves by itself, the user may have said with a policy; the capture keeps it with the body.
    contexts = body.meta.get("_checkpoint_context_fn")
    given = {**settings, "use_reentrant": False, **({} if contexts is None else {"context_fn": contexts})}
    return checkpoint(functools.partial(_run, body), *args, **given)


def _run(body: fx.GraphModule, *args: Any) -> Any:
    return body(*args)
