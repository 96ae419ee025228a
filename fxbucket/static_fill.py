"""A call's arguments → the buffers that a recording reads, padded where the recording is of a larger size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxbucket.kernels import Filler, Slot, prepare
from fxbucket.pad_plan import PaddedArgument


class Filling:
    """Copies a call's arguments into buffers, and writes the padding beside them.

    Args:
        static: the buffer of each argument, ``None`` for what is not copied.
        args: the arguments of one of the calls; those of the others have the same sizes and strides.
        padded: what arguments are smaller than their buffers.
    """

    def __init__(self, static: Sequence[Any], args: Sequence[Any], padded: Sequence[PaddedArgument] = ()) -> None:
        fills = {held.position: held.fill for held in padded}
        self._positions = [position for position, buffer in enumerate(static) if buffer is not None]
        self._buffers = [once(static[position]) for position in self._positions]
        sources = [_like(args[position], buffer) for position, buffer in zip(self._positions, self._buffers, strict=True)]
        self._is_whole = all(args[place] is source for place, source in zip(self._positions, sources, strict=True))
        same = all(buffer.shape == source.shape for buffer, source in zip(self._buffers, sources, strict=True))
        self._filler: Filler | None = None
        # One copy is one launch anyway, and torch's own is the fastest.
        if len(sources) > 1 or not same:
            slots = [
                Slot(buffer, tuple(source.shape), source.stride(), fills.get(place, 0))
                for place, buffer, source in zip(self._positions, self._buffers, sources, strict=True)
            ]
            self._filler = prepare(slots)

    def __call__(self, args: Sequence[Any]) -> None:
        """Fill the buffers for one call."""
        sources = [args[position] for position in self._positions]
        if not self._is_whole:
            sources = [_like(source, buffer) for source, buffer in zip(sources, self._buffers, strict=True)]
        if self._filler is not None:
            # The look-up and Dynamo's guards have settled all that a filler would check.
            self._filler.unchecked(sources)
        elif sources:
            self._buffers[0].copy_(sources[0], non_blocking=True)


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
