"""Ops without a backward: told at compile time, by name, and only where a gradient would need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes.errors import FxbucketError, GradientError


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(scope="module", autouse=True)
def ops() -> Iterator[None]:
    with torch.library._scoped_library("fxbucket_gradients", "FRAGMENT"):
        for name in ("with_formula", "without_formula"):
            op = torch.library.custom_op(
                f"fxbucket_gradients::{name}", doubled, mutates_args=(), schema="(Tensor x) -> Tensor"
            )
            op.register_fake(torch.empty_like)
            if name == "with_formula":
                op.register_autograd(lambda ctx, grad: grad * 2)
        yield


def model(name: str) -> Any:
    op = getattr(torch.ops.fxbucket_gradients, name)
    return lambda x: op(x.sin()).cos()


def compiled(name: str, **options: Any) -> Any:
    given = {"splitting_ops": [f"fxbucket_gradients::{name}"], "compiler": "aot_eager", **options}
    return fxbucket.compile(model(name), sizes={"x.shape[0]": [4]}, **given)


@pytest.mark.parametrize("lazily", ["first_call", "lazily"])
def test_a_boundary_without_a_formula_is_an_error_that_names_the_op(lazily: str):
    with pytest.raises(
        GradientError, match=r"fxbucket_gradients::without_formula has no autograd formula.*register_autograd"
    ):
        compiled("without_formula", compile_when=lazily)(torch.randn(4, requires_grad=True))


def test_a_piece_without_a_formula_is_an_error_that_names_the_op():
    with pytest.raises(FxbucketError, match=r"fxbucket_gradients.*without_formula"):
        compiled("without_formula", splitting_ops=[])(torch.randn(4, requires_grad=True))


@pytest.mark.parametrize("rows", [4, 6])
def test_a_boundary_with_a_formula_has_eager_s_gradient(rows: int):
    x = torch.randn(rows, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model("with_formula")(x).sum(), x)
    (found,) = torch.autograd.grad(compiled("with_formula")(x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_no_formula_is_needed_where_no_gradient_is_recorded():
    call = compiled("without_formula")
    x = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(call(x), model("without_formula")(x))
    assert torch.equal(call(x.detach()), model("without_formula")(x.detach()))
    with pytest.raises(GradientError):
        call(x)
    with torch.no_grad():
        assert torch.equal(call(x), model("without_formula")(x))
