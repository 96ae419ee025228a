"""CUDA graphs: a bucket recorded once at fixed addresses, and replayed at each call."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sympy
import torch

from fxbucket.copies import strided_copy
from fxbucket.passes.captured import Capture, value_of
from fxbucket.passes.errors import FxbucketWarning
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import Number, evaluate, expression_of, symbols_in
from fxbucket.passes.tensors import span
from fxbucket.torch_compat import same_addresses

Function = Callable[..., Any]
Outputs = Literal["copy", "static"]


@dataclass(eq=False)
class Recordings:
    """The recordings of one model: one pool of memory, one at a time, the least recently used goes first.

    Attributes:
        most: how many buckets are recorded at once; ``None`` for all.
        lock: held while a recording is made or replayed, for all of them share memory.
    """

    most: int | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    _used: OrderedDict[int, RecordedBucket] = field(default_factory=OrderedDict)
    _pools: dict[torch.device, Any] = field(default_factory=dict)
    _stream: torch.cuda.Stream | None = None

    def pool(self, device: torch.device) -> Any:
        """Return the pool of a device that all recordings share; it stays when the last of them goes."""
        if device not in self._pools:
            self._pools[device] = torch.cuda.MemPool()
        return self._pools[device].id

    def used(self, bucket: RecordedBucket) -> None:
        """Note that a recording was used, and forget the least recently used one where there are too many."""
        self._used[id(bucket)] = bucket
        self._used.move_to_end(id(bucket))
        if self.most is not None and len(self._used) > self.most:
            _, oldest = self._used.popitem(last=False)
            oldest.forget()

    def enter(self, device: torch.device) -> None:
        """Have the current stream wait for what another one replayed last."""
        stream = torch.cuda.current_stream(device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory in the pools of these recordings."""
        pools = {tuple(pool.id) for pool in self._pools.values()}
        segments = torch.cuda.memory_snapshot()
        return sum(int(held["total_size"]) for held in segments if tuple(held["segment_pool_id"]) in pools)


@dataclass(eq=False)
class _Recording:
    """One recorded graph and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    static: list[Any]
    fixed: list[int]
    addresses: list[int | None]
    results: Any


class RecordedBucket:
    """Serves the calls of one bucket by replaying a recording of all its pieces, boundaries too.

    The first call runs as ever, the second is recorded, later ones are replayed. Arguments whose address stays (parameters,
    buffers, and inputs that came from one place twice) are read where they are; others are copied into buffers that all
    buckets of the graph share.

    Args:
        function: runs the bucket.
        program: what it runs, concrete.
        buffers: the buffers of the graph's arguments.
        recordings: what it shares with the model's other buckets.
        counter: its first item counts the calls; ``function`` counts those that run it, and its recording is such a one.
        outputs: ``"copy"``: results are the caller's own; ``"static"``: they are memory that the next call of any bucket
            writes over.
    """

    def __init__(
        self,
        function: Function,
        program: Program,
        buffers: StaticBuffers,
        recordings: Recordings,
        counter: list[int],
        outputs: Outputs,
    ) -> None:
        self.function = function
        self.note = ""
        self.num_recorded = 0
        self._program = program
        self._buffers = buffers
        self._recordings = recordings
        self._counter = counter
        self._outputs = outputs
        self._recording: _Recording | None = None
        self._seen: list[int] | None = None
        self._copied: set[int] = set()
        capture = program.capture
        self._roles = [placeholder.role for placeholder in capture.placeholders]
        self._tensors = [
            position
            for position, node in enumerate(node for node in capture.module.graph.nodes if node.op == "placeholder")
            if isinstance(value_of(node), torch.Tensor)
        ]
        self._given = _given(capture)

    @property
    def state(self) -> str:
        """Whether the bucket is recorded, and why it is not."""
        if self.note:
            return f"not recorded: {self.note}"
        if self._recording is None:
            return "to be recorded"
        return "recorded" if self.num_recorded == 1 else f"recorded {self.num_recorded} times"

    def forget(self) -> None:
        """Give the recording's memory back; the next call but one records anew."""
        self._recording, self._seen = None, None

    def __call__(self, *args: Any) -> Any:
        """Serve one call."""
        if self.note or torch.cuda.is_current_stream_capturing():
            return self.function(*args)
        recordings = self._recordings
        with recordings.lock:
            recording = self._recording
            if recording is not None and not same_addresses(args, recording.addresses, recording.fixed):
                # An argument moved; one that is the caller's own may do so again, so it is copied from now on.
                addresses = recording.addresses
                moved = [place for place in recording.fixed if args[place].data_ptr() != addresses[place]]
                self._copied.update(position for position in moved if self._roles[position] == "input")
                recording = self._recording = None
                self._seen = self._addresses(args)
            if recording is None:
                if self._seen is None:
                    self._seen = self._addresses(args)
                    return self.function(*args)
                recording = self._record(args)
                if recording is None:
                    return self.function(*args)
            else:
                self._counter[0] += 1
            recordings.enter(self._buffers.device)
            recordings.used(self)
            self._buffers.fill(recording.static, args)
            recording.graph.replay()
            self._write_back(recording, args)
            return self._own(recording.results, args)

    def _addresses(self, args: Sequence[Any]) -> list[int]:
        return [args[position].data_ptr() for position in self._tensors]

    def _record(self, args: Sequence[Any]) -> _Recording | None:
        """Record the bucket; ``None`` where that cannot be done, and the note says why."""
        assert self._seen is not None  # a call came before
        known = dict(zip(self._tensors, self._seen, strict=True))
        fixed = [
            position
            for position in self._tensors
            if self._roles[position] != "input"
            # What a recording gave may be among the arguments of the next, and a replay would write over it.
            or (self._outputs == "copy" and position not in self._copied and args[position].data_ptr() == known[position])
        ]
        static: list[Any] = [None] * len(args)
        given = list(args)
        for position in self._tensors:
            if position not in fixed:
                given[position] = static[position] = self._buffers.buffer(position, args[position])
        device = self._buffers.device
        graph = torch.cuda.CUDAGraph()
        self._recordings.enter(device)
        self._buffers.fill(static, args)
        try:
            with torch.cuda.graph(graph, pool=self._recordings.pool(device), capture_error_mode="thread_local"):
                results = self.function(*given)
        except Exception as error:  # torch and drivers say in many ways that something cannot be recorded
            torch.cuda.synchronize(device)
            self.note = f"recording failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            warnings.warn(f"bucket {self._program.bucket} is not recorded: {self.note}", FxbucketWarning, stacklevel=2)
            return None
        self.num_recorded += 1
        addresses: list[int | None] = [None] * len(args)
        for position in fixed:
            addresses[position] = args[position].data_ptr()
        self._recording = _Recording(graph, static, fixed, addresses, results)
        return self._recording

    def _write_back(self, recording: _Recording, args: Sequence[Any]) -> None:
        for position in self._program.capture.written:
            if recording.static[position] is not None:
                args[position].copy_(recording.static[position])

    def _own(self, results: Any, args: Sequence[Any]) -> Any:
        return _owned(results, self._given, args, self._outputs == "copy")


def _owned(results: Any, given: Any, args: Sequence[Any], copies: bool) -> Any:
    if isinstance(results, tuple):
        return tuple(_owned(result, place, args, copies) for result, place in zip(results, given, strict=True))
    if isinstance(given, int):
        return args[given]
    if not isinstance(results, torch.Tensor) or not copies:
        return results
    return strided_copy(results, results.stride())


def _given(capture: Capture) -> Any:
    """Return the structure of the results with the position of each that is an argument itself."""
    nodes = list(capture.module.graph.nodes)
    places = {node: position for position, node in enumerate(node for node in nodes if node.op == "placeholder")}
    (output,) = (node for node in nodes if node.op == "output")

    def place(item: Any) -> Any:
        if isinstance(item, (tuple, list)):
            return tuple(place(part) for part in item)
        is_tensor = isinstance(item, torch.fx.Node) and isinstance(value_of(item), torch.Tensor)
        return places.get(item) if is_tensor else None

    return place(output.args[0])


class StaticBuffers:
    """Memory at fixed addresses for the arguments of one captured graph, shared by its buckets and sized by the largest.

    Args:
        capture: the graph.
        bindings: the numbers of each bucket that may be recorded.
    """

    def __init__(self, capture: Capture, bindings: Sequence[Mapping[sympy.Symbol, Number]]) -> None:
        nodes = [node for node in capture.module.graph.nodes if node.op == "placeholder"]
        values = [value_of(node) for node in nodes]
        (self.device,) = {value.device for value in values if isinstance(value, torch.Tensor)}
        self._memory: dict[int, torch.Tensor] = {}
        self._num_bytes: dict[int, int] = {}
        for position, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                sizes = [_num_bytes(value, binding) for binding in bindings]
                self._num_bytes[position] = max(sizes, default=0)

    def buffer(self, position: int, like: torch.Tensor) -> torch.Tensor:
        """Return the buffer of an argument, as a tensor of the same sizes and strides."""
        needed = span(like.shape, like.stride()) * like.element_size()
        memory = self._memory.get(position)
        if memory is None or memory.numel() < needed:
            num_bytes = max(needed, self._num_bytes.get(position, 0))
            memory = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
            self._memory[position] = memory
        flat = memory[:needed].view(like.dtype)
        return flat.as_strided(like.shape, like.stride())

    def fill(self, static: Sequence[Any], args: Sequence[Any]) -> None:
        """Copy a call's arguments into the buffers that a recording reads."""
        pairs = [(buffer, args[position]) for position, buffer in enumerate(static) if buffer is not None]
        if len(pairs) == 1:
            pairs[0][0].copy_(pairs[0][1], non_blocking=True)
        elif pairs:
            torch._foreach_copy_([buffer for buffer, _ in pairs], [tensor for _, tensor in pairs], non_blocking=True)


def _num_bytes(value: torch.Tensor, binding: Mapping[sympy.Symbol, Number]) -> int:
    """Return the bytes that a tensor of the capture spans in a bucket; 0 where that is not known."""
    numbers = (*value.shape, *value.stride())
    if not symbols_in(numbers) <= binding.keys():
        return 0
    found = [int(evaluate(expression_of(number), binding)) for number in numbers]
    return span(found[: value.dim()], found[value.dim() :]) * value.element_size()
