"""Whether a concrete program can be recorded and replayed: nothing in it may ask the host, or differ between calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from fxbucket.passes.aliasing import storage_of
from fxbucket.passes.captured import tensors_in, value_of
from fxbucket.passes.collectives import unfinished
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.symbolic import is_wrapper_subclass, symbols_in


def reasons_not_to_record(program: Program) -> tuple[str, ...]:
    """Return why a program made for one bucket cannot be recorded whole; empty where nothing speaks against it.

    What only shows while it runs (an op that waits for the device) is found when it is recorded.

    Args:
        program: made concrete.
    """
    values = [value_of(node) for piece in program.pieces for node in piece.module.graph.nodes]
    found = [*reasons_not_to_replay(program)]
    if program.capture.unbacked:
        found.append("a size depends on the data, so the host must read it")
    if not program.capture.refusal:
        found += _of_values(values, recording_device(program))
    return tuple(dict.fromkeys(found))


def reasons_not_to_replay(program: Program) -> tuple[str, ...]:
    """Return why no part of a program can be recorded; empty where nothing speaks against it.

    Args:
        program: made concrete.
    """
    return tuple(dict.fromkeys(_of_program(program)))


def reasons_to_run(piece: Piece, device: torch.device) -> tuple[str, ...]:
    """Return why a piece alone cannot be part of a recording on a device; empty where nothing speaks against it."""
    if piece.is_boundary:
        return ("it is a boundary",)
    nodes = piece.module.graph.nodes
    return tuple(dict.fromkeys([*_of_values([value_of(node) for node in nodes], device), *unfinished(nodes)]))


def recording_device(program: Program) -> torch.device | None:
    """Return the device of a program's recordings: that of its first argument on a GPU; ``None`` where none is on one."""
    devices = [tensor.device for tensor in tensors_in(program.capture.argument_values)]
    return next((device for device in devices if device.type == "cuda"), None)


def _of_program(program: Program) -> Iterator[str]:
    capture = program.capture
    if capture.refusal:
        yield f"it runs as it was captured: {capture.refusal}"
        return
    if capture.unrecordable:
        yield capture.unrecordable
    tensors = [tensor for node in capture.module.graph.nodes for tensor in tensors_in(value_of(node))]
    if capture.ambient.grad_enabled and any(tensor.requires_grad for tensor in tensors):
        yield "gradients are recorded; call it under torch.no_grad()"
    yield from _shared_results(program)


def _of_values(values: Iterable[object], device: torch.device | None) -> Iterator[str]:
    """Yield what speaks against a recording that holds these values on a device; ``None`` where there is no GPU's."""
    values = list(values)
    if any(symbols_in(value) for value in values):
        yield "not every size is pinned"
    tensors = [tensor for value in values for tensor in tensors_in(value)]
    others = {tensor.device for tensor in tensors} - {device}
    if others:
        yield f"it holds tensors on {', '.join(sorted(map(str, others)))}"
    if any(is_wrapper_subclass(tensor) or tensor.layout is not torch.strided or _is_lazy(tensor) for tensor in tensors):
        yield "it holds tensors that are not plain memory"


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory holds the conjugate or the negative of its values."""
    return tensor.layout is torch.strided and (tensor.is_conj() or tensor.is_neg())


def _shared_results(program: Program) -> Iterator[str]:
    """Yield why results cannot be copied out: they share memory with an argument, or with each other."""
    graph = program.capture.module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    inputs = {storage_of(value) for value in program.capture.argument_values} - {-1}
    results = [node for node in output.all_input_nodes if node.op != "placeholder"]
    memory = [storage_of(tensor) for node in results for tensor in tensors_in(value_of(node))]
    if not inputs.isdisjoint(memory):
        yield "a result is a view of an argument"
    if len(set(memory)) != len(memory):
        yield "two results share memory"
