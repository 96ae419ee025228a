"""A call's arguments → the buffers that a recording reads, padded where the recording is of a larger size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxbucket.copies import narrowed
from fxbucket.pad_plan import PaddedArgument


class Filling:
    """Copies a call's arguments into buffers, and writes the padding beside them.

    Args:
        static: the buffer of each argument, ``None`` for what is not copied.
        args: the arguments of one of the calls; those of the others have the same sizes.
        padded: what arguments are smaller than their buffers.
    """

    def __init__(self, static: Sequence[Any], args: Sequence[Any], padded: Sequence[PaddedArgument] = ()) -> None:
        fills = {held.position: held.fill for held in padded}
        self._positions = [position for position, buffer in enumerate(static) if buffer is not None]
        self._fills = [fills.get(position, 0) for position in self._positions]
        self._buffers = [once(static[position]) for position in self._positions]
        self._is_padded = any(static[position].shape != args[position].shape for position in self._positions)

    def __call__(self, args: Sequence[Any]) -> None:
        """Fill the buffers for one call."""
        sources = [args[position] for position in self._positions]
        if not sources:
            return
        if len(sources) == 1 and not self._is_padded:
            self._buffers[0].copy_(_like(sources[0], self._buffers[0]), non_blocking=True)
            return
        if self._is_padded:
            for buffer, fill in zip(self._buffers, self._fills, strict=True):
                buffer.fill_(fill)
        whole = [_like(source, buffer) for source, buffer in zip(sources, self._buffers, strict=True)]
        targets = [narrowed(buffer, source.shape) for source, buffer in zip(whole, self._buffers, strict=True)]
        torch._foreach_copy_(targets, whole, non_blocking=True)


def once(buffer: torch.Tensor) -> torch.Tensor:
    """Return a buffer with each element of its memory once: one row of what repeats a row."""
    for dim, stride in enumerate(buffer.stride()):
        if stride == 0 and buffer.shape[dim] > 1:
            buffer = buffer.narrow(dim, 0, 1)
    return buffer


def _like(source: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Return a source without the rows that its buffer holds once."""
    for dim, (own, held) in enumerate(zip(source.shape, buffer.shape, strict=True)):
        if own > held:
            source = source.narrow(dim, 0, held)
    return source
