"""What the recordings of one model share: a pool of memory, a lock, a stream, and how many of them there may be."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fxbucket.graph_compat import (
    clear_cublas_workspaces,
    current_stream_handle,
    device_turn,
    end_failed_capture,
    measure_in_turn,
)
from fxbucket.torch_compat import no_other_compilation

Capture = Callable[[Callable[[], Any]], tuple[torch.cuda.CUDAGraph, Any]]
"""Takes a function, and returns the recorded graph of what it launched, and what it returned."""


class BusyError(Exception):
    """Another thread compiles or records, so nothing can be recorded now; raised before anything was done."""


class Forgettable(Protocol):
    """What can give its recording back."""

    def forget(self) -> None:
        """Give the recording's memory back."""


@dataclass(eq=False)
class GraphPool:
    """The recordings of one model: one pool of memory, one at a time, the least recently used goes first.

    Attributes:
        most: how many buckets are recorded at once; ``None`` for all.
        lock: held while a recording is made or replayed, for all of them share memory.
        generation: how many recordings were replayed; what one left in the pool is valid until the next.
        is_warming: whether arguments of calls are noted, to record all buckets after them.
        waits: whether a recording waits for other threads that compile or record; calls do without it rather than wait.
    """

    most: int | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    generation: int = 0
    is_warming: bool = False
    waits: bool = False
    _used: OrderedDict[int, Forgettable] = field(default_factory=OrderedDict)
    _pools: dict[torch.device, tuple[Any, torch.cuda.CUDAGraph]] = field(default_factory=dict)
    _handles: list[tuple[int, ...]] = field(default_factory=list)
    _side: dict[torch.device, torch.cuda.Stream] = field(default_factory=dict)
    _stream: torch.cuda.Stream | None = None
    _handle: int = -1

    def __post_init__(self) -> None:
        measure_in_turn()

    def _pool(self, device: torch.device) -> Any:
        """Return the pool of a device that all recordings share; it stays when the last of them goes."""
        if device not in self._pools:
            handle, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
            # A pool is there while a graph of it is. torch.cuda.MemPool would hold it too, and ends the process where
            # garbage collection takes it before its graphs.
            self._capture(device, handle, graph, lambda: torch.zeros(1, device=device))
            self._pools[device] = handle, graph
            self._handles.append(tuple(handle))
        return self._pools[device][0]

    def used(self, bucket: Forgettable) -> None:
        """Note that a recording was used, and forget the least recently used one where there are too many."""
        self.generation += 1
        if self.most is None:
            return
        self._used[id(bucket)] = bucket
        self._used.move_to_end(id(bucket))
        if len(self._used) > self.most:
            _, oldest = self._used.popitem(last=False)
            oldest.forget()

    def enter(self, device: torch.device) -> None:
        """Have the current stream wait for what another one replayed last."""
        handle = current_stream_handle(device)
        if handle == self._handle and self._stream is not None:
            return
        stream = torch.cuda.current_stream(device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream, self._handle = stream, handle

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory in the pools of these recordings."""
        if not self._handles:
            return 0
        pools = set(self._handles)
        segments = torch.cuda.memory_snapshot()
        return sum(int(held["total_size"]) for held in segments if tuple(held["segment_pool_id"]) in pools)

    @contextlib.contextmanager
    def capturing(self, device: torch.device) -> Iterator[Capture]:
        """Give what records the work of a function as a graph, for the recordings of one bucket.

        All of them are recorded on one stream of their own, so that each may use memory again that an earlier one left:
        the allocator keeps memory apart by stream. What is given raises :class:`BusyError`, as :meth:`held` does.
        """
        is_prepared = False

        def record(work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
            nonlocal is_prepared
            with self._turn(self.waits):
                if not is_prepared:
                    self._prepare(device)
                    is_prepared = True
                graph = torch.cuda.CUDAGraph()
                return graph, self._capture(device, self._pool(device), graph, work)

        try:
            yield record
        finally:
            if is_prepared:
                # Their memory goes back to the pool: what is recorded later may use it again.
                clear_cublas_workspaces()

    @contextlib.contextmanager
    def _turn(self, waits: bool) -> Iterator[None]:
        """Keep every other thread of the process from compiling, measuring and recording while the context is open.

        A recording fails where another thread waits for the whole device, and so does that wait. Recordings begin with such
        a wait, and compilers measure kernels between two of them.

        Raises:
            BusyError: another thread does so now, and ``waits`` is false.
        """
        with contextlib.ExitStack() as held:
            for lock in (no_other_compilation(), device_turn):
                if not lock.acquire(blocking=waits):
                    raise BusyError
                held.callback(lock.release)
            yield

    def _prepare(self, device: torch.device) -> None:
        # What torch.cuda.graph does before each recording, done once for all of a bucket's: garbage that is collected in
        # the middle of one could free memory, which a recording must not.
        torch.cuda.synchronize(device)
        gc.collect()
        torch.cuda.empty_cache()
        # A thread's first product makes a handle, which is not allowed while anything is recorded.
        with torch.cuda.stream(self._side_stream(device)):
            torch.cuda.current_blas_handle()
        clear_cublas_workspaces()

    def settle(self, device: torch.device) -> None:
        """Wait until the device is done with what a failed recording left."""
        with self._turn(waits=True):
            torch.cuda.synchronize(device)

    def _side_stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._side:
            self._side[device] = torch.cuda.Stream(device)
        return self._side[device]

    def _capture(self, device: torch.device, pool: Any, graph: torch.cuda.CUDAGraph, work: Callable[[], Any]) -> Any:
        side = self._side_stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = work()
            except BaseException:
                # What failed matters more than that the recording cannot be ended either.
                try:
                    graph.capture_end()
                except Exception:  # of several kinds, and what caused it is told already
                    end_failed_capture(device, pool)
                    # The allocator lets nothing else be recorded into it; what was before stays with its graphs.
                    self._pools.pop(device, None)
                raise
            graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(side)
        return result

    def held(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.CUDAGraph]:
        """Return memory of the pool, laid out like a tensor, that later recordings may use again once nothing refers to it.

        Memory of the pool comes from recordings alone, so it is one, never to be replayed; it has to be kept as the others.

        Raises:
            BusyError: another thread compiles or records.
        """

        def allocate() -> torch.Tensor:
            made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            # torch warns of a recording of nothing.
            torch.zeros(1, device=like.device)
            return made

        with self._turn(self.waits):
            graph = torch.cuda.CUDAGraph()
            return self._capture(like.device, self._pool(like.device), graph, allocate), graph
