"""What the training tests share: a compiled model beside an eager one with equal parameters, and how both are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import fxbucket
from tests.equality import assert_same_tree

each_compiler = pytest.mark.parametrize("compiler", ["eager", "aot_eager"])


Loss = Callable[[Any], torch.Tensor]


def squares(output: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares."""
    return output.square().sum()


@dataclass
class Twins:
    """A compiled model, and an eager one to which the same happens.

    Attributes:
        compiled: the compiled model.
        eager: the truth.
        tolerance: relative and absolute; 0 asks for equal bits.
    """

    compiled: Any
    eager: nn.Module
    tolerance: float

    @property
    def both(self) -> tuple[Any, nn.Module]:
        """The two models, the compiled one first."""
        return self.compiled, self.eager

    def backward(self, rows: int, loss: Loss = squares) -> None:
        """Call both with equal rows, and have both do a backward pass of a loss."""
        for model in self.both:
            self.backward_of(model, rows, loss)

    def backward_of(self, model: Any, rows: int, loss: Loss = squares) -> None:
        """Call one of both and do a backward pass of a loss."""
        loss(model(inputs(rows, model))).backward()

    def agree(self) -> None:
        """Compare parameters, buffers and gradients."""
        assert_same_tree(self.compiled.state_dict(), self.eager.state_dict(), "state", self.tolerance)
        left, right = (gradients(model) for model in self.both)
        assert_same_tree(left, right, "gradient", self.tolerance, strides=False)


def twins(make: Callable[[], nn.Module], compiler: str = "aot_eager", **options: Any) -> Twins:
    """Return a model compiled for 4 and 6 rows of ``x``, cut at each sigmoid, and its twin; both in float64."""
    torch.manual_seed(0)
    model = make().double()
    eager = copy.deepcopy(model)
    given = {"sizes": {"x.shape[0]": [4, 6]}, "splitting_ops": ["aten::sigmoid"], "compiler": compiler, **options}
    return Twins(fxbucket.compile(model, **given), eager, 0.0 if compiler == "eager" else 1e-9)


def inputs(rows: int, model: nn.Module, width: int = 4, requires_grad: bool = False) -> torch.Tensor:
    """Return rows that are the same at each call, of the model's dtype."""
    generator = torch.Generator().manual_seed(rows)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float64)
    return torch.randn(rows, width, generator=generator, dtype=dtype).requires_grad_(requires_grad)


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the gradient of each parameter by its name."""
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def served(compiled: Any) -> dict[str, int]:
    """Return which bucket served how many calls, over all captures; what served none is left out.

    No call may be equal to eager by being eager.
    """
    explanation = compiled.explain()
    assert [graph.refusal for graph in explanation.graphs if graph.refusal] == []
    assert sum(graph.eager_calls for graph in explanation.graphs) == 0
    return {name: count for name, count in explanation.calls().items() if count}


def origins(compiled: Any) -> list[str]:
    """Return where each artifact of a compiled model comes from."""
    graphs = compiled.explain().graphs
    return [artifact.origin for graph in graphs for bucket in graph.buckets for artifact in bucket.artifacts]


class Layer(nn.Module):
    """A layer that is cut into two pieces at its sigmoid."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.sigmoid(self.first(x)))


class Stack(nn.Module):
    """Equal layers one after the other, and a head."""

    def __init__(self, layers: int = 2, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def steps(pair: Twins, make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], sizes: Sequence[int]) -> None:
    """Take a step of an optimizer after the backward pass of a call at each size, and compare after each."""
    optimizers = [make(model.parameters()) for model in pair.both]
    for rows in sizes:
        for model, optimizer in zip(pair.both, optimizers, strict=True):
            optimizer.zero_grad()
            model(inputs(rows, model)).square().sum().backward()
            optimizer.step()
        pair.agree()
