"""The one place for torch's private names about CUDA graphs, and about the tensors that watch over their results.

Checked with torch 2.11.0 on a GPU; the others have none here. Each function says which private name it stands for and why
no public one would do, and does without where a build of torch has none.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

device_turn = threading.RLock()
"""Held by who records or waits for a whole device: CUDA makes the second an error while another thread does the first."""

_PATIENCE = 60.0
"""Seconds for which a measurement waits for a recording; after that an error is better than waiting on."""


def same_addresses(args: Sequence[Any], addresses: list[int | None], positions: list[int]) -> bool:
    """Whether the tensors at these positions of a call's arguments lie where ``addresses`` has them, at the same positions.

    Stands for ``torch._C._tensors_data_ptrs_at_indices_equal``, which asks all of them in one call; builds of torch without
    CUDA have none.
    """
    ask = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)
    if ask is not None:
        return bool(ask(list(args), addresses, positions))
    return all(args[position].data_ptr() == addresses[position] for position in positions)


def launcher_of(graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
    """Return what replays a graph, below the wrapper around ``CUDAGraph.replay`` that keeps Dynamo out.

    Nothing is traced where a recording is replayed, and the wrapper takes about as long as the launch. Stands for
    ``torch._C._CUDAGraph``, the base of the public class.
    """
    launch: Callable[[], None] = super(torch.cuda.CUDAGraph, graph).replay
    return launch


def current_stream_handle(device: torch.device) -> int:
    """Return the driver's handle of a device's current stream; ``torch.cuda.current_stream`` makes an object each time.

    Stands for ``torch._C._cuda_getCurrentRawStream``.
    """
    handle: int = torch._C._cuda_getCurrentRawStream(device.index)
    return handle


def clear_cublas_workspaces() -> None:
    """Have the next product on each stream take a new workspace; stands for ``torch._C._cuda_clearCublasWorkspaces``.

    A workspace belongs to a stream for good. What a recording uses must be of its own pool, or two models whose recordings
    were made on one stream would write to one workspace when they are replayed on two.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def end_failed_capture(device: torch.device, pool: Any) -> None:
    """Have the allocator leave a pool of CUDA graphs alone after a recording that could not be ended.

    Stands for ``torch._C._cuda_endAllocateToPool``: ``CUDAGraph.capture_end`` raises before it comes to that, and without it
    no later recording may use the pool.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(device.index, pool)


def measure_in_turn() -> None:
    """Have Inductor measure kernels only while no thread records; it does so where they first run, too, and waits there.

    Stands for ``torch._inductor.runtime.benchmarking``: for its ``set_gpu_benchmark_lock_context`` in torch 2.13 and later,
    for ``benchmark_gpu`` of its classes before.
    """
    from torch._inductor.runtime import benchmarking

    if getattr(benchmarking, "fxbucket_measures_in_turn", False):
        return
    benchmarking.fxbucket_measures_in_turn = True  # type: ignore[attr-defined]
    if hasattr(benchmarking, "set_gpu_benchmark_lock_context"):
        other = benchmarking.set_gpu_benchmark_lock_context(None)
        benchmarking.set_gpu_benchmark_lock_context(functools.partial(_measuring, other))
        return
    for known in vars(benchmarking).values():
        if isinstance(known, type) and "benchmark_gpu" in vars(known):
            known.benchmark_gpu = _in_turn(known.benchmark_gpu)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _measuring(other: Callable[[], AbstractContextManager[None]] | None = None) -> Iterator[None]:
    """Hold the turn; ``other`` gives the context that was entered before anyone asked for turns."""
    is_held = device_turn.acquire(timeout=_PATIENCE)
    try:
        with contextlib.nullcontext() if other is None else other():
            yield
    finally:
        if is_held:
            device_turn.release()


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with _measuring():
            return function(*args, **kwargs)

    return measured


def nested_map(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a nest of containers with a function's answer for each item; stands for ``torch.utils._pytree``.

    The containers that torch takes apart are those that users registered with it.
    """
    from torch.utils import _pytree

    return _pytree.tree_map(function, value)


def nested_leaves(value: Any) -> list[Any]:
    """Return the items of a nest of containers, as :func:`nested_map` visits them."""
    from torch.utils import _pytree

    return list(_pytree.tree_leaves(value))


def without_torch_function() -> AbstractContextManager[Any]:
    """Return a context in which a subclass of Tensor is a plain tensor to torch.

    Stands for ``torch._C.DisableTorchFunctionSubclass``, which torch's own guide to subclasses names.
    """
    context: AbstractContextManager[Any] = torch._C.DisableTorchFunctionSubclass()
    return context
