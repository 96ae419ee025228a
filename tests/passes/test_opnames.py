from __future__ import annotations

import json
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from fxbucket.passes.opnames import (
    NOT_ATEN,
    OPERATOR_TO_ATEN,
    graph_op_names,
    names_of_callable,
    op_names,
    spellings_of,
)


@torch.library.custom_op("fxbucket_test::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


def call(target: Any) -> fx.Node:
    """Return a node that calls a function, or a method of its argument."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    return graph.call_method(target, (x,)) if isinstance(target, str) else graph.call_function(target, (x,))


def matches(spelling: Any, target: Any) -> bool:
    return not spellings_of(spelling).isdisjoint(op_names(call(target)))


SIGMOID_CALLS = [torch.sigmoid, "sigmoid", torch.ops.aten.sigmoid, torch.ops.aten.sigmoid.default]
SIGMOID_SPELLINGS = [
    "aten::sigmoid",
    "aten::sigmoid.default",
    "torch.sigmoid",
    "torch.nn.functional.sigmoid",
    "torch.Tensor.sigmoid",
    "torch.ops.aten.sigmoid",
    "torch.ops.aten.sigmoid.default",
    torch.sigmoid,
    torch.Tensor.sigmoid,
    torch.ops.aten.sigmoid,
    torch.ops.aten.sigmoid.default,
]


@pytest.mark.parametrize("target", SIGMOID_CALLS)
@pytest.mark.parametrize("spelling", SIGMOID_SPELLINGS)
def test_every_spelling_of_an_op_of_torch_matches_every_way_to_call_it(spelling: Any, target: Any):
    assert matches(spelling, target)


@pytest.mark.parametrize("spelling", SIGMOID_SPELLINGS)
def test_no_spelling_of_one_op_matches_another(spelling: Any):
    others = [torch.tanh, "tanh", torch.ops.aten.tanh.default, operator.add, "sigmoid_", F.logsigmoid]
    assert [other for other in others if matches(spelling, other)] == []


@pytest.mark.parametrize(
    "spelling",
    [
        "aten::scaled_dot_product_attention",
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.ops.aten.scaled_dot_product_attention",
        F.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    ],
)
@pytest.mark.parametrize("target", [F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default])
def test_attention_is_found_by_both_its_names(spelling: Any, target: Any):
    assert matches(spelling, target)


@pytest.mark.parametrize(
    ("python", "aten"),
    [
        (operator.add, "add"),
        (operator.matmul, "matmul"),
        (operator.truediv, "div"),
        (operator.mod, "remainder"),
        (operator.iadd, "add_"),
        (operator.neg, "neg"),
        (operator.lt, "lt"),
        (operator.and_, "bitwise_and"),
    ],
)
def test_an_operator_of_python_is_the_op_that_it_calls(python: Callable[..., Any], aten: str):
    assert matches(f"aten::{aten}", python)
    assert matches(python, python)
    assert matches(f"operator.{python.__name__}", python)


def test_an_operator_in_place_is_not_the_op_out_of_place():
    assert not matches("aten::add", operator.iadd)
    assert not matches("aten::add_", operator.add)


def test_every_operator_is_translated_to_an_op_that_exists():
    assert [name for name in OPERATOR_TO_ATEN if not hasattr(operator, name)] == []
    assert [name for name in OPERATOR_TO_ATEN.values() if not hasattr(torch.ops.aten, name)] == []


@pytest.mark.parametrize("name", sorted(NOT_ATEN))
def test_taking_an_item_of_a_container_is_no_op_of_torch(name: str):
    names = names_of_callable(getattr(operator, name))
    assert f"operator.{name}" in names
    assert not any("::" in spelled or spelled.startswith("torch") for spelled in names)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (torch.special.expit, "torch.special.expit"),
        (torch.linalg.norm, "torch.linalg.norm"),
        (torch.fft.fft, "torch.fft.fft"),
        (F.gelu, "torch.nn.functional.gelu"),
        (F.softmax, "torch.nn.functional.softmax"),
    ],
)
def test_a_python_path_matches_the_function_that_it_leads_to(target: Callable[..., Any], path: str):
    assert matches(path, target)
    assert matches(target, target)


@pytest.mark.parametrize(
    "spelling",
    [
        "fxbucket_test::scale",
        "fxbucket_test::scale.default",
        "torch.ops.fxbucket_test.scale",
        "torch.ops.fxbucket_test.scale.default",
        torch.ops.fxbucket_test.scale,
        torch.ops.fxbucket_test.scale.default,
        scale,
    ],
)
@pytest.mark.parametrize("target", [torch.ops.fxbucket_test.scale.default, torch.ops.fxbucket_test.scale])
def test_a_custom_op_is_found_by_every_name_and_by_its_own_object(spelling: Any, target: Any):
    assert matches(spelling, target)


def test_an_overload_by_name_matches_calls_of_that_overload_only():
    assert matches("aten::add.Tensor", torch.ops.aten.add.Tensor)
    assert not matches("aten::add.Tensor", torch.ops.aten.add.Scalar)


def test_a_higher_order_op_is_found_by_its_name():
    assert matches("higher_order::cond", torch.ops.higher_order.cond)
    assert matches("cond", torch.ops.higher_order.cond)


def test_a_function_outside_torch_is_found_by_its_path_and_by_itself():
    assert matches("json.dumps", json.dumps)
    assert matches(json.dumps, json.dumps)
    assert not matches("json.loads", json.dumps)


@pytest.mark.parametrize("spelling", ["pickle.dumps", pickle.dumps])
def test_a_function_of_the_same_name_in_another_library_is_another_function(spelling: Any):
    assert not matches(spelling, json.dumps)


def test_what_is_no_op_has_no_name():
    graph = fx.Graph()
    nodes = [graph.placeholder("x"), graph.get_attr("weight")]
    nodes.append(graph.output(nodes[0]))
    assert [op_names(node) for node in nodes] == [frozenset()] * 3
    assert names_of_callable(object()) == frozenset()


def test_a_spelling_that_leads_nowhere_stands_for_itself():
    assert spellings_of("no_such_module.op") == {"no_such_module.op"}
    assert spellings_of("torch.nn.functional.no_such_op") == {"torch.nn.functional.no_such_op"}


def test_the_names_of_a_graph_are_those_of_all_its_nodes():
    nodes = [call(torch.sigmoid), call("tanh")]
    names = graph_op_names(nodes)
    assert names <= op_names(nodes[0]) | op_names(nodes[1])
    assert {"aten::sigmoid", "torch.sigmoid", "aten::tanh", "torch.Tensor.tanh"} <= names
    assert all(not spellings_of(name).isdisjoint(op_names(nodes["tanh" in name])) for name in names), "each can be asked for"
