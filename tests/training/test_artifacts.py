"""Backward passes are part of artifacts: equal layers share them, workers make them, other models load them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.training.twins import Layer, Stack, inputs, origins, served, twins

pytestmark = pytest.mark.slow


class DroppingLayer(Layer):
    """Its masks differ from those of a layer that shares its artifacts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.5)


class DroppingStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DroppingLayer() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def train(folder: Path, make: Any = Stack, **options: Any) -> Any:
    """Do backward passes at pinned sizes and a miss, each graph gone through twice; compare with eager."""
    torch.compiler.reset()
    pair = twins(make, "inductor", cache=folder, inductor_options={"fallback_random": True}, **options)
    for rows in (4, 6, 5):
        for model in pair.both:
            torch.manual_seed(rows)
            loss = model(inputs(rows, model, requires_grad=True)).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        pair.agree()
    assert served(pair.compiled) == {"x.shape[0]=4": 1, "x.shape[0]=6": 1, "dynamic": 1}
    return pair.compiled


def test_what_is_loaded_has_the_backward_pass_that_was_compiled(tmp_path: Path):
    first = Counter(origins(train(tmp_path, DroppingStack, workers=0)))
    assert first["compiled"] > 0
    assert first["shared"] > 0
    assert first["loaded"] == 0
    second = Counter(origins(train(tmp_path, DroppingStack, workers=0)))
    assert (second["compiled"], second["loaded"], second["shared"]) == (0, first["compiled"], first["shared"])


def test_what_workers_make_has_its_backward_pass(tmp_path: Path):
    found = Counter(origins(train(tmp_path, lambda: Stack(5), workers=2)))
    assert found["worker"] > 0
    assert found["shared"] > 0
    again = Counter(origins(train(tmp_path, lambda: Stack(5), workers=0)))
    assert (again["compiled"], again["loaded"]) == (0, found["worker"] + found["compiled"])
