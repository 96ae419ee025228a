"""A program as DOT text: everything is in it, it says what it should, and any text survives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

import fxbucket
from fxbucket.passes import Program, Split, at_op, every_n_nodes, where
from fxbucket.passes.captured import Capture, Placeholder
from fxbucket.passes.errors import OptionError
from fxbucket.visualize import dot_text

GOLDEN = Path(__file__).parent / "golden_small.dot"


def body_of(program: Program) -> dict[str, set[str]]:
    """Return the names of the nodes of each piece, arguments and output left out; all in one place before Split."""
    if not program.pieces:
        nodes = program.capture.module.graph.nodes
        return {"": {node.name for node in nodes if node.op not in ("placeholder", "output")}}
    return {piece.name: {node.name for node in piece.body} for piece in program.pieces}


def edges_of(program: Program) -> set[tuple[str, str]]:
    """Return every way that a value goes, from the box that gives it to the box that takes it, read off the graphs."""
    output = next(node.name for node in program.capture.module.graph.nodes if node.op == "output")
    if not program.pieces:
        return {(source.name, node.name) for node in program.capture.module.graph.nodes for source in node.all_input_nodes}
    giver = {placeholder.name: placeholder.name for placeholder in program.capture.placeholders}
    edges = set()
    for piece in program.pieces:
        inputs = [node for node in piece.module.graph.nodes if node.op == "placeholder"]
        outside = {node: giver[name] for node, name in zip(inputs, piece.inputs, strict=True)}
        for node in piece.body:
            for source in node.all_input_nodes:
                edges.add((outside.get(source, f"{piece.name}.{source.name}"), f"{piece.name}.{node.name}"))
        end = list(piece.module.graph.nodes)[-1]
        giver.update({name: f"{piece.name}.{node.name}" for name, node in zip(piece.outputs, end.args[0], strict=True)})
    edges.update((giver[ref.name], output) for ref in program.outputs if hasattr(ref, "name"))
    return edges


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Draw nodes for ``plain_program``."""
    count = draw(st.integers(1, 12))
    reads = [draw(st.lists(st.integers(0, position), min_size=1, max_size=3)) for position in range(count)]
    return [(draw(st.integers(0, 5)), list(some)) for some in reads]


@given(steps(), st.sampled_from([None, 1, 2, 3, 5]), st.booleans())
def test_every_node_edge_and_cut_is_drawn(
    plain: Callable[..., Program], read_dot: Callable[[str], Any], nodes: Any, cut: int | None, at_tanh: bool
):
    program = plain(nodes)
    if cut is not None:
        boundary = where(lambda node: node.target is torch.tanh) if at_tanh else every_n_nodes(cut)
        program = Split(boundary, missing="ignore")(program)
    parsed = read_dot(dot_text(program, fold=False))
    bodies = body_of(program)
    expected = {f"{place}.{name}" if place else name for place, names in bodies.items() for name in names}
    assert set(parsed.nodes) == expected | {"x0", "output"} or set(parsed.nodes) == expected | {"output"}
    assert set(parsed.edges) == edges_of(program)
    inside = {place: frozenset(f"{place}.{name}" for name in names) for place, names in bodies.items() if place}
    assert {place: names - {"x0"} for place, names in parsed.clusters.items()} == inside


def test_every_node_of_a_model_is_drawn(captured: Program, split: Program, concrete: Program, read_dot: Any):
    for program in (captured, split, concrete):
        parsed = read_dot(dot_text(program, fold=False, fold_parameters=False))
        body = {f"{place}.{name}" if place else name for place, names in body_of(program).items() for name in names}
        assert body <= set(parsed.nodes)
        assert set(parsed.edges) == edges_of(program)


def test_the_text_of_a_small_program(plain: Callable[..., Program]):
    program = Split(at_op("torch.tanh"))(plain([(1, [0, 1]), (3, [2]), (0, [3])], num_inputs=2))
    assert dot_text(program) == GOLDEN.read_text(encoding="utf-8")


def test_the_same_program_gives_the_same_bytes(split: Program, read_dot: Any):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    texts = {dot_text(fxbucket.capture(model, torch.ones(8, 4), dynamic=["input.shape[0]"])) for _ in range(2)}
    assert len(texts) == 1
    assert dot_text(split) == dot_text(split)


def test_roles_differ_in_colour_and_shape(split: Program, read_dot: Any):
    nodes = read_dot(dot_text(split, fold=False, fold_parameters=False)).nodes
    looks = {
        node["class"]: (node["shape"], node["style"], node["peripheries"], node["fillcolor"]) for node in nodes.values()
    }
    assert set(looks) == {"input", "parameter", "symbol", "op", "boundary", "output"}
    assert len({look[:3] for look in looks.values()}) == len(looks)
    assert len({look[3] for look in looks.values()}) == len(looks)


def test_symbolic_sizes_are_written_by_axis(split: Program, concrete: Program, read_dot: Any):
    edges = read_dot(dot_text(split)).edges
    assert "f32[tokens, 16]" in edges["piece_0.x", "piece_2.x_1"]["label"]
    assert "f32[512, 16]" in read_dot(dot_text(concrete)).edges["piece_0.x", "piece_2.x_1"]["label"]
    assert "(·, tokens, 16)" in dot_text(split)
    assert "(·, 512, 16)" in dot_text(concrete)


def test_a_size_that_depends_on_an_axis_is_written_as_an_expression():
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x, x[:1]]).sin()

    program = fxbucket.capture(doubled, torch.ones(8, 4), axes={"tokens": "x.shape[0]"})
    assert "f32[2*tokens + 1, 4]" in dot_text(program)


def test_a_piece_has_its_name_reason_size_and_bucket(concrete: Program):
    text = dot_text(concrete)
    assert "<B>piece_1</B>" in text
    assert "boundary op drawing::attention" in text
    assert "1 node · runs as it is · for tokens=512" in text


def test_a_value_that_crosses_a_cut_goes_between_clusters(split: Program, read_dot: Any):
    parsed = read_dot(dot_text(split))
    (attention,) = parsed.clusters["piece_1"]
    assert {tail for tail, head in parsed.edges if head == attention} <= parsed.clusters["piece_0"]


def test_parameters_are_folded_or_drawn(captured: Program, read_dot: Any):
    folded = read_dot(dot_text(captured)).nodes
    drawn = read_dot(dot_text(captured, fold_parameters=False)).nodes
    assert "parameter" not in {node["class"] for node in folded.values()}
    assert "weight f32[32, 16] · bias f32[32]" in folded["linear"]["label"]
    titles = [node["label"] for node in drawn.values() if node["class"] == "parameter"]
    assert len(titles) == 15
    assert any("<B>layers.0.up.weight</B>" in title for title in titles)


def test_an_op_tells_its_module_and_its_line(captured: Program, read_dot: Any):
    node = read_dot(dot_text(captured)).nodes["linear"]
    assert "in layers.0.up (Linear)" in node["tooltip"]
    assert "query, key = self.up(self.norm(x))" in node["tooltip"]
    assert node["URL"].startswith("file:///")
    assert "/tests/visualize/conftest.py#L" in node["URL"]


def test_a_piece_alone_has_its_own_inputs(split: Program, read_dot: Any):
    parsed = read_dot(dot_text(split.pieces[1]))
    assert {node["class"] for node in parsed.nodes.values()} == {"input", "boundary", "output"}
    assert len(parsed.clusters) == 1
    nodes = read_dot(dot_text(split.pieces[2])).nodes
    assert "weight f32[16, 16] · bias f32[16]" in nodes["piece_2.linear_1"]["label"]
    assert nodes["s23"]["class"] == "symbol"


def test_a_nested_graph_is_told_in_the_tooltip():
    inner = fx.Graph()
    argument = inner.placeholder("inner_argument")
    inner.output((inner.call_function(torch.sinh, (argument,)),))
    root = torch.nn.Module()
    root.body = fx.GraphModule(torch.nn.Module(), inner)
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(
        (graph.call_function(torch.ops.higher_order.cond, (x, graph.get_attr("body"), graph.get_attr("body"), [x])),)
    )
    program = Program(Capture(fx.GraphModule(root, graph), (Placeholder(0, "x", "L['x']", "input"),), ()))
    assert "body graph of 3 nodes" in dot_text(program)
    assert "sinh(inner_argument)" in dot_text(program)


def test_themes_differ_in_colours_alone(split: Program):
    def without_colours(text: str) -> str:
        words = text.split("#")
        return "".join([words[0], *(word[6:] for word in words[1:])])

    light, dark = dot_text(split, theme="light"), dot_text(split, theme="dark")
    assert light != dark
    assert without_colours(light) == without_colours(dark)


def test_an_unknown_theme_is_an_error(split: Program):
    with pytest.raises(OptionError, match=r"theme 'drak' is unknown; .*'dark'"):
        dot_text(split, theme="drak")  # type: ignore[arg-type]


def test_what_is_no_program_is_an_error():
    with pytest.raises(OptionError, match="a Linear cannot be drawn; give a Program"):
        dot_text(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_an_unknown_fold_is_an_error(split: Program):
    with pytest.raises(OptionError, match="fold='yes' is unknown"):
        dot_text(split, fold="yes")  # type: ignore[arg-type]
