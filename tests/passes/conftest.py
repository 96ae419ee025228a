"""What the tests of passes share: a small program of every trait, and a plain way to run a program's pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes import Program
from fxbucket.passes.program import Ref


class Block(torch.nn.Module):
    """Reads a size, makes a tuple, cuts well at sigmoid, and needs rows in pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, n: int) -> tuple[Any, ...]:
        rows = x.shape[0]
        if rows % 2 == 0:
            x = x + 1
        hidden = torch.sigmoid(self.inner(x))
        left, right = hidden.split(2, dim=1)
        return hidden.reshape(rows * 4), left * right, y.flatten() + n, rows * y.shape[1] + n


@pytest.fixture(scope="session")
def block() -> Block:
    torch.manual_seed(0)
    return Block()


@pytest.fixture(scope="session")
def captured(block: Block) -> Program:
    """Three axes: rows (even), y's columns as ``k``, and the int ``n``. Programs are immutable, so all tests share it."""
    x, y = torch.randn(8, 4), torch.randn(3, 6)
    return fxbucket.capture(block, x, y, 5, dynamic=["x.shape[0]", "n"], axes={"k": "y.shape[1]"})


@pytest.fixture(scope="session")
def run() -> Callable[..., Any]:
    """Return a function that runs a split program piece by piece on real arguments, given by name."""

    def run_pieces(program: Program, model: Any = None, **arguments: Any) -> Any:
        # torch's text of a source is Python over L (arguments) and G (globals).
        scope = {"L": arguments, "G": {"model": model}}
        values = {held.name: eval(held.source, scope) for held in program.capture.placeholders}
        for piece in program.pieces:
            given = piece.module(*(values[name] for name in piece.inputs))
            values.update(zip(piece.outputs, given, strict=True))

        def fill(structure: Any) -> Any:
            if isinstance(structure, Ref):
                return values[structure.name]
            return tuple(map(fill, structure)) if isinstance(structure, tuple) else structure

        return fill(program.outputs)

    return run_pieces
