"""Memory that arguments share: what a graph writes to, and whether writing there could be seen through another argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from fxbucket.passes.captured import Capture, value_of
from fxbucket.passes.opnames import op_names
from fxbucket.passes.symbolic import is_wrapper_subclass

_STATISTICS = frozenset({"aten::batch_norm", "aten::instance_norm"})
"""Ops that update running statistics without counting it as a write to the tensor's version."""


def written_placeholders(module: fx.GraphModule, also: frozenset[str] = frozenset()) -> tuple[int, ...]:
    """Return the positions of the tensor arguments that a captured graph writes to.

    The capture ran the graph on fake tensors; every write in it, through views and custom ops too, raised the version of
    the argument that it went to.

    Args:
        module: the captured graph.
        also: names of nodes known to be written to; whatever they share memory with is written to as well.
    """
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    storages = {storage_of(value_of(node)) for node in module.graph.nodes if node.name in also}
    written = []
    for position, node in enumerate(nodes):
        value = value_of(node)
        if not isinstance(value, torch.Tensor):
            continue
        statistics = any(not op_names(user).isdisjoint(_STATISTICS) for user in node.users) and value.dim() == 1
        if was_written(value) or storage_of(value) in storages or (statistics and not value.requires_grad):
            written.append(position)
    return tuple(written)


def was_written(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor of the capture may have been written to; one of inference mode counts no versions."""
    return tensor.is_inference() or tensor._version > 0


def storage_of(value: object) -> int:
    """Return a number for the memory of a strided tensor; -1 for what has none."""
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided and not is_wrapper_subclass(value)
    return value.untyped_storage()._cdata if strided and isinstance(value, torch.Tensor) else -1


def exposed_placeholders(capture: Capture) -> tuple[int, ...]:
    """Return the positions of the other arguments that could share memory with what the graph writes to.

    Parameters and buffers are the module's own: their memory does not change hands from call to call.
    """
    nodes = [node for node in capture.module.graph.nodes if node.op == "placeholder"]
    roles = [placeholder.role for placeholder in capture.placeholders]
    writes_to_inputs = any(roles[position] == "input" for position in capture.written)
    if not capture.written:
        return ()
    return tuple(
        position
        for position, node in enumerate(nodes)
        if isinstance(value_of(node), torch.Tensor)
        and position not in capture.written
        and (roles[position] == "input" or writes_to_inputs)
    )


def overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors may share memory: one storage, and byte ranges that meet.

    Tensors that interleave without touching (two columns of one matrix) count as overlapping.
    """
    if left.layout is not torch.strided or right.layout is not torch.strided:
        return False
    if left.numel() == 0 or right.numel() == 0 or left.untyped_storage()._cdata != right.untyped_storage()._cdata:
        return False
    (start, end), (other_start, other_end) = _byte_range(left), _byte_range(right)
    return start < other_end and other_start < end


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + int(reach + 1) * tensor.element_size()


def written_overlap(arguments: Sequence[object], written: Sequence[int], exposed: Sequence[int]) -> bool:
    """Whether any argument that is written to may share memory with another of the arguments that matter."""
    for number, position in enumerate(written):
        target = arguments[position]
        if not isinstance(target, torch.Tensor):
            continue
        for other in (*written[number + 1 :], *exposed):
            value = arguments[other]
            if isinstance(value, torch.Tensor) and value is not target and overlap(target, value):
                return True
    return False
