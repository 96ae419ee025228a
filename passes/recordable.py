"""Whether a concrete program can be recorded and replayed: nothing in it may ask the host, or differ between calls."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fxbucket.passes.aliasing import storage_of
from fxbucket.passes.captured import tensors_in, value_of
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import is_wrapper_subclass, symbols_in


def reasons_not_to_record(program: Program) -> tuple[str, ...]:
    """Return why a program made for one bucket cannot be recorded as a CUDA graph; empty where nothing speaks against it.

    What only shows while it runs (an op that waits for the device) is found when it is recorded.

    Args:
        program: made concrete.
    """
    return tuple(dict.fromkeys(_reasons(program)))


def _reasons(program: Program) -> Iterator[str]:
    capture = program.capture
    if capture.refusal:
        yield f"it runs as it was captured: {capture.refusal}"
        return
    if capture.unbacked:
        yield "a size depends on the data, so the host must read it"
    nodes = [node for piece in program.pieces for node in piece.module.graph.nodes]
    if any(symbols_in(value_of(node)) for node in nodes):
        yield "not every size is pinned"
    values = [value_of(node) for node in capture.module.graph.nodes]
    tensors = [tensor for value in values for tensor in tensors_in(value)]
    if capture.ambient.grad_enabled and any(tensor.requires_grad for tensor in tensors):
        yield "gradients are recorded; call it under torch.no_grad()"
    devices = {tensor.device for tensor in tensors}
    if any(device.type != "cuda" for device in devices):
        kinds = ", ".join(sorted({device.type for device in devices if device.type != "cuda"}))
        yield f"it holds tensors on {kinds}"
    elif len(devices) > 1:
        yield "it holds tensors on several devices"
    if any(is_wrapper_subclass(tensor) or tensor.layout is not torch.strided for tensor in tensors):
        yield "it holds tensors that are not plain memory"
    yield from _shared_results(program)


def _shared_results(program: Program) -> Iterator[str]:
    """Yield why results cannot be copied out: they share memory with an argument, or with each other."""
    graph = program.capture.module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    inputs = {storage_of(value_of(node)) for node in graph.nodes if node.op == "placeholder"} - {-1}
    results = [node for node in output.all_input_nodes if node.op != "placeholder"]
    memory = [storage_of(tensor) for node in results for tensor in tensors_in(value_of(node))]
    if not inputs.isdisjoint(memory):
        yield "a result is a view of an argument"
    if len(set(memory)) != len(memory):
        yield "two results share memory"
