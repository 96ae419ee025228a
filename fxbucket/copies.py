"""Copies of tensors that keep strides which torch's own ``clone`` would not."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def strided_copy(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a copy in memory of its own with these strides, in elements; autograd follows it."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
