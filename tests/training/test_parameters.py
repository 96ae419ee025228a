"""Parameters that change between calls: optimizer steps, loaded states, averages, copies, adapters, ties."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import fxbucket
from tests.equality import assert_same_tree
from tests.training.twins import Stack, Twins, each_compiler, inputs, served, steps, twins

SIZES = (4, 6, 5, 4, 9)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "adamw by element": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False, fused=False),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}


@pytest.mark.parametrize(("compiler", "kind"), [("eager", "sgd"), *(("aot_eager", kind) for kind in OPTIMIZERS)])
def test_steps_in_place_are_seen_by_the_next_call(compiler: str, kind: str):
    pair = twins(Stack, compiler)
    steps(pair, OPTIMIZERS[kind], SIZES)
    assert served(pair.compiled) == {"x.shape[0]=4": 2, "x.shape[0]=6": 1, "dynamic": 2}
    assert len(pair.compiled.programs) == 1


def test_a_compiled_step_of_the_optimizer_beside_it():
    pair = twins(Stack)
    pair.tolerance = 1e-5  # a compiled step keeps its learning rate in float32
    optimizers = [torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01)) for model in pair.both]
    step = torch.compile(optimizers[0].step, backend="aot_eager")
    for rows in SIZES:
        for model, optimizer, go in zip(pair.both, optimizers, (step, optimizers[1].step), strict=True):
            optimizer.zero_grad()
            model(inputs(rows, model)).square().sum().backward()
            go()
        pair.agree()
    assert len(pair.compiled.programs) == 1


class Tied(nn.Module):
    """One matrix embeds and, transposed, reads out; one layer is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, 6, bias=False)
        self.once = nn.Linear(6, 6)
        self.twice = self.once
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sigmoid(self.once(self.embedding(x)))
        return torch.sigmoid(self.twice(h)) @ self.head.weight


@each_compiler
def test_tied_parameters_get_the_sum_of_their_gradients(compiler: str):
    pair = twins(Tied, compiler)
    steps(pair, OPTIMIZERS["adamw"], SIZES)
    assert pair.compiled.head.weight is pair.compiled.embedding.weight
    served(pair.compiled)


@pytest.mark.parametrize("assign", [False, True])
@each_compiler
def test_a_loaded_state_serves_the_next_call_and_its_gradients_go_to_it(compiler: str, assign: bool):
    pair = twins(Stack, compiler)
    steps(pair, OPTIMIZERS["sgd"], (4, 5))
    old = list(pair.compiled.parameters())
    torch.manual_seed(7)
    other = Stack().double().state_dict()
    for model in pair.both:
        model.zero_grad()
        model.load_state_dict({name: value.clone() for name, value in other.items()}, assign=assign)
    now = list(pair.compiled.parameters())
    assert all((before is after) != assign for before, after in zip(old, now, strict=True))
    steps(pair, OPTIMIZERS["adamw"], SIZES)
    served(pair.compiled)


@each_compiler
def test_a_parameter_that_is_replaced_is_used_and_trained(compiler: str):
    pair = twins(Stack, compiler)
    for rows in (4, 5):
        pair.backward(rows)
    for model in pair.both:
        model.zero_grad()
        model.head.weight = nn.Parameter(torch.full((3, 4), 0.5, dtype=torch.float64))  # type: ignore[union-attr]
        model.layers[0].first.bias.data = torch.ones(4, dtype=torch.float64)  # type: ignore[index, union-attr]
    for rows in (4, 5, 6):
        pair.backward(rows)
        pair.agree()


@each_compiler
def test_an_average_of_the_model_follows_it_and_is_called_by_itself(compiler: str):
    pair = twins(Stack, compiler)
    averages: list[Any] = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for model in pair.both]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in pair.both]
    for rows in SIZES:
        for model, optimizer, average in zip(pair.both, optimizers, averages, strict=True):
            optimizer.zero_grad()
            model(inputs(rows, model)).square().sum().backward()
            optimizer.step()
            average.update_parameters(model)
        with torch.no_grad():
            results = [average(inputs(rows, model)) for model, average in zip(pair.both, averages, strict=True)]
        assert_same_tree(*results, "output of the average", pair.tolerance)
    pair.agree()
    assert_same_tree(averages[0].state_dict(), averages[1].state_dict(), "average", pair.tolerance)
    assert sum(served(averages[0].module).values()) == len(SIZES)
    assert sum(served(pair.compiled).values()) == len(SIZES)


@each_compiler
def test_a_copy_is_trained_on_its_own(compiler: str):
    pair = twins(Stack, compiler)
    steps(pair, OPTIMIZERS["sgd"], (4, 5))
    other = Twins(copy.deepcopy(pair.compiled), copy.deepcopy(pair.eager), pair.tolerance)
    steps(other, OPTIMIZERS["adamw"], SIZES)
    pair.agree()
    steps(pair, OPTIMIZERS["sgd"], SIZES)
    other.agree()
    served(other.compiled)


peft = pytest.importorskip("peft")


class Named(nn.Module):
    """A model whose only argument has a name, as adapters pass it on."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(layers=2, width=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x)


def lora(model: nn.Module) -> Any:
    torch.manual_seed(3)
    config = peft.LoraConfig(r=2, target_modules=["first", "second"], lora_dropout=0.0, init_lora_weights=False)
    return peft.get_peft_model(model, config)


def train_adapters(pair: Twins, sizes: tuple[int, ...]) -> None:
    optimizers = [OPTIMIZERS["adamw"]([p for p in model.parameters() if p.requires_grad]) for model in pair.both]
    for rows in sizes:
        for model, optimizer in zip(pair.both, optimizers, strict=True):
            optimizer.zero_grad()
            model(inputs(rows, model, width=8)).square().sum().backward()
            optimizer.step()
        left, right = (dict(model.named_parameters()) for model in pair.both)
        assert_same_tree(left, right, "parameter", pair.tolerance)
        gradients = [{name: p.grad for name, p in side.items()} for side in (left, right)]
        assert_same_tree(*gradients, "gradient", pair.tolerance, strides=False)
        assert any(gradient is not None for gradient in gradients[0].values())
        assert any(gradient is None for gradient in gradients[0].values())


OPTIONS: dict[str, Any] = {"sizes": {"x.shape[0]": [4, 6]}, "splitting_ops": ["aten::sigmoid"]}


@pytest.mark.parametrize("compiler", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
def test_a_model_with_adapters_is_compiled_and_only_they_are_trained(compiler: str):
    torch.manual_seed(0)
    model = Named().double()
    eager = lora(copy.deepcopy(model))
    compiled = fxbucket.compile(lora(model), axes={"rows": "args[0].shape[0]"}, sizes={"rows": [4, 6]}, compiler=compiler)
    pair = Twins(compiled, eager, 1e-9)
    train_adapters(pair, SIZES)
    assert isinstance(compiled, peft.PeftModel)
    assert served(compiled) == {"rows=4": 2, "rows=6": 1, "dynamic": 2}
    for side in pair.both:
        side.base_model.disable_adapter_layers()
    with torch.no_grad():
        x = inputs(4, eager, width=8)
        assert_same_tree(compiled(x), eager(x), "without adapters", pair.tolerance)


@pytest.mark.parametrize("compiler", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_adapters_may_be_put_into_a_compiled_model(compiler: str):
    torch.manual_seed(0)
    model = Named().double()
    eager = copy.deepcopy(model)
    compiled = fxbucket.compile(model, compiler=compiler, **OPTIONS)
    compiled(inputs(4, eager, width=8))
    pair = Twins(lora(compiled), lora(eager), 1e-9)
    train_adapters(pair, SIZES)
    assert served(compiled) == {"x.shape[0]=4": 3, "x.shape[0]=6": 1, "dynamic": 2}
