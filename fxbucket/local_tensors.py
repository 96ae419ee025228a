"""Graphs that hold distributed tensors → graphs of the tensors of this rank, with the collectives between them.

A ``DTensor`` is a tensor of all ranks, and a graph of such says nothing of what a rank computes and where it waits for the
others. AOTAutograd runs the graph on them, and so finds the ops on this rank's own tensors, the collectives, and the
backward with its own collectives. What it gives are graphs of plain tensors under the symbols of the capture, known
to every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from fxbucket.distributed_compat import aten_graphs
from fxbucket.passes.captured import tensors_in, value_of

GRADIENTS = "gradients are recorded for distributed tensors; call it under torch.no_grad()"
"""Why a graph that was made together with its backward is not recorded as a CUDA graph: the backward reads what it saved."""


def holds_distributed_tensors(module: fx.GraphModule) -> bool:
    """Whether a captured graph holds a ``DTensor``."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(tensor, DTensor) for node in module.graph.nodes for tensor in tensors_in(value_of(node)))


def on_local_tensors(
    module: fx.GraphModule, example_inputs: Sequence[Any], take: Callable[[fx.GraphModule, str], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return what runs a graph that holds distributed tensors.

    Args:
        module: Dynamo's graph.
        example_inputs: as Dynamo gave them.
        take: takes a graph of plain tensors, and why it must not be recorded as a CUDA graph (or an empty text), and
            returns what runs it. It is called once where no gradients are recorded; else for the forward, and for the
            backward when that is needed.
    """

    def taking(reason: str) -> Callable[..., Any]:
        def taken(local: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            # AOTAutograd has made the backward already, so nothing is recorded within either graph.
            with torch.no_grad():
                return take(local, reason)

        return taken

    return aten_graphs(module, example_inputs, taking(""), taking(GRADIENTS))
