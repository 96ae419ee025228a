from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

import fxbucket
from fxbucket.passes import Concretize, Discover, Pipeline, Program, Split, Verify, at_op
from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import PreconditionError, VerifyError
from fxbucket.passes.symbolic import fake_mode_of, fresh_environment
from fxbucket.passes.verify import Difference, differences


@pytest.fixture(scope="module")
def concrete(captured: Program) -> Program:
    prepare = Pipeline([Split(at_op("aten::sigmoid")), Discover(), Concretize({"x.shape[0]": 16, "k": 7, "n": 3})])
    return prepare(captured)


def with_changed(program: Program, target: str, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Program, str]:
    """Return the program with other metadata on the first node that calls ``target``, and the node's place."""
    for piece in program.pieces:
        for node in piece.module.graph.nodes:
            if target in (node.target, getattr(node.target, "__name__", "")):
                graph = fx.Graph()
                mapping: dict[fx.Node, fx.Node] = {}
                graph.output(graph.graph_copy(piece.module.graph, mapping))
                value = value_of(node)
                mode = fake_mode_of([value])
                assert mode is not None
                for old, new in mapping.items():
                    new.meta = copy.copy(old.meta)
                with mode:
                    mapping[node].meta["example_value"] = change(value)
                changed = replace(piece, module=fx.GraphModule(piece.module, graph))
                pieces = tuple(changed if other is piece else other for other in program.pieces)
                return replace(program, pieces=pieces), f"{piece.name}.{mapping[node].name}"
    raise AssertionError(f"no node calls {target}")


def test_metadata_that_is_right_passes_and_leaves_the_program_as_it_is(concrete: Program):
    verified = Verify()(concrete)
    assert verified == concrete
    assert verified.trail[-1].findings == ()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("shape", lambda t: t.new_empty((17, 4))),
        ("shape", lambda t: t.new_empty((16, 4, 1))),
        ("stride", lambda t: torch.empty_strided((16, 4), (1, 16))),
        ("dtype", lambda t: torch.empty((16, 4), dtype=torch.float64)),
        ("requires_grad", lambda t: torch.empty((16, 4))),
        ("storage offset", lambda t: torch.empty(65).requires_grad_()[1:].view(16, 4)),
    ],
)
def test_each_field_that_is_written_wrong_is_told_by_node_and_field(
    concrete: Program, field: str, change: Callable[[torch.Tensor], torch.Tensor]
):
    wrong, place = with_changed(concrete, "sigmoid", change)
    with pytest.raises(VerifyError, match="verify") as caught:
        Verify()(wrong)
    assert f"{place}: {field} was written as" in str(caught.value)


def test_differences_become_findings_where_they_are_not_errors(concrete: Program):
    wrong, place = with_changed(concrete, "sigmoid", lambda t: t.repeat(2, 1)[:17].clone())
    program = Verify(strict=False)(wrong)
    (finding,) = program.trail[-1].findings
    assert finding.where == place
    assert "(17, 4)" in finding.text
    assert "(16, 4)" in finding.text


def test_many_differences_are_counted_and_the_first_are_listed():
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = torch.sigmoid(x)
        return x

    program = Split()(fxbucket.capture(model, torch.randn(4), dynamic=["x.shape[0]"]))
    concrete = Concretize({"x.shape[0]": 6})(program)
    _, other = fresh_environment()
    with other:
        wrong_value = torch.empty(7)
    module = copy.copy(concrete.pieces[0].module)
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta["example_value"] = wrong_value
    wrong = replace(concrete, pieces=(replace(concrete.pieces[0], module=fx.GraphModule(module, graph)),))
    with pytest.raises(VerifyError, match="12 values") as caught:
        Verify()(wrong)
    assert "and 4 more" in str(caught.value)


def test_verify_needs_pieces(captured: Program):
    with pytest.raises(PreconditionError, match="run Split first"):
        Verify()(captured)


def test_verify_is_pure_and_repeatable(concrete: Program):
    before = str(concrete)
    assert Verify()(concrete) == Verify()(concrete)
    assert str(concrete) == before


def test_a_value_whose_layout_changes_in_place_later_is_no_difference():
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = torch.sigmoid(y)
        y.t_()
        return y + z.t()

    program = Split(at_op("aten::sigmoid"))(fxbucket.capture(model, torch.randn(4, 3), dynamic=["x.shape[0]"]))
    Pipeline([Verify(), Concretize({"x.shape[0]": 5}), Verify()])(program)


def test_what_cannot_be_derived_is_a_finding_and_not_an_error():
    """A custom op whose fake cannot run leaves the rest unchecked, and says so."""
    program = Split()(fxbucket.capture(lambda x: torch.sigmoid(x) + 1, torch.randn(4), dynamic=["x.shape[0]"]))

    def fails(x: Any) -> Any:
        raise RuntimeError("no fake here")

    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(program.pieces[0].module.graph, mapping))
    for old, new in mapping.items():
        if getattr(old.target, "__name__", "") == "sigmoid":
            new.target = fails
    broken = replace(program, pieces=(replace(program.pieces[0], module=fx.GraphModule({}, graph)),))
    (finding,) = Verify()(broken).trail[-1].findings
    assert "could not be derived" in finding.text
    assert "no fake here" in finding.text


def fakes(*makes: Callable[[], Any]) -> list[Any]:
    _, mode = fresh_environment()
    with mode:
        return [make() for make in makes]


@pytest.mark.parametrize(
    ("written", "derived", "fields"),
    [
        (3, 3, []),
        (3, 4, ["value"]),
        ((1, 2), [1, 2], []),
        ((1, 2), (1, 3), ["[1].value"]),
        ((1, 2), (1,), ["length"]),
        (None, torch.empty(2), []),
        (torch.empty(1, 3), torch.empty_strided((1, 3), (99, 1)), []),
        (torch.empty(0, 3), torch.empty_strided((0, 3), (1, 5)), []),
        (torch.empty(2, 3), torch.empty_strided((2, 3), (1, 2)), ["stride"]),
        (torch.empty(2, dtype=torch.int8), torch.empty(2), ["dtype"]),
        (torch.empty(2), torch.empty(3), ["shape"]),
    ],
)
def test_differences_are_those_that_mean_something(written: Any, derived: Any, fields: list[str]):
    """A stride of a dimension with fewer than two rows means nothing, and a list is as good as a tuple."""
    assert [field for field, _, _ in differences(written, derived, {})] == fields


def test_the_device_counts():
    on_meta, on_cpu = torch.empty(2, device="meta"), torch.empty(2)
    assert [field for field, _, _ in differences(on_meta, on_cpu, {})] == ["device"]


def test_a_difference_prints_where_it_is_and_both_values():
    text = str(Difference("piece_0", "relu", "shape", (2,), (3,)))
    assert text == "piece_0.relu: shape was written as (2,), but propagation gives (3,)"
