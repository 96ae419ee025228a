"""Models that tests save in one process and load in another; a process can change what they depend on beforehand."""

from __future__ import annotations

import torch
import torch.nn.functional as F

FACTOR = 2.0


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class Block(torch.nn.Module):
    """Has parameters, a buffer that a call changes, a mode, and constants at four places."""

    shift = 1.0

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.register_buffer("calls", torch.zeros(()))
        self.power = 2
        self.step = doubled

    def forward(self, x: torch.Tensor, bias: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        y = torch.sigmoid(self.norm(self.linear(x)))
        y = F.relu(self.step(y) + self.shift + bias) ** self.power
        return y, y.transpose(0, 1)


class Derived(Block):
    """Inherits what is captured."""


def block(width: int = 4) -> Block:
    """Return a block with parameters that are the same in every process."""
    torch.manual_seed(0)
    made = Derived(width)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) % 3 - 1)
    return made


class Broken(torch.nn.Module):
    """Breaks into two graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print(end="")
        return y * 2
