"""Models of every kind, over both ways in, where they are cut and what compiles them, equal eager."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import fxbucket
from tests.field import special
from tests.field.case import Case, cases_in
from tests.field.runner import CUTS, LONG, assert_compiled, boundaries, check, explained, only_warning, spread

MODELS = cases_in(special)

WAYS = list(itertools.product(CUTS, ("pinned", "seen")))
"""Where it is cut, and what is pinned: one size, or every one that is seen."""

FEW_PIECES = [way for way in WAYS if "every_node" not in way]
MANY_PIECES = [way for way in WAYS if "every_node" in way]


def run(case: Case, cut: str, way: str, compiler: str) -> None:
    """Compile a model by name with pinned sizes, or as a backend that pins what it sees, and compare its calls."""
    options: dict[str, Any] = {"splitting_ops": boundaries(case, cut), "compiler": compiler}
    backend = fxbucket.backend(sizes="seen", **options)
    used: list[Any] = []

    def wrap(model: Any) -> Any:
        if way == "seen":
            used.append(backend)
            return torch.compile(model, backend=backend, dynamic=True)
        axes = {f"axis_{number}": expression for number, expression in enumerate(case.also)}
        used.append(fxbucket.compile(model, sizes={case.axis: [special.PINNED]}, axes=axes, **options))
        return used[0]

    with explained(case), only_warning(case.warns):
        check(case, wrap, 0.0 if compiler == "eager" else None)
        if not case.warns:
            assert_compiled(used[0].explain())


@pytest.mark.parametrize(("case", "cut", "way"), spread(MODELS, WAYS, 1, [], LONG))
def test_a_model_equals_eager(case: Case, cut: str, way: str):
    run(case, cut, way, "eager")


@pytest.mark.parametrize(("case", "cut", "way"), spread(MODELS, FEW_PIECES, 1, MANY_PIECES, LONG))
def test_a_model_through_aot_autograd_equals_eager(case: Case, cut: str, way: str):
    run(case, cut, way, "aot_eager")
