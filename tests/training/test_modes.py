"""One compiled model in training: modes of the model, of autograd, of autocast, and gradient scaling, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

from tests.equality import assert_same_tree
from tests.field.runner import only_warning
from tests.training.twins import Stack, Twins, each_compiler, inputs, served, twins

SWITCHES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


class Regularised(nn.Module):
    """Has what depends on its mode: running statistics, and a dropout that drops everything."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack()
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.stack(x))
        return torch.sigmoid(h) + self.dropout(h) + h


def float32(pair: Twins) -> Twins:
    for model in pair.both:
        model.float()
    pair.tolerance = 1e-5
    return pair


def call_both(pair: Twins, rows: int, switch: str) -> None:
    """Make a call and, where there is something to differentiate, its backward pass under a switch."""
    found = []
    for model in pair.both:
        model.zero_grad()
        with SWITCHES[switch]():
            output = model(inputs(rows, model))
        assert output.requires_grad == (switch in ("grad", "autocast"))
        if output.requires_grad:
            output.float().square().sum().backward()
        found.append(output.detach())
    # Under autocast both round to bfloat16; compiled pieces may do so in another order.
    tolerance = 2e-2 if switch == "autocast" else pair.tolerance
    assert_same_tree(*found, "output", tolerance)
    before, pair.tolerance = pair.tolerance, tolerance
    pair.agree()
    pair.tolerance = before


@pytest.mark.parametrize(("compiler", "compile_when"), [("eager", "first_call"), ("aot_eager", "lazily")])
def test_each_mode_is_right_from_the_first_call_after_a_switch(compiler: str, compile_when: str):
    pair = float32(twins(Regularised, compiler, compile_when=compile_when))
    turns = ["grad", "no_grad", "autocast", "grad", "inference", "autocast", "no_grad", "grad"]
    with only_warning(""):
        for number, switch in enumerate(turns):
            for model in pair.both:
                model.train(number % 3 != 2)
            call_both(pair, (4, 6, 5)[number % 3], switch)
            call_both(pair, 4, switch)
    calls = served(pair.compiled)
    assert calls == {"x.shape[0]=4": 11, "x.shape[0]=6": 3, "dynamic": 2}


def test_each_mode_has_a_capture_of_its_own_and_one_that_comes_back_is_not_captured_again():
    pair = float32(twins(Regularised, "eager"))
    counts = []
    for _ in range(2):
        for training in (True, False):
            for switch in SWITCHES:
                for model in pair.both:
                    model.train(training)
                call_both(pair, 4, switch)
                counts.append(len(pair.compiled.programs))
    assert counts[7:] == [counts[7]] * 9, "the second round captures nothing"
    assert counts[7] >= 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_compiler
def test_autocast_and_a_scaler_of_gradients_train_as_in_eager(compiler: str, dtype: torch.dtype):
    pair = float32(twins(Stack, compiler))
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100) for _ in pair.both]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in pair.both]
    losses: list[list[float]] = [[], []]
    for step, rows in enumerate((4, 6, 5, 4, 9, 6)):
        for model, scaler, optimizer, kept in zip(pair.both, scalers, optimizers, losses, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                output = model(inputs(rows, model))
            assert output.dtype is dtype
            loss = output.float().square().mean() * (float("inf") if step == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            kept.append(float(loss))
    scales = [scaler.get_scale() for scaler in scalers]
    assert scales == [2.0**9, 2.0**9], "both left out the step with infinite gradients"
    assert_same_tree(*losses, "losses") if compiler == "eager" else torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-2)
    pair.tolerance = 2e-2
    for model in pair.both:
        model.zero_grad()
    pair.agree()
    assert served(pair.compiled) == {"x.shape[0]=4": 2, "x.shape[0]=6": 2, "dynamic": 2}
    assert len(pair.compiled.programs) == 1


class KeepsItsNorms(nn.Module):
    """Overrides train(), as fine-tuning does to keep the statistics of norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.0)

    def train(self, mode: bool = True) -> KeepsItsNorms:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.dropout(self.norm(x)))


@each_compiler
def test_a_train_of_the_module_s_own_is_what_train_calls(compiler: str):
    pair = twins(KeepsItsNorms, compiler)
    for training in (True, False, True):
        assert pair.compiled.train(training) is pair.compiled
        pair.eager.train(training)
        assert (pair.compiled.training, pair.compiled.norm.training) == (training, False)
        for rows in (4, 5):
            pair.backward(rows)
            pair.agree()
