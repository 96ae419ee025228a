from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.axes import axis_specs
from fxbucket.frame import CallFrame, capturing, current_call, entry_point, signature_of
from fxbucket.passes.captured import value_of
from fxbucket.passes.symbolic import expression_of
from fxbucket.torch_compat import mark_dim_dynamic


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor, by: int = 3, *, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x * by if bias is None else x * by + bias


def positional_only(a: Any, b: Any, /, c: Any = 1, *rest: Any, d: Any, e: Any = 2, **extra: Any) -> Any:
    return a, b, c, rest, d, e, extra


def only_keywords(*, model: Any, call: Any = None) -> Any:
    return model, call


@pytest.mark.parametrize(
    ("model", "args", "kwargs"),
    [
        (positional_only, (1, 2), {"d": 3}),
        (positional_only, (1, 2, 3, 4, 5), {"d": 6, "e": 7, "f": 8, "a": 9}),
        (only_keywords, (), {"model": 1}),
        (only_keywords, (), {"model": 1, "call": 2}),
        (lambda a, /: a, (1,), {}),
        (lambda *xs: xs, (1, 2), {}),
        (lambda **kw: kw, (), {"x": 1}),
        (lambda model, _model, __model=4: (model, _model, __model), (1, 2), {}),
        (Scale(), (torch.ones(2),), {"by": 5}),
        (max, (3, 8), {}),
    ],
)
def test_the_captured_function_calls_the_model_with_the_same_arguments(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
):
    got, expected = CallFrame((), model).function(*args, **kwargs), model(*args, **kwargs)
    assert torch.equal(got, expected) if isinstance(expected, torch.Tensor) else got == expected


@pytest.mark.parametrize("model", [positional_only, only_keywords, lambda x, n=3: x, lambda a, /, b: a])
def test_the_captured_function_has_the_models_own_parameters(model: Callable[..., Any]):
    mine, theirs = inspect.signature(CallFrame((), model).function), inspect.signature(model)
    assert [(p.name, p.kind, p.default) for p in mine.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]


def test_the_signature_of_a_module_is_that_of_its_forward():
    assert list(signature_of(Scale()).parameters) == ["x", "by", "bias"]


def test_what_has_no_signature_takes_anything():
    assert [str(parameter) for parameter in signature_of(dict).parameters.values()] == ["*args", "**kwargs"]


def test_arguments_that_do_not_fit_raise_what_the_model_raises():
    with pytest.raises(TypeError, match="required"):
        CallFrame((), Scale()).function()


def test_what_cannot_be_called_is_refused_at_once():
    with pytest.raises(TypeError, match="5 is not callable; give a module or a function"):
        entry_point(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'model' is not callable"):
        fxbucket.compile("model")  # type: ignore[arg-type]


def test_a_call_is_current_while_it_is_captured_and_calls_may_nest():
    frame = CallFrame((), Scale())
    outer, inner = frame.bind((1,), {}), frame.bind((2,), {})
    assert current_call() is None
    with capturing(outer):
        assert current_call() is outer
        with capturing(inner):
            assert current_call() is inner
        assert current_call() is outer
    assert current_call() is None


def test_a_call_that_fails_is_current_no_more():
    def fails() -> None:
        with capturing(CallFrame((), Scale()).bind((1,), {})):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fails()
    assert current_call() is None


def test_the_arguments_of_a_call_are_told_by_name():
    assert CallFrame((), Scale()).bind((1,), {"bias": 2}).arguments == {"x": 1, "by": 3, "bias": 2}


def test_the_frame_keeps_the_axes_that_it_was_given():
    specs, _ = axis_specs({"b": "x.shape[0]"}, [])
    assert CallFrame(specs, Scale()).bind((1,), {}).specs is specs


def test_a_capture_leaves_no_mark_on_the_arguments():
    x = torch.randn(4, 4)
    before = dict(vars(x))
    fxbucket.capture(lambda x: x + 1, x, dynamic=["x.shape[0]"])
    assert vars(x) == before


def test_a_capture_leaves_the_marks_that_the_user_made():
    x = torch.randn(4, 4)
    mark_dim_dynamic(x, 1)
    before = {name: set(value) if isinstance(value, set) else value for name, value in vars(x).items()}
    assert before
    fxbucket.capture(lambda x: x + 1, x, dynamic=["x.shape[0]"])
    assert vars(x) == before


def test_a_failed_capture_leaves_no_mark_and_no_setting_behind():
    x = torch.randn(4, 4)
    sources = torch.compiler.config.dynamic_sources

    @torch.compiler.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(fxbucket.FxbucketError):
        fxbucket.capture(lambda x, n: outside(x) * n, x, 3, dynamic=["x.shape[0]", "n"])
    assert vars(x) == {}
    assert torch.compiler.config.dynamic_sources == sources
    assert current_call() is None


def test_the_same_tensors_stay_usable_by_another_torch_compile():
    x = torch.randn(4, 4)
    plain = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [4]}, compiler="eager")
    assert torch.equal(compiled(x), plain(x))
    assert torch.equal(plain(x), compiled(x))


@pytest.mark.filterwarnings("ignore::fxbucket.FxbucketWarning")
def test_one_model_compiled_twice_is_captured_for_each_with_its_own_axes():
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.flatten()

    rows = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler="eager")
    columns = fxbucket.compile(model, sizes={"x.shape[1]": [4]}, compiler="eager")
    for shape in ((4, 4), (4, 5), (5, 4)):
        x = torch.randn(shape)
        assert torch.equal(rows(x), model(x))
        assert torch.equal(columns(x), model(x))
    assert [axis.name for axis in rows.programs[0].axes] == ["x.shape[0]"]
    assert [axis.name for axis in columns.programs[0].axes] == ["x.shape[1]"]


@pytest.mark.parametrize(("first", "later"), [(4, 9), (1, 7), (0, 3)])
def test_an_int_axis_is_captured_once_whatever_its_first_value(first: int, later: int):
    compiled = fxbucket.compile(lambda x, n: x * n, sizes={"n": [first]}, compiler="eager")
    x = torch.randn(3)
    for n in (first, later, -2, 0, 1):
        assert torch.equal(compiled(x, n), x * n)
    (program,) = compiled.programs
    (symbol,) = [value_of(node) for node in program.capture.module.graph.nodes if node.name.startswith("l_n_")]
    assert expression_of(symbol) == program.capture.axis("n").symbol
