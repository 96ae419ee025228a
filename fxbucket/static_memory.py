"""Memory at fixed addresses: the buffers that recordings read their arguments from, and tensors that do not own theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from fxbucket.passes.captured import Capture
from fxbucket.passes.symbolic import Number, evaluate, expression_of, symbols_in
from fxbucket.passes.tensors import span


class StaticBuffers:
    """Memory at fixed addresses for the arguments of one captured graph, shared by its buckets and sized by the largest.

    Args:
        capture: the graph.
        device: where the buffers are.
        bindings: the numbers of each bucket that may be recorded.
    """

    def __init__(self, capture: Capture, device: torch.device, bindings: Sequence[Mapping[sympy.Symbol, Number]]) -> None:
        self.device = device
        self._memory: dict[int, torch.Tensor] = {}
        self._num_bytes: dict[int, int] = {}
        for position, value in enumerate(capture.argument_values):
            if isinstance(value, torch.Tensor):
                sizes = [_num_bytes(value, binding) for binding in bindings]
                self._num_bytes[position] = max(sizes, default=0)

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory in the buffers."""
        return sum(memory.numel() for memory in self._memory.values())

    def buffer(self, position: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return the buffer of an argument, as a tensor of these sizes and strides, in elements."""
        needed = span(shape, strides) * dtype.itemsize
        memory = self._memory.get(position)
        if memory is None or memory.numel() < needed:
            num_bytes = max(needed, self._num_bytes.get(position, 0))
            memory = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
            self._memory[position] = memory
        return memory[:needed].view(dtype).as_strided(tuple(shape), tuple(strides))


def sizes_of(value: torch.Tensor, binding: Mapping[sympy.Symbol, Number]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the sizes and strides that a tensor of the capture has in a bucket; ``None`` where that is not known."""
    numbers = (*value.shape, *value.stride())
    if not symbols_in(numbers) <= binding.keys():
        return None
    found = [int(evaluate(expression_of(number), binding)) for number in numbers]
    return tuple(found[: value.dim()]), tuple(found[value.dim() :])


def _num_bytes(value: torch.Tensor, binding: Mapping[sympy.Symbol, Number]) -> int:
    found = sizes_of(value, binding)
    return 0 if found is None else span(*found) * value.element_size()


class _Memory:
    """Device memory as other libraries see it; what is in ``owners`` stays for as long as a tensor of it does."""

    def __init__(self, address: int, num_bytes: int, owners: Sequence[Any]) -> None:
        self.owners = owners
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def without_owning(tensor: torch.Tensor, owners: Sequence[Any]) -> torch.Tensor:
    """Return a tensor over the memory of another that does not keep that memory from being used again.

    What a recording gives lies where it lay when it was recorded, and may be written over by what was recorded later: to
    hold it would only keep later recordings from using its place. Made by the public ``__cuda_array_interface__``.

    Args:
        tensor: on a GPU.
        owners: what has to stay for as long as the returned tensor does, such as the pool that the memory belongs to.
    """
    num_bytes = span(tensor.shape, tensor.stride()) * tensor.element_size()
    if num_bytes == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    flat = torch.as_tensor(_Memory(tensor.data_ptr(), num_bytes, owners), device=tensor.device)
    return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
