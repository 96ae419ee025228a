"""What the layers of all benchmarks have in common: those of a Llama, but for rotary positions."""

from __future__ import annotations

import torch
from torch import nn


class GatedLayer(nn.Module):
    """The weights of a layer, and its second half; how it attends is each benchmark's own.

    Args:
        width: of a row.
        inner: the width between the two halves of the feed-forward.
    """

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def fed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return ``(rows, width)``: norm, gated feed-forward, residual."""
        gate, value = self.up(self.second(x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * value)
