"""Faults of training: gradients, dropout masks, and what a caller keeps from an earlier step."""

from __future__ import annotations

import torch
from torch import nn

from tests.field.case import Made, Wrap, case


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sigmoid(self.embedding(ids)) * self.embedding.weight[:1])


@case("pytorch/pytorch#193061", "pytorch/pytorch#80951", "vllm-project/vllm#22938", axis="ids.shape[0]")
def tied_weights() -> Made:
    """One parameter is used before and after the boundary.

    Fault: a gradient of one use only, or two copies of the parameter. Right: the gradient is the sum over both uses.
    """
    return _Tied(), [(torch.arange(n) * 3 % 11,) for n in (5, 9, 5, 2)]


def _two_dropouts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = torch.nn.functional.dropout(x, 0.5)
    half = torch.sigmoid(x.detach() * 0)
    second = torch.nn.functional.dropout(x, 0.5)
    return first, second, half


def _masks_are_drawn_once_each(wrap: Wrap) -> None:
    compiled = wrap(_two_dropouts)
    for rows in (4, 6):
        x = torch.ones(rows, 64, requires_grad=True)
        first, second, _ = compiled(x)
        again, second_again, _ = compiled(x)
        assert set(first.detach().flatten().tolist()) <= {0.0, 2.0}
        assert not torch.equal(first, second), "both pieces drew the same mask"
        assert not torch.equal(first, again), "the next call drew the same mask"
        assert not torch.equal(second, second_again), "the next call drew the same mask"
        assert 0.3 < (first > 0).float().mean() < 0.7
        mixed = first + 3 * second
        (gradient,) = torch.autograd.grad(mixed.sum(), x)
        torch.testing.assert_close(gradient, mixed.detach(), msg="the backward pass used another mask")


@case(
    "pytorch/pytorch#192635",
    "pytorch/pytorch#190758",
    "pytorch/pytorch#84614",
    "pytorch/pytorch#165545",
    check=_masks_are_drawn_once_each,
)
def dropout_in_two_pieces() -> Made:
    """Two dropouts on both sides of the boundary.

    Fault: one mask for both, the same mask each call, or another mask backwards. Right, whatever stream the compiler draws
    from: masks differ, and the gradient of a sum of ones is the output.
    """
    return _two_dropouts, [(torch.ones(n, 64, requires_grad=True),) for n in (4, 6)]


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + self.down(torch.sigmoid(self.up(self.norm(x))))
        padded = y.new_zeros(x.shape[0] + 1, 4).index_copy(0, torch.arange(x.shape[0]), y)
        return y, y.view(-1), padded, y.t()


@case(
    "pytorch/pytorch#185630",
    "pytorch/pytorch#165506",
    "pytorch/pytorch#183696",
    "pytorch/pytorch#96469",
    "pytorch/pytorch#105524",
)
def batches_of_varying_length() -> Made:
    """Training with another length each step; outputs are views of each other, and the backward pass needs the length.

    Fault: a view of a nonsensical shape, or a backward pass that cannot be compiled. Right: all gradients are eager's, in
    the last, short batch of an epoch too.
    """
    return _Residual(), [(torch.randn(n, 4, requires_grad=True),) for n in (6, 9, 12, 3)]


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x @ self.weight) @ self.weight


def _kept_results_stay(wrap: Wrap) -> None:
    model, arguments = kept_results.world()
    assert isinstance(model, nn.Module)
    compiled = wrap(model)
    with torch.no_grad():
        for _ in range(3):
            kept = [compiled(*call) for call in arguments]
            torch.testing.assert_close(kept, [model(*call) for call in arguments], rtol=1e-5, atol=1e-5)
        fed_back = compiled(compiled(*arguments[0]))
        torch.testing.assert_close(fed_back, model(model(*arguments[0])), rtol=1e-5, atol=1e-5)
    gradients = []
    for function in (compiled, model):
        model.zero_grad(set_to_none=True)
        for call in arguments:
            function(*call).sum().backward()
        gradients.append(model.weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@case(
    "pytorch/pytorch#148439",
    "pytorch/pytorch#170604",
    "pytorch/pytorch#184153",
    "pytorch/pytorch#188117",
    check=_kept_results_stay,
)
def kept_results() -> Made:
    """The caller keeps outputs over later calls, feeds one back as an argument, and sums gradients over steps.

    Fault: results live in a static pool that the next replay overwrites. Right: what was kept still holds its call's values.
    """
    return _Twice(), [(torch.randn(n, 4),) for n in (4, 8, 4)]
