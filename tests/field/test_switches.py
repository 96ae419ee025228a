"""One compiled model while the world around its calls changes: grad mode, autocast, dtypes, types of tensors."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import fxbucket
from fxbucket.passes import every_n_nodes
from tests.equality import assert_equals_eager
from tests.field.runner import only_warning

Switch = Callable[[], contextlib.AbstractContextManager[Any]]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.linear(x)
        return torch.sigmoid(h) * 2, h, x.view(-1)


def pair(compiler: str, **options: Any) -> tuple[Any, nn.Module]:
    """Return a compiled model and its twin."""
    torch.manual_seed(0)
    model = Gated()
    torch.manual_seed(0)
    options.setdefault("splitting_ops", ["aten::sigmoid"])
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4, 6]}, compiler=compiler, **options)
    return compiled, Gated()


def compare(compiled: Any, twin: nn.Module, make: Callable[[int], torch.Tensor], rows: int) -> None:
    """Make one call both ways, with equal arguments made under the switches in force."""
    arguments = []
    for _ in range(2):
        torch.manual_seed(rows)
        arguments.append((make(rows),))
    parameters = (list(compiled.parameters()), list(twin.parameters()))
    assert_equals_eager(compiled, twin, *arguments, parameters, tolerance=1e-5)


def rows_of(dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> Callable[[int], torch.Tensor]:
    return lambda n: torch.randn(n, 4).to(dtype).requires_grad_(requires_grad)


each_compiler = pytest.mark.parametrize("compiler", ["eager", "aot_eager"])


@pytest.mark.parametrize(("compiler", "compile_when"), [("eager", "first_call"), ("aot_eager", "lazily")])
def test_grad_mode_may_change_from_call_to_call(compiler: str, compile_when: str):
    compiled, twin = pair(compiler, compile_when=compile_when)
    switches: list[Switch] = [torch.enable_grad, torch.no_grad, torch.inference_mode]
    with only_warning(""):
        for switch in (*switches, *reversed(switches)):
            for rows in (4, 5):
                with switch():
                    compare(compiled, twin, rows_of(), rows)
                    compare(compiled, twin, rows_of(requires_grad=True), rows)


@each_compiler
def test_a_bucket_first_used_under_another_grad_mode_than_the_capture_is_right(compiler: str):
    compiled, twin = pair(compiler, compile_when="lazily")
    with torch.no_grad():
        compare(compiled, twin, rows_of(), 4)
    compare(compiled, twin, rows_of(requires_grad=True), 6)
    with torch.no_grad():
        compare(compiled, twin, rows_of(), 6)


@each_compiler
def test_a_tensor_of_inference_mode_may_be_an_argument_outside_of_it(compiler: str):
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * 2

    compiled = fxbucket.compile(doubled, sizes={"x.shape[0]": [4, 6]}, compiler=compiler)
    with torch.inference_mode():
        inside = [torch.randn(n, 4) for n in (4, 6, 5)]
    for x in inside:
        got, expected = compiled(x), doubled(x)
        assert torch.equal(got, expected)
        assert got.is_inference() == expected.is_inference()


@each_compiler
def test_the_dtype_may_change_from_call_to_call(compiler: str):
    compiled, twin = pair(compiler)
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        compiled.to(dtype)
        twin.to(dtype)
        for rows in (4, 6, 5):
            compare(compiled, twin, rows_of(dtype), rows)


@each_compiler
def test_autocast_around_the_call_may_come_and_go(compiler: str):
    compiled, twin = pair(compiler)
    bfloat16: Switch = lambda: torch.autocast("cpu", dtype=torch.bfloat16)  # noqa: E731
    disabled: Switch = lambda: torch.autocast("cpu", enabled=False)  # noqa: E731
    with only_warning(""):
        for switch in (contextlib.nullcontext, bfloat16, contextlib.nullcontext, disabled, bfloat16):
            for rows in (4, 6, 5):
                with switch():
                    output, *_ = compiled(torch.randn(rows, 4))
                    assert output.dtype == (torch.bfloat16 if switch is bfloat16 else torch.float32)
                    compare(compiled, twin, rows_of(), rows)


@each_compiler
def test_the_default_dtype_may_change_from_call_to_call(compiler: str):
    def grid(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) + torch.arange(x.shape[0] * 0.5, 0, -0.5)[: x.shape[0], None]

    compiled = fxbucket.compile(grid, sizes={"x.shape[0]": [4, 6]}, compiler=compiler, compile_when="lazily")
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for rows in (4, 6):
                x = torch.ones(rows, 1, dtype=torch.float32)
                got, expected = compiled(x), grid(x)
                assert got.dtype == expected.dtype
                assert torch.equal(got, expected)
    finally:
        torch.set_default_dtype(before)


@each_compiler
def test_training_and_evaluation_may_take_turns(compiler: str):
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sigmoid(), nn.Dropout(0.0))

    inner, twin = model(), model()
    compiled = fxbucket.compile(inner, sizes={"input.shape[0]": [4, 6]}, splitting_ops=["aten::sigmoid"], compiler=compiler)
    for training in (True, False, True, False):
        compiled.train(training)
        twin.train(training)
        for rows in (4, 6, 5):
            compare(compiled, twin, rows_of(), rows)
            assert_equals_eager(
                lambda: dict(inner.named_buffers()), lambda: dict(twin.named_buffers()), (), (), tolerance=1e-6
            )


@each_compiler
def test_a_step_of_the_optimiser_between_calls_is_seen(compiler: str):
    compiled, twin = pair(compiler)
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (compiled, twin)]
    for rows in (4, 6, 5, 4):
        for model, optimiser in zip((compiled, twin), optimisers, strict=True):
            torch.manual_seed(rows)
            optimiser.zero_grad()
            model(torch.randn(rows, 4))[0].sum().backward()
            optimiser.step()
        torch.testing.assert_close(dict(compiled.state_dict()), dict(twin.state_dict()))


class TwoTensors(torch.Tensor):
    """A tensor that wraps two others and computes on both."""

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> TwoTensors:
        made = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype, strides=first.stride())
        made.first, made.second = first, second
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], _: None, __: Any, ___: Any) -> TwoTensors:
        return TwoTensors(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}

        def side(name: str) -> Any:
            pick = lambda value: getattr(value, name) if isinstance(value, TwoTensors) else value  # noqa: E731
            return func(*tree_map(pick, args), **tree_map(pick, kwargs))

        first, second = side("first"), side("second")
        return TwoTensors(first, second) if isinstance(first, torch.Tensor) else first


def test_a_tensor_that_wraps_others_is_refused_with_a_warning_and_its_values_are_right():
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * 2

    compiled = fxbucket.compile(doubled, sizes={"x.shape[0]": [4, 6]}, compiler="aot_eager")
    with only_warning("TwoTensors, a tensor that wraps other tensors"):
        for rows in (4, 6, 4):
            x = TwoTensors(torch.randn(rows, 3), torch.randn(rows, 3))
            got = compiled(x)
            assert isinstance(got, TwoTensors)
            torch.testing.assert_close(got.first, doubled(x.first))
            torch.testing.assert_close(got.second, doubled(x.second))


@each_compiler
def test_an_error_of_the_model_is_an_error_of_the_compiled_model_and_later_calls_are_right(compiler: str):
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) @ y

    compiled = fxbucket.compile(product, sizes={"x.shape[0]": [4, 6]}, splitting_ops=[every_n_nodes(1)], compiler=compiler)
    right, wrong = torch.randn(3, 2), torch.randn(5, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxbucket.FxbucketWarning)
        for y in (right, wrong, right):
            for rows in (4, 6, 5):
                x = torch.randn(rows, 3)
                if y is wrong:
                    with pytest.raises(RuntimeError):
                        compiled(x, y)
                else:
                    torch.testing.assert_close(compiled(x, y), product(x, y))


class Counted(torch.nn.Module):
    """Counts its calls in a buffer of no dimensions, which torch also knows as a float once it is a double."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.sigmoid(self.linear(x)) * 2


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_scalar_buffer_may_become_a_double(compiler: str):
    model, same = Counted(), Counted()
    same.load_state_dict(model.state_dict())
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, splitting_ops=["aten::sigmoid"], compiler=compiler)
    for dtype in (torch.float32, torch.float64, torch.float64):
        model.to(dtype)
        same.to(dtype)
        for rows in (4, 5):
            x = torch.randn(rows, 4, dtype=dtype)
            torch.testing.assert_close(compiled(x), same(x))
            assert torch.equal(model.calls, same.calls)
