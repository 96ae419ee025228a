"""Models of every kind, over both ways in, where they are cut and what compiles them, equal eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes import every_n_nodes
from tests.field import special
from tests.field.case import Case, cases_in
from tests.field.runner import CUTS, check, explained, only_warning

MODELS = cases_in(special)

each_model = pytest.mark.parametrize("case", MODELS, ids=str)
each_way = pytest.mark.parametrize("way", ["pinned", "seen"])
each_cut = pytest.mark.parametrize("cut", CUTS)


def run(case: Case, way: str, cut: str, compiler: str) -> None:
    """Compile a model by name with pinned sizes, or as a backend that pins what it sees, and compare its calls."""
    boundaries = {"at_ops": case.splitting_ops, "every_node": (every_n_nodes(1),), "uncut": ()}[cut]
    options: dict[str, Any] = {"splitting_ops": boundaries, "compiler": compiler}

    def wrap(model: Any) -> Any:
        if way == "pinned":
            return fxbucket.compile(model, sizes={case.axis: special.PINNED}, **options)
        return torch.compile(model, backend=fxbucket.backend(sizes="seen", **options), dynamic=True)

    with explained(case), only_warning(case.warns):
        check(case, wrap, 0.0 if compiler == "eager" else None)


@each_cut
@each_way
@each_model
def test_a_model_equals_eager(case: Case, way: str, cut: str):
    run(case, way, cut, "eager")


@pytest.mark.parametrize(("way", "cut"), [("pinned", "at_ops"), ("seen", "uncut")])
@each_model
def test_a_model_through_aot_autograd_equals_eager(case: Case, way: str, cut: str):
    run(case, way, cut, "aot_eager")
