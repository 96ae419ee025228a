"""The one place for torch's private names about CUDA graphs.

Checked with torch 2.11.0 on a GPU; the others have none here. Each function says which private name it stands for and why
no public one would do, and does without where a build of torch has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch


def same_addresses(args: Sequence[Any], addresses: list[int | None], positions: list[int]) -> bool:
    """Whether the tensors at these positions of a call's arguments lie where ``addresses`` has them, at the same positions.

    Stands for ``torch._C._tensors_data_ptrs_at_indices_equal``, which asks all of them in one call; builds of torch without
    CUDA have none.
    """
    ask = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)
    if ask is not None:
        return bool(ask(list(args), addresses, positions))
    return all(args[position].data_ptr() == addresses[position] for position in positions)


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
