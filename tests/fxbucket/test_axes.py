from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.axes import axis_specs, bound_arguments, parse_reading, readings_of
from fxbucket.passes.captured import python_spelling
from fxbucket.passes.errors import AxisError


@dataclass
class Batch:
    ids: torch.Tensor
    masks: list[torch.Tensor]
    length: int = 7


ARGUMENTS: dict[str, Any] = {
    "x": torch.empty(4, 5, 6),
    "n": 9,
    "flag": True,
    "batch": {"ids": torch.empty(2, 3), "nested": {"lengths": [torch.empty(8), 11]}},
    "xs": (torch.empty(1, 2), torch.empty(0, 3)),
    "data": Batch(torch.empty(5, 7), [torch.empty(2), torch.empty(9)]),
}


@pytest.mark.parametrize(
    "expression",
    [
        "x.shape[0]",
        "x.shape[-1]",
        "x.size(1)",
        "x.size(-3)",
        "n",
        " n ",
        "batch['ids'].shape[1]",
        'batch["ids"].shape[1]',
        "batch['nested']['lengths'][0].shape[0]",
        "batch['nested']['lengths'][1]",
        "xs[0].shape[1]",
        "xs[-1].shape[0]",
        "data.ids.shape[1]",
        "data.masks[1].shape[0]",
        "data.length",
    ],
)
def test_an_expression_reads_what_python_reads(expression: str):
    assert parse_reading(expression).read(ARGUMENTS) == eval(expression, dict(ARGUMENTS))


keys = st.one_of(st.text("abc_-' \"\\é", max_size=4), st.integers(-2, 1))


@given(
    st.lists(st.one_of(keys, st.sampled_from(["left", "right"]).map(lambda name: (name,))), max_size=4), st.integers(-3, 2)
)
def test_any_path_of_items_and_attributes_reads_what_python_reads(path: list[Any], dim: int):
    @dataclass
    class Pair:
        left: Any
        right: Any

    value: Any = torch.empty(4, 5, 6)
    expression = f".shape[{dim}]"
    for step in reversed(path):
        if isinstance(step, tuple):
            value, expression = Pair(value, value), f".{step[0]}{expression}"
        elif isinstance(step, int):
            value, expression = [value, value], f"[{step}]{expression}"
        else:
            value, expression = {step: value}, f"[{step!r}]{expression}"
    arguments = {"x": value}
    assert parse_reading(f"x{expression}").read(arguments) == eval(f"x{expression}", dict(arguments))


@pytest.mark.parametrize(
    "expression",
    ["", "  ", 5, None, "x.shape", "x.shape[i]", "x.shape['a']", "x.shape[True]", "x.shape[0] + 1", "f(x)", "x.size()",
     "x.size(0, 1)", "x.size(dim=0)", "x.shape[0", "len(x)", "x.shape.shape[0]", "x[1.5]", "3", "lambda: x",
     "x[:2].shape[0]"],
)  # fmt: skip
def test_what_is_no_axis_expression_is_refused_with_an_example(expression: Any):
    with pytest.raises(AxisError, match="is not an expression") as caught:
        parse_reading(expression)
    assert repr(expression) in str(caught.value)
    assert "'x.shape[0]'" in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("y.shape[0]", r"'y.shape\[0\]' names no argument.*'x.shape\[0\]'"),
        ("m", "'m' names no argument"),
        ("x.shape[3]", r"3 dimensions.*-3\.\.2"),
        ("x.shape[-4]", r"3 dimensions.*-3\.\.2"),
        ("n.shape[0]", "must read a tensor, but this call gives int.*'n'"),
        ("x", r"must read an int, but this call gives Tensor.*'x.shape\[0\]'"),
        ("flag", "must read an int, but this call gives bool"),
        ("batch['idz'].shape[1]", r"KeyError 'idz'.*batch\['ids'\]"),
        ("xs[2].shape[0]", r"IndexError.*xs\[0\].shape\[0\]"),
        ("data.id.shape[0]", r"no attribute 'id'.*data.ids.shape\[0\]"),
        ("n[0]", "TypeError.*'n'"),
    ],
)
def test_what_a_call_does_not_give_is_an_error_with_what_it_does(expression: str, said: str):
    with pytest.raises(AxisError, match=said) as caught:
        parse_reading(expression).read(ARGUMENTS)
    assert repr(expression) in str(caught.value)


def test_a_reading_knows_torchs_spelling_of_its_place():
    assert "L['x'].size()[1]" in parse_reading("x.shape[1]").sources(3)
    assert "L['x'].size()[2]" in parse_reading("x.shape[-1]").sources(3)
    assert "L['batch']['ids'].size()[0]" in parse_reading('batch["ids"].size(0)').sources(2)
    assert "L['n']" in parse_reading("n").sources(None)


@pytest.mark.parametrize(
    ("source", "expression"),
    [
        ("L['x'].size()[0]", "x.shape[0]"),
        ("L['batch']['ids'].size()[1]", "batch['ids'].shape[1]"),
        ("L['kwargs']['mask'].size()[1]", "mask.shape[1]"),
        ("L['n']", "n"),
        ("L['x'].stride()[0]", "x.stride()[0]"),
    ],
)
def test_torchs_text_of_a_place_becomes_the_expression_that_a_user_would_write(source: str, expression: str):
    assert python_spelling(source) == expression


def test_specs_are_short_names_first_then_the_axes_of_sizes():
    specs, name_of = axis_specs({"b": "x.shape[0]", "t": ["x.shape[1]", "y.shape[1]"]}, ["x.shape[0]", "n", "t"])
    assert [(spec.name, [reading.expression for reading in spec.readings]) for spec in specs] == [
        ("b", ["x.shape[0]"]),
        ("t", ["x.shape[1]", "y.shape[1]"]),
        ("n", ["n"]),
    ]
    assert [name_of(spelling) for spelling in ("b", "x.shape[0]", "y.shape[1]", "n")] == ["b", "b", "t", "n"]


def test_no_axes_are_no_specs():
    assert axis_specs(None, [])[0] == ()


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"b": []}, "axis 'b' has no expression"),
        ({"b": "x.shape[0]", "t": "x.shape[0]"}, r"'x.shape\[0\]' is given to two axes.*'b'"),
        ({"b": "x.shape[]"}, "is not an expression"),
        ({"b": [3]}, "axis 3 is not an expression"),
    ],
)
def test_axes_that_cannot_be_told_apart_are_refused(axes: dict[str, Any], said: str):
    with pytest.raises(AxisError, match=said):
        axis_specs(axes, [])


def test_arguments_are_bound_by_name_with_defaults_and_extra_keywords():
    def model(a: int, /, b: int = 2, *rest: int, c: int = 3, **extra: int) -> None: ...

    bound = bound_arguments(inspect.signature(model), (1, 5, 6, 7), {"d": 8})
    assert bound == {"a": 1, "b": 5, "rest": (6, 7), "c": 3, "extra": {"d": 8}, "d": 8}
    assert bound_arguments(inspect.signature(model), (1,), {})["b"] == 2


def test_arguments_that_do_not_fit_are_the_type_error_that_the_model_would_raise():
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        bound_arguments(inspect.signature(lambda x: x), (), {})


def test_every_offered_reading_can_be_read():
    offered = [expression for name, value in ARGUMENTS.items() for expression in readings_of(name, value)]
    assert "batch['nested']['lengths'][1]" in offered
    assert "data.masks[1].shape[0]" in offered
    assert not any(expression.startswith("flag") for expression in offered)
    for expression in offered:
        assert parse_reading(expression).read(ARGUMENTS) == eval(expression, dict(ARGUMENTS))
