from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

import fxbucket
from fxbucket.passes import Concretize, Pipeline, Program, Split, at_op, every_n_nodes
from fxbucket.passes.captured import value_of
from fxbucket.passes.derive import derive
from fxbucket.passes.symbolic import expression_of, is_fake, symbols_in


def split(model: Any, *args: Any, boundary: Any = ()) -> Program:
    return Split(boundary)(fxbucket.capture(model, *args, dynamic=["x.shape[0]"]))


def test_every_value_of_every_piece_is_derived(captured: Program):
    program = Pipeline([Split(every_n_nodes(3)), Concretize({"x.shape[0]": 16, "k": 7, "n": 3})])(captured)
    results = derive(program)
    assert len(results) == len(program.pieces)
    for piece, result in zip(program.pieces, results, strict=True):
        assert result.failure == ""
        assert result.values.keys() == {node.name for node in piece.module.graph.nodes}
        for node in piece.body:
            found, written = result.values[node.name], value_of(node)
            if isinstance(written, torch.Tensor):
                assert is_fake(found)
                assert found.shape == written.shape
                assert found.stride() == written.stride()


def test_nothing_that_a_pass_wrote_on_inner_nodes_leaks_into_the_result():
    program = Concretize({"x.shape[0]": 6})(split(lambda x: torch.sigmoid(x)[:2] + 1, torch.randn(4)))
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.pieces[0].module.graph, {}))
    for node in graph.nodes:
        node.meta = {}
    bare = replace(program, pieces=(replace(program.pieces[0], module=fx.GraphModule(program.pieces[0].module, graph)),))
    shapes = [
        [tuple(v.shape) for v in result.values.values() if isinstance(v, torch.Tensor)]
        for program in (program, bare)
        for result in derive(program)
    ]
    assert shapes[0] == shapes[1] == [(6,), (6,), (2,), (2,)]


def test_open_symbols_stay_symbols_and_bound_ones_become_numbers():
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y], dim=0)

    captured = fxbucket.capture(model, torch.randn(4, 3), torch.randn(5, 3), dynamic=["x.shape[0]", "y.shape[0]"])
    program = Concretize({"x.shape[0]": 6}, remaining="keep")(Split()(captured))
    ((result,),) = [derive(program)]
    cat = next(value for name, value in result.values.items() if name.startswith("cat"))
    y_rows = captured.capture.axis("y.shape[0]").symbol
    assert expression_of(cat.shape[0]) == y_rows + 6
    assert symbols_in(list(result.values.values())) == {y_rows}


def test_the_layout_at_the_start_of_a_piece_is_kept_apart_from_what_becomes_of_it():
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = torch.sigmoid(y)
        y.t_()
        return y @ z

    program = Concretize({"x.shape[0]": 5})(split(model, torch.randn(4, 3), boundary=at_op("aten::sigmoid")))
    last = derive(program)[-1]
    (name,) = [name for name, value in last.at_start.items() if name.startswith("y") and isinstance(value, torch.Tensor)]
    assert tuple(last.at_start[name].shape) == (5, 3)
    assert tuple(last.values[name].shape) == (3, 5)


def test_grad_mode_is_that_of_the_capture():
    x = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        program = split(lambda x: x * 2, x)
    (result,) = derive(program)
    assert not result.values[program.pieces[0].outputs[0]].requires_grad
    assert torch.is_grad_enabled()


def test_the_run_stops_at_the_first_failure_and_says_where():
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x.relu()).cos()

    program = split(model, torch.randn(4), boundary=at_op("aten::sigmoid"))

    def fails(x: Any) -> Any:
        raise RuntimeError("no fake here")

    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(program.pieces[1].module.graph, mapping))
    (node,) = [node for node in graph.nodes if node.op == "call_function"]
    node.target = fails
    pieces = (program.pieces[0], replace(program.pieces[1], module=fx.GraphModule({}, graph)), program.pieces[2])
    results = derive(replace(program, pieces=pieces))
    assert len(results) == 2
    assert results[0].failure == ""
    assert results[1].failure.startswith(f"{node.name}: RuntimeError: no fake here")


def test_deriving_changes_no_program(captured: Program):
    program = Split(at_op("aten::sigmoid"))(captured)
    before = str(program)
    derive(program)
    assert str(program) == before
