"""Dropout and other random ops: seeds, layers that share an artifact, and masks that the backward pass must know."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.field.runner import LONG
from tests.torch_versions import OLDER
from tests.training.twins import Twins, origins, served, twins

RANDOM = {
    "dropout": lambda h: functional.dropout(h, 0.5),
    "rand": lambda h: h * torch.rand_like(h),
    "bernoulli": lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)),
    "normal": lambda h: h * torch.randn(h.shape, dtype=h.dtype),
}


class RandomLayer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.kind = kind

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return RANDOM[self.kind](h * self.scale)


class RandomStack(nn.Module):
    """Equal layers, each given the same ones: what they return differs by their random numbers alone.

    A sigmoid lies between two layers, so that each layer is a piece.
    """

    def __init__(self, kind: str, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RandomLayer(kind) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for layer in self.layers:
            found.append(layer(x))
            x = torch.sigmoid(x) * 0 + 1
        return found


def rows_of_ones(rows: int) -> torch.Tensor:
    return torch.ones(rows, 16, dtype=torch.float64)


def drawn(model: Any, rows: int, seed: int | None = None) -> list[torch.Tensor]:
    if seed is not None:
        torch.manual_seed(seed)
    return [value.detach() for value in model(rows_of_ones(rows))]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


compilers = pytest.mark.parametrize("compiler", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])


def pair_of(kind: str, compiler: str, **options: Any) -> Twins:
    return twins(lambda: RandomStack(kind), compiler, **options)


@pytest.mark.parametrize(
    ("kind", "compiler"),
    [
        *((kind, "aot_eager") for kind in RANDOM),
        ("dropout", "eager"),
        pytest.param("dropout", "inductor", marks=pytest.mark.slow),
        *(pytest.param(kind, "inductor", marks=[pytest.mark.slow, LONG]) for kind in RANDOM if kind != "dropout"),
    ],
)
def test_layers_that_share_an_artifact_draw_numbers_of_their_own(kind: str, compiler: str):
    pair = pair_of(kind, compiler)
    for rows in (4, 6, 5):
        for seed in (0, None):
            layers = drawn(pair.compiled, rows, seed)
            assert not [1 for one, other in itertools.combinations(layers, 2) if torch.equal(one, other)]
            assert all(layer.std() > 0 for layer in layers)
    if compiler != "eager":
        assert "shared" in origins(pair.compiled), "the layers were meant to share"
    served(pair.compiled)


@compilers
def test_the_same_seed_gives_the_same_numbers_in_one_compiled_model(compiler: str):
    pair = pair_of("dropout", compiler)
    for rows in (4, 6, 5):
        first = drawn(pair.compiled, rows, 1)  # the very first one compiles in between
        state = torch.get_rng_state()
        assert equal(drawn(pair.compiled, rows, 1), first)
        assert torch.equal(torch.get_rng_state(), state), "a call leaves the generator where an equal call does"
        assert not equal(drawn(pair.compiled, rows), first), "the next call goes on"
        assert not equal(drawn(pair.compiled, rows, 2), first)


@pytest.mark.parametrize(("kind", "compiler"), [*((kind, "aot_eager") for kind in RANDOM), ("dropout", "eager")])
def test_numbers_are_eager_s_where_the_compiler_calls_the_ops(kind: str, compiler: str):
    pair = pair_of(kind, compiler)
    for rows in (4, 6, 5):
        assert equal(drawn(pair.compiled, rows, 1), drawn(pair.eager, rows, 1))
        after = torch.get_rng_state()
        drawn(pair.compiled, rows, 1)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.slow
def test_numbers_are_eager_s_under_inductor_where_that_is_asked_for():
    pair = pair_of("dropout", "inductor", inductor_options={"fallback_random": True})
    for rows in (4, 5):
        assert equal(drawn(pair.compiled, rows, 1), drawn(pair.eager, rows, 1))


class Dropped(nn.Module):
    """Several equal layers with a dropout, whose sum is linear in each parameter: gradients tell the masks.

    Attributes:
        way: whether a layer runs as it is, is run again for the backward pass by one of both kinds of checkpoints.
    """

    def __init__(self, way: str = "plain", layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RandomLayer("dropout") for _ in range(layers))
        self.way = way

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for layer in self.layers:
            if self.way == "plain":
                found.append(layer(x))
            else:
                found.append(checkpoint(layer, x, use_reentrant=self.way == "reentrant"))
            x = torch.sigmoid(x) * 0 + 1
        return found


@pytest.mark.parametrize(
    ("compiler", "way"),
    [
        *itertools.product(["eager", "aot_eager"], ["plain", "not reentrant", "reentrant"]),
        pytest.param("inductor", "not reentrant", marks=pytest.mark.slow),
        *(pytest.param("inductor", way, marks=[pytest.mark.slow, LONG]) for way in ("plain", "reentrant")),
    ],
)
def test_the_backward_pass_knows_the_masks_of_the_forward_pass(compiler: str, way: str):
    pair = twins(lambda: Dropped(way), compiler)
    # Inductor before torch 2.13 cannot compile a gradient that is all zeros, as between these layers, for sizes that vary.
    for rows in (4, 6) if OLDER and compiler == "inductor" else (4, 6, 5):
        for seed in (0, 1):
            torch.manual_seed(seed)
            pair.compiled.zero_grad()
            x = rows_of_ones(rows).requires_grad_()
            outputs = pair.compiled(x)
            torch.rand(3)  # other draws between the two
            sum(output.sum() for output in outputs).backward()
            for layer, output in zip(pair.compiled.layers, outputs, strict=True):
                torch.testing.assert_close(layer.scale.grad, output.detach().sum(0))
            torch.testing.assert_close(x.grad, outputs[0].detach())
    served(pair.compiled)


@pytest.mark.parametrize("padding", ["proved", "tested"])
@pytest.mark.filterwarnings("ignore:calls are not padded")
def test_a_call_with_random_numbers_is_eager_s_where_padding_was_asked_for(padding: str):
    pair = pair_of("dropout", "aot_eager", on_miss="pad", padding=padding)
    for rows in (6, 5, 3):
        assert equal(drawn(pair.compiled, rows, 1), drawn(pair.eager, rows, 1))
    assert served(pair.compiled) == {"x.shape[0]=6": 1, "dynamic": 2}


def test_a_mode_without_dropout_draws_nothing():
    pair = twins(lambda: nn.Sequential(nn.Dropout(0.5), nn.Sigmoid(), nn.Dropout(0.5)), sizes={"input.shape[0]": [4, 6]})
    for model in pair.both:
        model.eval()
    for rows in (4, 5):
        before = torch.get_rng_state()
        assert torch.equal(pair.compiled(rows_of_ones(rows)), pair.eager(rows_of_ones(rows)))
        assert torch.equal(torch.get_rng_state(), before)
        pair.compiled.train()
        assert (pair.compiled(rows_of_ones(rows)) == 0).any()
        pair.compiled.eval()
