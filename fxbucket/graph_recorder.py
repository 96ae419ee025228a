"""Which buckets of a captured graph are recorded as CUDA graphs, and all of them before they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from fxbucket.copies import narrowed
from fxbucket.cudagraphs import Recordable, RecordedBucket
from fxbucket.emit import accept_function
from fxbucket.entry import Entry
from fxbucket.fragments import hand_on
from fxbucket.graph_pool import GraphPool
from fxbucket.options import CudaGraphs, Options
from fxbucket.passes.program import Program
from fxbucket.passes.recordable import reasons_not_to_record, reasons_not_to_replay, recording_device
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, Number, evaluate, expression_of, is_float_symbol, symbols_in
from fxbucket.static_fill import once
from fxbucket.static_memory import StaticBuffers, sizes_of

Function = Callable[..., Any]


class GraphRecorder:
    """Wraps the functions of one graph's pinned buckets such that they are recorded and replayed.

    Args:
        program: the graph, cut; symbolic.
        options: the model's options.
        recordings: what it shares with the model's other graphs.
        entries: the graph's buckets, those to come too.
    """

    def __init__(self, program: Program, options: Options, recordings: GraphPool, entries: Sequence[Entry]) -> None:
        self._program = program
        self._options = options
        self._recordings = recordings
        self._entries = entries
        self._buffers: StaticBuffers | None = None
        self._example: tuple[Any, ...] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory in the buffers of the graph's arguments."""
        return 0 if self._buffers is None else self._buffers.num_bytes

    def recorded(self, entry: Entry, function: Function) -> Function:
        """Return what records and replays an entry; the function itself where it is not pinned or cannot be recorded."""
        program = entry.program
        assert program is not None  # it was just compiled
        if entry.bucket.ranges or entry not in self._entries:
            return function
        mode, reasons = self._mode(program)
        device = recording_device(program)
        if reasons or device is None:
            text = "; ".join(reasons) or "no argument is on a GPU"
            entry.recording = lambda: f"not recorded: {text}"
            return function
        if self._buffers is None:
            bindings = [known.binding for known in self._entries if not known.bucket.ranges]
            self._buffers = StaticBuffers(self._program.capture, device, bindings)
        accepts = accept_function(program, entry.conditions)
        bucket = Recordable(
            program,
            entry.artifacts,
            function,
            None if accepts is None else accepts.function,
            hand_on(self._program),
            entry.counter,
            self.note,
        )
        made = RecordedBucket(bucket, mode, self._buffers, self._recordings, self._options)
        entry.recording = lambda: made.state
        return made

    def _mode(self, program: Program) -> tuple[CudaGraphs, tuple[str, ...]]:
        """Return how a bucket is recorded, and why it is not."""
        mode = self._options.cudagraphs
        if mode == "piecewise":
            return mode, reasons_not_to_replay(program)
        reasons = reasons_not_to_record(program)
        if reasons and mode == "auto":
            return "piecewise", reasons_not_to_replay(program)
        return mode, reasons

    def note(self, args: Sequence[Any]) -> None:
        """Keep the arguments of a call, while recordings are being prepared, as an example for all buckets."""
        if self._recordings.is_warming and self._example is None:
            self._example = tuple(args)

    def record_all(self) -> None:
        """Record every compiled bucket, the largest first, so that the others find room in the memory that it leaves.

        Each is run on arguments that are made up from those of a call that was noted. Where the graph writes to more than
        these, such as a module's buffers, nothing is recorded before its own calls come.
        """
        example, self._example = self._example, None
        if example is None:
            return
        found = [(entry, entry.run) for entry in self._entries if isinstance(entry.run, RecordedBucket)]
        for entry, bucket in sorted(found, key=lambda pair: -_size(pair[0].binding)):
            made = None if bucket.is_recorded else self._arguments(entry.binding, example)
            if made is not None:
                bucket.prepare(*made)

    def _arguments(
        self, binding: Mapping[sympy.Symbol, Number], example: Sequence[Any]
    ) -> tuple[list[Any], frozenset[int]] | None:
        """Return arguments of a bucket's sizes, and the positions of those that were made up for it."""
        assert self._buffers is not None  # a bucket is there to be recorded
        capture = self._program.capture
        made: list[Any] = list(example)
        copied = set()
        for position, value in enumerate(capture.argument_values):
            if not symbols_in(value) or capture.placeholders[position].role not in ("input", "symbol"):
                continue
            if isinstance(value, SYMBOLIC_TYPES):
                if not symbols_in(value) <= binding.keys():
                    return None
                made[position] = evaluate(expression_of(value), binding)
            elif isinstance(value, torch.Tensor):
                sizes = sizes_of(value, binding)
                if sizes is None:
                    return None
                made[position] = self._made_up(position, sizes, example[position])
                copied.add(position)
        return (made, frozenset(copied)) if copied.issuperset(capture.written) else None

    def _made_up(self, position: int, sizes: tuple[tuple[int, ...], tuple[int, ...]], like: torch.Tensor) -> torch.Tensor:
        """Return the buffer of an argument with the values of the example as far as they reach, and zeros beyond."""
        assert self._buffers is not None  # as above
        shape, strides = sizes
        buffer = once(self._buffers.buffer(position, shape, strides, like.dtype)).zero_()
        common = [min(own, held) for own, held in zip(like.shape, buffer.shape, strict=True)]
        narrowed(buffer, common).copy_(narrowed(like, common))
        return buffer.expand(shape)


def _size(binding: Mapping[sympy.Symbol, Number]) -> float:
    size = 1.0
    for symbol, value in binding.items():
        size *= 1 if is_float_symbol(symbol) else value
    return size
