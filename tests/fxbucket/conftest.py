"""What the tests of the core share: a compiler that counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import fx


class CountingCompiler:
    """A real compiler callable that runs graphs as they are, and keeps what it was given.

    Attributes:
        given: ``(module, example inputs)`` of each compilation, in order.
    """

    def __init__(self) -> None:
        self.given: list[tuple[fx.GraphModule, list[Any]]] = []

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.given.append((module, list(inputs)))
        return module.forward

    @property
    def count(self) -> int:
        """How many pieces were compiled so far."""
        return len(self.given)


@pytest.fixture
def compiler() -> CountingCompiler:
    return CountingCompiler()
