"""Faults of tensors that are not plain: complex numbers, and tensors that wrap others."""

from __future__ import annotations

import torch

from tests.field.case import Made, case


@case("pytorch/pytorch#188718", "pytorch/pytorch#100086", "pytorch/pytorch#97562", axis="x.shape[1]")
def complex_rotation() -> Made:
    """Rotary embedding: a complex view of a transposed argument crosses the boundary.

    Fault: the compiler has no complex type. Right: equal to eager; a rotation keeps lengths.
    """

    def model(x: torch.Tensor, rotations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.view_as_complex(x) * rotations[: x.shape[1]]
        gate = torch.sigmoid(x.sum())
        return torch.view_as_real(z), torch.view_as_real(z * z.conj())[..., 0] + gate

    rotations = torch.polar(torch.ones(16, 3), torch.randn(16, 3))
    return model, [(torch.randn(n, 2, 3, 2).transpose(0, 1), rotations) for n in (5, 8, 2)]


@case(
    "pytorch/pytorch#117115",
    "pytorch/pytorch#118596",
    "pytorch/pytorch#148497",
    axis="weight.shape[0]",
    warns="a tensor that wraps other tensors",
)
def jagged_tensor() -> Made:
    """A jagged nested tensor: its ragged size is a symbol of its own.

    Fault: a crash at a boundary, or wrong rows. Right: such a graph runs as it was captured, and one warning says so.
    """

    def model(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.sigmoid(x @ weight)
        return y.values(), (y * 2).sum(-1).values()

    def jagged(lengths: tuple[int, ...]) -> torch.Tensor:
        return torch.nested.nested_tensor([torch.randn(length, 4) for length in lengths], layout=torch.jagged)

    weight = torch.randn(4, 4)
    return model, [(jagged(lengths), weight) for lengths in ((2, 5), (3, 1), (4, 2, 6))]
