from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

import fxbucket
from fxbucket.passes import Boundary, Program, at_module, at_op, every_n_nodes, where
from fxbucket.passes.boundaries import as_boundary, module_stack
from fxbucket.passes.errors import BoundaryError


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split(4, dim=-1)
        return F.scaled_dot_product_attention(q, k, v)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.sigmoid(x) + x.sigmoid()


@pytest.fixture(scope="module")
def stack() -> Program:
    return fxbucket.capture(Stack(), torch.randn(2, 5, 4), dynamic=["x.shape[1]"])


@pytest.fixture(scope="module")
def nodes(stack: Program) -> list[fx.Node]:
    return [node for node in stack.capture.module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def named(nodes: list[fx.Node], name: str) -> list[fx.Node]:
    """Return the nodes whose target is a function or a method with this name."""
    return [node for node in nodes if name in (node.target, getattr(node.target, "__name__", ""))]


def groups(boundary: Boundary, nodes: list[fx.Node]) -> int:
    return len({mark.group for mark in boundary.marks(nodes).values()})


@pytest.mark.parametrize(
    "target",
    [
        "aten::scaled_dot_product_attention",
        "torch.nn.functional.scaled_dot_product_attention",
        torch.ops.aten.scaled_dot_product_attention.default,
        torch.ops.aten.scaled_dot_product_attention,
        F.scaled_dot_product_attention,
    ],
)
def test_at_op_marks_every_call_and_nothing_else_however_the_op_is_spelled(nodes: list[fx.Node], target: Any):
    assert list(at_op(target).marks(nodes)) == named(nodes, "scaled_dot_product_attention")
    assert groups(at_op(target), nodes) == 2


def test_at_op_finds_function_and_method_of_one_op(nodes: list[fx.Node]):
    functions, methods = named(nodes, "sigmoid")[:1], named(nodes, "sigmoid")[1:]
    assert [node.op for node in functions + methods] == ["call_function", "call_method"]
    assert set(at_op("aten::sigmoid").marks(nodes)) == {*functions, *methods}


@pytest.mark.parametrize("target", ["aten::add.Tensor", "torch.ops.aten.add.Tensor", torch.ops.aten.add.Tensor])
def test_an_overload_matches_the_operator_that_calls_it(nodes: list[fx.Node], target: Any):
    """The graph holds ``operator.add``, as the model wrote ``+``; a user knows the overload from another tool."""
    assert list(at_op(target).marks(nodes)) == named(nodes, "add")


def test_an_op_runs_as_it_is_unless_asked_to_be_compiled(nodes: list[fx.Node]):
    assert [mark.compiled for mark in at_op("aten::sigmoid").marks(nodes).values()] == [False, False]
    assert [mark.compiled for mark in at_op("aten::sigmoid", compiled=True).marks(nodes).values()] == [True, True]


def test_the_reason_names_the_boundary_and_the_node(nodes: list[fx.Node]):
    (node, mark), *_ = at_op("aten::gelu").marks(nodes).items()
    assert mark.reason.rule == "at_op('aten::gelu')"
    assert mark.reason.node == node.name
    assert "aten::gelu" in str(mark.reason)


@pytest.mark.parametrize("pattern", [Attention, "Attention", "layers.*.attention"])
def test_at_module_marks_each_call_of_a_module_as_one_compiled_piece(nodes: list[fx.Node], pattern: Any):
    marks = at_module(pattern).marks(nodes)
    assert set(marks) == {node for node in nodes if any("attention" in path for _, (path, _) in module_stack(node))}
    assert groups(at_module(pattern), nodes) == 2
    assert all(mark.compiled for mark in marks.values())


def test_a_path_pattern_marks_the_outermost_module_that_it_matches(nodes: list[fx.Node]):
    inside = {node for node in nodes if any(path.startswith("layers.") for _, (path, _) in module_stack(node))}
    assert set(at_module("layers.*").marks(nodes)) == inside
    assert groups(at_module("layers.*"), nodes) == 2
    assert groups(at_module("layers.0"), nodes) == 1
    assert all("layers.1" in str(mark.reason) for mark in at_module("layers.1").marks(nodes).values())


def test_at_module_may_leave_the_module_uncompiled(nodes: list[fx.Node]):
    assert not any(mark.compiled for mark in at_module(Attention, compiled=False).marks(nodes).values())


def test_where_marks_the_nodes_of_a_predicate(nodes: list[fx.Node]):
    def is_method(node: fx.Node) -> bool:
        return node.op == "call_method"

    assert list(where(is_method).marks(nodes)) == [node for node in nodes if node.op == "call_method"]
    assert str(where(is_method)) == "where(is_method)"


@given(st.integers(1, 60))
def test_every_n_nodes_leaves_no_node_out_and_gives_pieces_of_that_many_nodes(nodes: list[fx.Node], count: int):
    marks = every_n_nodes(count).marks(nodes)
    assert list(marks) == nodes
    assert all(mark.compiled for mark in marks.values())
    order = [mark.group for mark in marks.values()]
    lengths = [order.count(group) for group in dict.fromkeys(order)]
    assert all(length == count for length in lengths[:-1])
    assert 1 <= lengths[-1] <= count


def test_or_cuts_where_either_does_and_the_left_one_says_how(nodes: list[fx.Node]):
    sigmoid, methods = at_op("aten::sigmoid", compiled=True), where(lambda node: node.op == "call_method")
    marks = (sigmoid | methods).marks(nodes)
    assert set(marks) == set(sigmoid.marks(nodes)) | set(methods.marks(nodes))
    assert {node for node, mark in marks.items() if mark.compiled} == set(sigmoid.marks(nodes))


def test_and_cuts_where_both_do_and_the_left_one_says_how(nodes: list[fx.Node]):
    inside = at_module("layers.1", compiled=False)
    both = at_op("aten::gelu", compiled=True) & inside
    (node,) = both.marks(nodes)
    assert node is named(nodes, "gelu")[1]
    assert both.marks(nodes)[node].compiled


def test_boundaries_print_as_they_were_written():
    boundary = (at_op("aten::gelu") | at_module(Attention)) & every_n_nodes(3)
    assert str(at_op("aten::gelu") | at_module("Attention")) == "at_op('aten::gelu') | at_module('Attention')"
    assert all(part in str(boundary) for part in ("at_op('aten::gelu')", "at_module(Attention)", "every_n_nodes(3)"))


def test_or_and_and_print_unlike_each_other_when_nested():
    a, b, c = at_op("a::a"), at_op("b::b"), at_op("c::c")
    assert str((a | b) & c) != str(a | (b & c))


@pytest.mark.parametrize(
    ("boundary", "said"),
    [
        (at_op("aten::scaled_dot_product_atention"), "'aten::scaled_dot_product_attention'"),
        (at_op("torch.nn.functional.gelo"), "'torch.nn.functional.gelu'"),
        (at_op(torch.linalg.norm), "norm"),
        (at_module("layer.*"), "'layers"),
        (at_module("Atention"), "'Attention'"),
        (at_module(torch.nn.Conv2d), "Conv2d"),
        (where(lambda node: False), "true for none"),
        (at_op("aten::gelu") & at_op("aten::sigmoid"), "none in common; use `|`"),
        (at_op("aten::gelu") | at_op("aten::geluu"), "'aten::gelu'"),
    ],
)
def test_a_boundary_that_matches_nothing_is_an_error_that_names_it_and_the_nearest(
    nodes: list[fx.Node], boundary: Boundary, said: str
):
    with pytest.raises(BoundaryError) as caught:
        boundary.marks(nodes)
    assert said in str(caught.value)
    wrong = boundary if not str(boundary).startswith("at_op('aten::gelu') |") else at_op("aten::geluu")
    assert str(wrong) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "value", "said"),
    [
        (at_op, 5, r"at_op\(5\).*give"),
        (at_module, torch.relu, r"at_module.*give a path pattern, a class name, or a subclass"),
        (at_module, int, r"at_module.*give a path pattern, a class name, or a subclass"),
        (where, "sigmoid", r"where\('sigmoid'\).*give a function"),
        (every_n_nodes, 0, r"every_n_nodes\(0\).*at least 1"),
        (every_n_nodes, 2.5, r"every_n_nodes\(2.5\).*int"),
        (every_n_nodes, True, r"every_n_nodes\(True\).*int"),
        (as_boundary, None, "None"),
    ],
)
def test_what_is_no_boundary_is_refused_at_once(make: Any, value: Any, said: str):
    with pytest.raises(BoundaryError, match=said):
        make(value)


def test_what_at_op_takes_is_a_boundary_already():
    assert as_boundary("aten::gelu") == at_op("aten::gelu")
    assert as_boundary(F.gelu) == at_op(F.gelu)
    module = at_module(Attention)
    assert as_boundary(module) is module


def test_the_modules_of_a_node_are_told_by_plain_paths_outermost_first(nodes: list[fx.Node]):
    attention = named(nodes, "scaled_dot_product_attention")[1]
    paths = [path for _, (path, _) in module_stack(attention)]
    kinds = [kind.rpartition(".")[2] for _, (_, kind) in module_stack(attention)]
    assert paths == ["", "layers.1", "layers.1.attention"]
    assert kinds == ["Stack", "Layer", "Attention"]
