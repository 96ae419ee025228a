"""Activation checkpoints: both kinds, around pieces and inside of one, compiled and not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import fxbucket
from tests.equality import assert_same_tree
from tests.training.twins import Layer, each_compiler, gradients, inputs, served, twins


class Checkpointed(nn.Module):
    """Layers of which each is run again for the backward pass; a sigmoid outside of them is a cut."""

    def __init__(self, use_reentrant: bool, **settings: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.settings = {"use_reentrant": use_reentrant, **settings}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sigmoid(checkpoint(layer, x, **self.settings))
        return x * x.shape[0]


def keep_products() -> Any:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


SETTINGS: dict[str, dict[str, Any]] = {
    "not reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {"use_reentrant": False, "context_fn": keep_products},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@each_compiler
def test_checkpoints_in_the_model_give_eager_s_gradients(compiler: str, settings: dict[str, Any]):
    pair = twins(lambda: Checkpointed(**settings), compiler)
    for rows in (4, 5, 6, 4):
        arguments = [inputs(rows, model, requires_grad=True) for model in pair.both]
        for model, x in zip(pair.both, arguments, strict=True):
            model(x).square().sum().backward()
        assert_same_tree(arguments[0].grad, arguments[1].grad, "gradient of the argument", pair.tolerance)
        pair.agree()
    assert sum(served(pair.compiled).values()) == 4


@pytest.mark.parametrize(
    ("compiler", "use_reentrant", "options"),
    [
        ("eager", False, {}),
        ("eager", True, {"on_miss": "pad"}),
        ("aot_eager", False, {"compile_when": "lazily"}),
        ("aot_eager", False, {"on_miss": "pad"}),
        ("aot_eager", True, {}),
    ],
)
def test_a_compiled_model_may_be_inside_of_a_checkpoint(compiler: str, use_reentrant: bool, options: dict[str, Any]):
    pair = twins(Layer, compiler, **options)
    pair.tolerance = 1e-9
    for rows in (4, 5, 6):
        for model in pair.both:
            x = inputs(rows, model, requires_grad=True)
            checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
        pair.agree()
    assert sum(served(pair.compiled).values()) == 6, "each call is made again for its backward"


def test_a_reentrant_checkpoint_in_the_model_gives_gradients_where_no_argument_needs_one():
    pair = twins(lambda: Checkpointed(use_reentrant=True))
    other = twins(lambda: Checkpointed(use_reentrant=False))
    for rows in (4, 5):
        pair.backward_of(pair.compiled, rows)
        other.backward_of(other.eager, rows)
    assert_same_tree(gradients(pair.compiled), gradients(other.eager), "gradient", 1e-9, strides=False)


@each_compiler
def test_hooks_on_saved_tensors_see_those_of_the_call_and_nothing_of_a_compilation(compiler: str):
    pair = twins(Layer, compiler, compile_when="lazily")
    for rows in (4, 4, 5, 6):
        seen: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            seen.append(tensor)
            return tensor.clone()

        for model in pair.both:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = model(inputs(rows, model, requires_grad=True)).square().sum()
            loss.backward()
        assert seen
        assert {type(tensor) for tensor in seen} <= {torch.Tensor, nn.Parameter}
        pair.agree()


class Noisy(nn.Module):
    """Its result is linear in its parameter, so that the gradient tells which mask the backward pass took."""

    def __init__(self, policy: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.settings: dict[str, Any] = {"context_fn": keep_products} if policy else {}

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(functional.dropout(x * self.scale, 0.25), 0.25)

    def outer(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False, **self.settings) * torch.rand_like(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.outer, x, use_reentrant=False)


WAYS: dict[str, dict[str, Any]] = {
    "pieces run as they are": {"compiler": "eager"},
    "a miss runs as it was captured": {"compiler": "aot_eager", "sizes": {"x.shape[0]": [6]}, "on_miss": "eager"},
    "compiled": {"compiler": "aot_eager"},
}


@pytest.mark.parametrize("policy", [False, True], ids=["all", "by a policy"])
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_what_is_run_again_draws_the_same_numbers_compiled_or_not(options: dict[str, Any], policy: bool):
    torch.manual_seed(0)
    model = Noisy(policy)
    compiled = fxbucket.compile(model, **{"sizes": {"x.shape[0]": [4]}, **options})
    for _ in range(2):
        model.zero_grad()
        output = compiled(torch.ones(4, 16))
        state = torch.get_rng_state()
        output.sum().backward()
        assert torch.equal(torch.get_rng_state(), state), "a backward pass draws nothing of its own"
        torch.testing.assert_close(model.scale.grad, output.detach().sum(0))
