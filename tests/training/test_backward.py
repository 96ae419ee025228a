"""Backward passes: over several buckets at once, repeated, partial, frozen, and twice differentiated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.equality import assert_same_tree
from tests.training.twins import Stack, each_compiler, inputs, served, twins

SERVED = {
    "dynamic": {"x.shape[0]=4": 1, "x.shape[0]=6": 2, "x.shape[0]=8..12": 1, "dynamic": 2},
    "pad": {"x.shape[0]=4": 1, "x.shape[0]=6": 3, "x.shape[0]=8..12": 1, "dynamic": 1},
}
"""Which buckets serve calls with 4, 6, 5, 9, 20 and 6 rows: of padded calls, those of 5 rows are served by 6."""


@pytest.mark.parametrize(
    ("compiler", "on_miss", "set_to_none"),
    [("eager", "dynamic", True), ("eager", "pad", False), ("aot_eager", "dynamic", False), ("aot_eager", "pad", True)],
)
def test_gradients_accumulate_over_calls_of_any_size(compiler: str, on_miss: str, set_to_none: bool):
    pair = twins(Stack, compiler, ranges={"x.shape[0]": [(8, 12)]}, on_miss=on_miss)
    pair.tolerance = 1e-9  # a padded row is added to sums too
    sizes = (4, 6, 5, 9, 20, 6)
    for rows in sizes:
        pair.backward(rows)
        pair.agree()
    for model in pair.both:
        model.zero_grad(set_to_none=set_to_none)
    pair.agree()
    assert all((p.grad is None) == set_to_none for p in pair.compiled.parameters())
    assert served(pair.compiled) == SERVED[on_miss]
    for model in pair.both:
        torch.stack([model(inputs(rows, model)).square().sum() for rows in sizes]).sum().backward()
    pair.agree()
    assert len(pair.compiled.programs) == 1


@each_compiler
def test_a_graph_that_is_retained_can_be_gone_through_again(compiler: str):
    pair = twins(Stack, compiler)
    for rows in (4, 6, 5):
        for model in pair.both:
            loss = model(inputs(rows, model)).square().sum()
            loss.backward(retain_graph=True)
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()
        pair.agree()


@each_compiler
def test_backward_passes_may_come_in_another_order_than_their_calls(compiler: str):
    pair = twins(Stack, compiler)
    for model in pair.both:
        losses = [model(inputs(rows, model)).square().sum() for rows in (4, 5, 6, 4)]
        for number in (2, 0, 3, 1):
            losses[number].backward()
    pair.agree()


class Outputs(nn.Module):
    """Several outputs: of all, of one parameter alone, of none, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        h = torch.sigmoid(self.first(x))
        return {"logits": self.second(h), "hidden": [h, h.detach()], "rows": x.shape[0], "plain": x * 2}


LOSSES = {
    "all": lambda out: out["logits"].square().sum() + out["hidden"][0].sum() + out["plain"].sum(),
    "the last": lambda out: out["logits"].square().sum(),
    "an inner one": lambda out: out["hidden"][0].square().sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@each_compiler
def test_outputs_may_be_left_out_of_the_loss(compiler: str, loss: Any):
    pair = twins(Outputs, compiler)
    for rows in (4, 5, 6):
        arguments = [inputs(rows, model, requires_grad=True) for model in pair.both]
        for model, x in zip(pair.both, arguments, strict=True):
            loss(model(x)).backward()
        pair.agree()
        assert_same_tree(arguments[0].grad, arguments[1].grad, "gradient of the argument", pair.tolerance)
    assert pair.compiled.unused.grad is None


class Unreached(nn.Module):
    """One of two parameters of a piece reaches only the second output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(4))
        self.second = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.first, x * self.second


def test_a_parameter_that_only_unused_outputs_reach_gets_zeros_where_a_compiler_made_the_backward():
    for compiler, expected in (("eager", None), ("aot_eager", torch.zeros(4, dtype=torch.float64))):
        pair = twins(Unreached, compiler, splitting_ops=[])
        for rows in (4, 5):
            pair.backward(rows, lambda outputs: outputs[0].sum())
        assert pair.eager.second.grad is None
        assert_same_tree(pair.compiled.second.grad, expected, "gradient")
        assert_same_tree(pair.compiled.first.grad, pair.eager.first.grad, "gradient", pair.tolerance)


@pytest.mark.parametrize("frozen", ["layers.0", "layers.1", "head", "first.weight", "bias", ""])
@each_compiler
def test_frozen_parameters_get_no_gradient_and_the_others_eager_s(compiler: str, frozen: str):
    pair = twins(Stack, compiler)
    for model in pair.both:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(frozen not in name)
    for rows in (4, 5, 6):
        arguments = [inputs(rows, model, requires_grad=True) for model in pair.both]
        for model, x in zip(pair.both, arguments, strict=True):
            model(x).square().sum().backward()
        assert_same_tree(arguments[0].grad, arguments[1].grad, "gradient of the argument", pair.tolerance)
        pair.agree()


@each_compiler
def test_parameters_may_be_frozen_and_thawed_between_calls(compiler: str):
    pair = twins(Stack, compiler)
    for step, rows in enumerate((4, 6, 4, 5, 4, 6)):
        for model in pair.both:
            model.layers[0].requires_grad_(step % 2 == 0)  # type: ignore[index]
            model.head.requires_grad_(step % 3 == 0)
            model.zero_grad()
        pair.backward(rows)
        pair.agree()


@each_compiler
def test_hooks_on_gradients_see_and_change_what_eager_s_do(compiler: str):
    pair = twins(Stack, compiler)
    seen: list[dict[str, list[Any]]] = []
    for model in pair.both:
        kept: dict[str, list[Any]] = {"parameter": [], "accumulated": [], "output": []}
        seen.append(kept)
        model.head.weight.register_hook(lambda gradient, kept=kept: kept["parameter"].append(gradient + 0) or gradient * 2)
        model.head.bias.register_post_accumulate_grad_hook(lambda p, kept=kept: kept["accumulated"].append(p.grad + 0))
        for rows in (4, 5):
            output = model(inputs(rows, model))
            output.register_hook(lambda gradient, kept=kept: kept["output"].append(gradient + 0) or gradient + 1)
            output.square().sum().backward()
    assert {name: len(values) for name, values in seen[1].items()} == {"parameter": 2, "accumulated": 2, "output": 2}
    assert_same_tree(*seen, "what hooks saw", pair.tolerance, strides=False)
    pair.agree()


@each_compiler
def test_only_the_gradients_that_are_asked_for_are_given(compiler: str):
    pair = twins(Stack, compiler)
    for rows in (4, 5):
        found = []
        for model in pair.both:
            loss = model(inputs(rows, model)).square().sum()
            wanted = [model.layers[1].first.weight, model.head.bias]  # type: ignore[index, union-attr]
            found.append(torch.autograd.grad(loss, wanted))
        assert_same_tree(*found, "gradient", pair.tolerance, strides=False)
        for model in pair.both:
            model(inputs(rows, model)).square().sum().backward(inputs=[model.head.weight])
        pair.agree()


def penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss with the gradient of the output in it."""
    output = model(x).square().sum()
    (gradient,) = torch.autograd.grad(output, x, create_graph=True)
    return output + gradient.square().sum()


def test_a_gradient_of_a_gradient_is_eager_s_where_pieces_run_as_they_are():
    pair = twins(Stack, "eager")
    for rows in (4, 5, 6):
        for model in pair.both:
            penalty(model, inputs(rows, model, requires_grad=True)).backward()
        pair.agree()


@pytest.mark.parametrize(
    ("compiler", "rows", "cut"),
    [
        ("aot_eager", 4, []),
        ("aot_eager", 5, []),
        ("aot_eager", 4, ["aten::sigmoid"]),
        ("aot_eager", 5, ["aten::sigmoid", "torch.nn.functional.linear"]),
        pytest.param("inductor", 4, ["aten::sigmoid"], marks=pytest.mark.slow),
    ],
)
def test_a_gradient_of_a_gradient_is_an_error_through_a_compiler_and_never_a_wrong_value(
    compiler: str, rows: int, cut: list[str]
):
    pair = twins(Stack, compiler, splitting_ops=cut)
    loss = penalty(pair.compiled, inputs(rows, pair.compiled, requires_grad=True))
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        loss.backward()
