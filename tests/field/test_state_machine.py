"""Calls in any order on one compiled model, while modes, dtypes and parameters change between them."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

import fxbucket
from fxbucket.passes import every_n_nodes
from tests.equality import assert_equals_eager, assert_same_tree


class Model(nn.Module):
    """Has all that turns with a mode: running statistics, a dropout, a branch on the mode and one on a size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.dropout(self.norm(self.linear(x)))
        self.calls.add_(x.shape[0])
        gate = torch.sigmoid(h)
        if self.training:
            gate = gate * 2
        if x.shape[0] > 6:
            gate = gate + 1
        return gate, h.view(-1), x


GRAD_MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
CUTS: dict[str, list[Any]] = {"uncut": [], "at_ops": ["aten::sigmoid"], "every_node": [every_n_nodes(1)]}


class Turns(RuleBasedStateMachine):
    """A compiled model and its eager twin, to which the same happens."""

    compiler = "eager"
    tolerance = 0.0

    @initialize(
        sizes=st.lists(st.integers(2, 9), min_size=1, max_size=3, unique=True),
        cut=st.sampled_from(sorted(CUTS)),
        compile_when=st.sampled_from(["first_call", "lazily"]),
        on_miss=st.sampled_from(["dynamic", "eager"]),
    )
    def begin(self, sizes: list[int], cut: str, compile_when: str, on_miss: str) -> None:
        torch.compiler.reset()
        torch.manual_seed(0)
        self.model = Model()
        self.twin = copy.deepcopy(self.model)
        self.compiled = fxbucket.compile(
            self.model,
            sizes={"x.shape[0]": sizes},
            splitting_ops=CUTS[cut],
            compile_when=compile_when,
            on_miss=on_miss,
            compiler=self.compiler,
        )
        self.grad_mode = "grad"
        self.dtype = torch.float32
        self.seed = 0

    @rule(grad_mode=st.sampled_from(sorted(GRAD_MODES)))
    def set_grad_mode(self, grad_mode: str) -> None:
        self.grad_mode = grad_mode

    @rule(dtype=st.sampled_from([torch.float32, torch.float64]))
    def set_dtype(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.compiled.to(dtype)
        self.twin.to(dtype)

    @rule(training=st.booleans())
    def set_training(self, training: bool) -> None:
        self.compiled.train(training)
        self.twin.train(training)

    @rule()
    def step(self) -> None:
        for model in (self.model, self.twin):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.5)

    @rule()
    def load(self) -> None:
        state = {name: value.clone() for name, value in self.twin.state_dict().items()}
        self.compiled.load_state_dict(state)

    @rule(rows=st.integers(2, 9), requires_grad=st.booleans())
    def call(self, rows: int, requires_grad: bool) -> None:
        self._compare(rows, requires_grad)

    # One row has no variance: an error in training.
    @precondition(lambda self: not self.model.training)
    @rule(rows=st.integers(0, 1), requires_grad=st.booleans())
    def call_with_few_rows(self, rows: int, requires_grad: bool) -> None:
        self._compare(rows, requires_grad)

    def _compare(self, rows: int, requires_grad: bool) -> None:
        self.seed += 1
        generator = torch.Generator().manual_seed(self.seed)
        values = torch.randn(rows, 3, generator=generator).to(self.dtype)
        with GRAD_MODES[self.grad_mode](), warnings.catch_warnings():
            warnings.simplefilter("error", fxbucket.FxbucketWarning)
            ours, theirs = (values.clone().requires_grad_(requires_grad) for _ in range(2))
            parameters = list(self.model.parameters()), list(self.twin.parameters())
            assert_equals_eager(self.compiled, self.twin, (ours,), (theirs,), parameters, self.tolerance)

    @invariant()
    def has_the_twin_s_state(self) -> None:
        if hasattr(self, "twin"):
            assert_same_tree(dict(self.compiled.state_dict()), dict(self.twin.state_dict()), "state", self.tolerance)

    def teardown(self) -> None:
        torch.compiler.reset()


class TurnsThroughAotAutograd(Turns):
    """The same with pieces that AOTAutograd has rewritten."""

    compiler = "aot_eager"
    tolerance = 1e-5


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=max(1, settings().max_examples // 3), stateful_step_count=20)

TestTurnsThroughAotAutograd = pytest.mark.slow(TurnsThroughAotAutograd.TestCase)
TestTurnsThroughAotAutograd.settings = settings(max_examples=max(1, settings().max_examples // 4), stateful_step_count=15)
