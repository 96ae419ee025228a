"""What is out of reach, and that each limit shows as docs/correctness.md says: never as silently wrong values."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.backend import Backend
from tests.equality import assert_equals_eager


def draws(x: torch.Tensor) -> torch.Tensor:
    first = torch.rand_like(x)
    return torch.nn.functional.dropout(torch.sigmoid(x + first), 0.5) + torch.randn(x.shape)


@pytest.mark.slow
def test_random_numbers_of_inductor_follow_the_seed_and_are_eager_s_where_inductor_is_asked():
    options: dict[str, Any] = {"sizes": {"x.shape[0]": [4]}, "splitting_ops": ["aten::sigmoid"]}
    x = torch.randn(4, 4)

    def seeded(function: Any) -> torch.Tensor:
        torch.manual_seed(5)
        return function(x)

    own = fxbucket.compile(draws, **options)
    assert torch.equal(seeded(own), seeded(own))
    asked = fxbucket.compile(draws, **options, inductor_options={"fallback_random": True})
    torch.testing.assert_close(seeded(asked), seeded(draws))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_an_error_that_sizes_decide_comes_before_the_writes_of_its_call(compiler: str):
    def model(x: torch.Tensor, buffer: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        buffer.add_(1)
        return torch.sigmoid(x) @ y

    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler=compiler)
    buffer = torch.zeros(1)
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4, 3), buffer, torch.randn(5, 2))
    assert buffer.item() == 0, "eager would have written first"
    compiled(torch.randn(4, 3), buffer, torch.randn(3, 2))
    assert buffer.item() == 1


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_an_error_of_the_data_is_an_error_and_the_next_call_is_right(compiler: str):
    def model(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x).index_select(0, rows)

    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler=compiler)
    x = torch.randn(4, 3)
    for rows in (torch.tensor([3]), torch.tensor([4]), torch.tensor([0])):
        if rows.item() == 4:
            with pytest.raises(IndexError):
                compiled(x, rows)
        else:
            torch.testing.assert_close(compiled(x, rows), model(x, rows))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_float_argument_is_right_at_each_value(compiler: str):
    def model(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.sigmoid(x) * scale

    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, axes={"columns": "x.shape[1]"}, compiler=compiler)
    for scale in (0.5, 0.25, 0.5, float("inf"), -0.0, 3.0):
        for rows in (4, 5):
            x = torch.rand(rows, 3)
            assert torch.equal(compiled(x, scale), model(x, scale))


@torch.library.custom_op("fxbucket_field::lying", mutates_args=())
def lying(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@lying.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def around_a_lie(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.fxbucket_field.lying(x * 2) * 3 + 1


def test_a_fake_implementation_that_lies_about_strides_is_harmless_without_inductor():
    compiled = fxbucket.compile(
        around_a_lie, sizes={"x.shape[0]": [4]}, splitting_ops=["fxbucket_field::lying"], compiler="aot_eager"
    )
    x = torch.randn(4, 3)
    assert_equals_eager(compiled, around_a_lie, (x,), (x.clone(),))


@pytest.mark.slow
def test_a_fake_implementation_that_lies_about_strides_is_an_error_under_inductor():
    compiled = fxbucket.compile(around_a_lie, sizes={"x.shape[0]": [4]}, splitting_ops=["fxbucket_field::lying"])
    with pytest.raises(AssertionError, match="stride"):
        compiled(torch.randn(4, 3))


def test_a_gradient_of_a_gradient_is_an_error_after_aot_autograd_and_right_without_it():
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * x

    def second(function: Any) -> torch.Tensor:
        x = torch.ones(4, 3, requires_grad=True)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    pinned = {"x.shape[0]": [4]}
    assert torch.equal(second(fxbucket.compile(model, sizes=pinned, compiler="eager")), second(model))
    with pytest.raises(RuntimeError, match="double backward"):
        second(fxbucket.compile(model, sizes=pinned, compiler="aot_eager"))


def test_a_sparse_tensor_is_left_to_eager():
    def model(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(matrix @ x)

    compiled = fxbucket.compile(model, sizes={"x.shape[1]": [4]}, compiler="aot_eager")
    matrix = torch.eye(3).to_sparse()
    for columns in (4, 5):
        x = torch.randn(3, columns)
        assert torch.equal(compiled(x, matrix), model(x, matrix))


def test_more_symbolic_compilations_than_allowed_run_the_graph_as_it_is():
    given: list[Any] = []

    def picky(module: Any, inputs: Any) -> Any:
        """Rely on the very size of the call, as a compiler may."""
        given.append(int(inputs[-1].shape[0]))
        return module.forward

    backend: Backend = fxbucket.backend(axes={"rows": "x.shape[0]"}, compiler=picky)
    compiled = torch.compile(lambda x: x + 1, backend=backend, dynamic=True)
    for rows in range(2, 14):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), x + 1)
    (graph,) = backend.explain().graphs
    assert len(given) == 8
    assert graph.eager_calls == 12 - 8


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_backward_that_must_fail_is_an_error_at_the_first_call_where_the_compiler_makes_it_then(compiler: str):
    def model(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        product = doubled @ doubled.t()
        doubled.add_(1)  # autograd needs the value that was there
        return product

    x = torch.ones(4, 3, requires_grad=True)
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler=compiler)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        compiled(x).sum().backward()
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


FLOATS_OF_EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS_OF_EIGHT_BITS)
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_floats_of_eight_bits_are_carried_across_cuts(dtype: torch.dtype, compiler: str):
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        small = (x * 2).to(dtype)
        return torch.sigmoid(small.to(torch.float32)) + 1, small

    backend = fxbucket.backend(sizes="seen", splitting_ops=["aten::sigmoid"], compiler=compiler)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (4, 6, 4):
        x = torch.randn(rows, 8)
        for found, expected in zip(compiled(x), model(x), strict=True):
            assert found.dtype == expected.dtype
            assert torch.equal(found.float(), expected.float())
        (small,) = (value for value in compiled(x) if value.dtype == dtype)
        double = fxbucket.compile(lambda x: x.to(torch.float32) * 2, sizes={"x.shape[0]": [4]}, compiler=compiler)
        assert torch.equal(double(small), small.to(torch.float32) * 2)
    assert {bucket.state for graph in backend.explain().graphs for bucket in graph.buckets} == {"compiled"}


def test_a_distributed_tensor_is_served_by_buckets_of_the_rank_s_own_tensors(tmp_path: Path):
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this torch is built without torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", world_size=1, rank=0)
    try:
        from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

        mesh = distributed.init_device_mesh("cpu", (1,))

        def model(x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x + 1) * 2

        compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, splitting_ops=["aten::sigmoid"], compiler="aot_eager")
        for rows in (4, 6, 4):
            x = distribute_tensor(torch.randn(rows, 3), mesh, [Replicate()])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fxbucket.FxbucketWarning)
                found = compiled(x)
            assert isinstance(found, DTensor)
            assert torch.equal(found.to_local(), model(x).to_local())
        (graph,) = compiled.explain().graphs
        assert graph.refusal == ""
        assert {bucket.bucket: bucket.calls for bucket in graph.buckets} == {"x.shape[0]=4": 2, "dynamic": 1}
    finally:
        distributed.destroy_process_group()
