"""Copies of tensors that keep strides which torch's own ``clone`` would not, and parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def strided_copy(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a copy in memory of its own with these strides, in elements; autograd follows it."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def narrowed(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the view of a tensor's leading corner that has these sizes."""
    for dim, (own, size) in enumerate(zip(tensor.shape, shape, strict=True)):
        if own != size:
            tensor = tensor.narrow(dim, 0, size)
    return tensor


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of a tensor with these sizes and strides may be at one place."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
