"""Faults of stores of artifacts: a key that misses something, and processes that share a folder."""

from __future__ import annotations

import torch
from torch import nn

from tests.field.case import Made, Wrap, case


class _Configured(nn.Module):
    def __init__(self, repeats: int, scale: float) -> None:
        super().__init__()
        self.repeats = repeats
        self.scale = torch.full((repeats,), scale)  # no parameter and no buffer: a constant to the capture

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.sigmoid(x)[:, None].expand(-1, self.repeats)
        return wide.cumsum(1) * self.scale + torch.tensor([1.0, 2.0])[self.repeats % 2]


CONFIGURATIONS = ((7, 1.0), (9, 1.0), (7, 5.0))


def _configurations_do_not_mix(wrap: Wrap) -> None:
    for repeats, scale in CONFIGURATIONS:
        torch.compiler.reset()
        model = _Configured(repeats, scale)
        compiled = wrap(model)
        for rows in (4, 6):
            x = torch.randn(rows)
            torch.testing.assert_close(compiled(x), model(x))


@case(
    "vllm-project/vllm#53366",
    "vllm-project/vllm#26299",
    "vllm-project/vllm#16150",
    "vllm-project/vllm#15436",
    "pytorch/pytorch#145377",
    "pytorch/pytorch#125863",
    "pytorch/pytorch#187666",
    check=_configurations_do_not_mix,
)
def constants_of_the_model() -> Made:
    """Models that differ in a Python attribute or in the values of a constant tensor, one after the other.

    Fault: the key of an artifact misses it, and another model's artifact answers. Right: each equals its own eager.
    """
    return _Configured(7, 1.0), [(torch.randn(n),) for n in (4, 6)]


@case(
    "pytorch/pytorch#172144",
    "pytorch/pytorch#134384",
    "pytorch/pytorch#153791",
    "pytorch/pytorch#119698",
    "sgl-project/sglang#34231",
)
def shared_folder() -> Made:
    """What several processes compile at once into one folder.

    Fault: half-written files are read, or vanish. Right: equal to eager in each; tests/field/test_shared_folder.py starts
    them.
    """

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * 2).cumsum(0) - x.mean()

    return model, [(torch.randn(n, 3),) for n in (4, 7)]
