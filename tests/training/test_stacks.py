"""Any stack of layers, cut anywhere, with any parameters frozen, trains as in eager."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxbucket
from fxbucket.passes import every_n_nodes
from tests.training.twins import Layer, Twins, inputs

WIDTH = 4


class Normed(nn.Module):
    """A norm over features, and one over rows, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.LayerNorm(WIDTH)
        self.rows = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(self.features(x))


class Attention(nn.Module):
    """Rows attend to earlier rows, with a mask that is made from the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
        return x + torch.softmax((q @ k.t()).masked_fill(~mask, float("-inf")), dim=-1) @ v


class Rewritten(nn.Module):
    """Writes in place to what has a history, through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y[1:].mul_(2)
        return y + x.mean(0)


class Again(Layer):
    """Is run again for the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Detached(nn.Module):
    """Half of it is without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = self.linear(x).abs().mean() + 1
        return self.linear(x) / scale + x.detach()


LAYERS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (Layer, Normed, Attention, Rewritten, Again, Detached)}
CUTS: dict[str, list[Any]] = {
    "nowhere": [],
    "every node": [every_n_nodes(1)],
    "every third node": [every_n_nodes(3)],
    "linear": ["torch.nn.functional.linear"],
    "sigmoid": ["aten::sigmoid"],
}


@dataclass(frozen=True)
class Training:
    """A stack and what is done with it.

    Attributes:
        layers: names of ``LAYERS``; a repeated number means the very same module again.
        repeats: whether the first module comes once more at the end.
        frozen: which parameters get no gradient, by their number modulo the length.
        argument: whether the argument wants a gradient.
        cut: a name of ``CUTS``.
        on_miss: what serves sizes that are not pinned.
        sizes: how many rows each call has; two calls share a backward pass.
    """

    layers: tuple[str, ...]
    repeats: bool
    frozen: tuple[bool, ...]
    argument: bool
    cut: str
    on_miss: str
    sizes: tuple[int, ...]


def build(training: Training) -> nn.Module:
    torch.manual_seed(0)
    made = [LAYERS[name]() for name in training.layers]
    model = nn.Sequential(*made, *(made[:1] if training.repeats else [])).double()
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(not training.frozen[number % len(training.frozen)])
    return model


def trainings(layers: Sequence[str] = tuple(LAYERS)) -> st.SearchStrategy[Training]:
    booleans = st.booleans()
    return st.builds(
        Training,
        layers=st.lists(st.sampled_from(layers), min_size=1, max_size=3).map(tuple),
        repeats=booleans,
        frozen=st.lists(booleans, min_size=1, max_size=4).map(tuple),
        argument=booleans,
        cut=st.sampled_from(sorted(CUTS)),
        on_miss=st.sampled_from(["dynamic", "pad", "eager"]),
        sizes=st.lists(st.integers(2, 7), min_size=2, max_size=4).map(tuple),
    )


def check(training: Training, compiler: str) -> None:
    note(repr(training))
    torch.compiler.reset()
    model = build(training)
    eager = copy.deepcopy(model)
    sizes = {"input.shape[0]": [4, 6]}
    options = {"splitting_ops": _with_names(CUTS[training.cut], training), "on_miss": training.on_miss}
    compiled = fxbucket.compile(model, sizes=sizes, compiler=compiler, compile_when="lazily", **options)
    pair = Twins(compiled, eager, 1e-8)
    results: list[list[Any]] = [[], []]
    for first, second in zip(training.sizes, training.sizes[1:], strict=False):
        for one, kept in zip(pair.both, results, strict=True):
            arguments = [inputs(rows, one, requires_grad=training.argument) for rows in (first, second)]
            loss = sum(one(x).square().sum() for x in arguments)
            if loss.requires_grad:
                loss.backward()
            kept.append([loss.detach(), *(x.grad for x in arguments)])
        pair.agree()
        with torch.no_grad():
            for one in pair.both:
                for parameter in one.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=1e-3)
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


def _with_names(cut: list[Any], training: Training) -> list[Any]:
    """Leave out an op that no drawn layer has: to name it would be an error."""
    held = {"aten::sigmoid": {"Layer"}, "torch.nn.functional.linear": {"Layer", "Attention", "Rewritten", "Detached"}}
    return [op for op in cut if not isinstance(op, str) or held[op] & set(training.layers)]


@pytest.mark.filterwarnings("ignore::fxbucket.FxbucketWarning")  # some stacks cannot be padded
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@settings(max_examples=max(1, settings().max_examples // 6))
@given(training=trainings())
def test_a_stack_trains_as_in_eager(compiler: str, training: Training):
    check(training, compiler)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fxbucket.FxbucketWarning")
@settings(max_examples=max(1, settings().max_examples // 500))
@given(training=trainings())
def test_a_stack_trains_as_in_eager_through_inductor(training: Training):
    check(training, "inductor")
