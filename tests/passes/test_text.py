from __future__ import annotations

import pytest
import sympy
import torch
from torch import fx

import fxbucket
from fxbucket.passes import Admit, Bucket, Concretize, Pipeline, Program, Split, at_op
from fxbucket.passes.text import condition_text, graph_text, node_text, piece_text, target_text, value_text


@pytest.fixture(scope="module")
def split(captured: Program) -> Program:
    return Split(at_op("aten::sigmoid"))(captured)


def test_a_whole_program_reads_like_this():
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x.relu()).reshape(-1)

    program = Pipeline((Split(at_op("aten::sigmoid")), Admit((Bucket.of({"rows": 8}), Bucket.of({"rows": 1})))))(
        fxbucket.capture(model, torch.randn(6, 4), axes={"rows": "x.shape[0]"})
    )
    rows = program.capture.axis("rows").symbol
    assert str(program).splitlines() == [
        "program",
        "  axis rows in 2..∞",
        "  bucket rows=8: admitted",
        "  bucket rows=1: refused: size 1 of axis 'rows' lies outside 2..∞, the range for which this capture is valid; "
        "choose a size in it.",
        "piece_0 (compiled): what is left between cuts",
        f"    {f'{rows} = input':<18}  # int rows",
        "    l_x_ = input        # f32[rows, 4]",
        "    relu = l_x_.relu()  # f32[rows, 4]",
        "    return (relu,)",
        "piece_1 (boundary, runs as it is): boundary op aten::sigmoid",
        "    relu = input                   # f32[rows, 4]",
        "    sigmoid = torch.sigmoid(relu)  # f32[rows, 4]",
        "    return (sigmoid,)",
        "piece_2 (compiled): what is left between cuts",
        f"    {f'{rows} = input':<29}  # int rows",
        "    sigmoid = input                # f32[rows, 4]",
        "    reshape = sigmoid.reshape(-1)  # f32[4*rows]",
        "    return (reshape,)",
        "returns (%reshape,)",
    ]


def test_sizes_are_written_by_the_names_of_axes(split: Program):
    text = str(split)
    assert "f32[3, k]" in text
    assert "f32[x.shape[0], 4]" in text
    assert "int n" in text
    comments = [line.partition("#")[2] for line in text.splitlines()]
    assert not any(str(symbol) in comment for symbol in split.open_symbols for comment in comments)


def test_a_concrete_program_shows_numbers_and_says_for_what(split: Program):
    text = str(Concretize({"x.shape[0]": 16, "k": 7, "n": 3})(split))
    assert text.startswith("program for x.shape[0]=16, k=7, n=3\n")
    assert "  axis k = 7\n" in text
    assert "f32[3, 7]" in text
    assert "f32[3, k]" not in text


def test_guards_and_fixed_axes_are_shown(captured: Program):
    assert "  guard (x.shape[0] % 2) == 0\n" in str(captured)
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [1, 4]}, compiler="eager")
    compiled(torch.randn(1))
    assert "  axis x.shape[0] fixed at 1\n" in str(compiled.programs[0])


def test_a_program_that_is_not_split_shows_its_graph(captured: Program):
    assert "torch.sigmoid(" in str(captured)
    assert "piece_" not in str(captured)


def test_a_piece_alone_writes_sizes_by_the_names_of_axes(split: Program):
    texts = [str(piece) for piece in split.pieces]
    assert all(text in str(split) for text in texts)
    assert "f32[x.shape[0], 4]" in texts[1]
    assert piece_text(split.pieces[1], str) != texts[1]


def test_a_piece_prints_its_kind_its_reason_and_its_code(split: Program):
    text = str(split.pieces[1])
    assert text == piece_text(split.pieces[1])
    assert text.startswith("piece_1 (boundary, runs as it is): boundary op aten::sigmoid\n")
    assert "torch.sigmoid(" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.empty(2, 3), "f32[2, 3]"),
        (torch.empty((), dtype=torch.bool), "b8[]"),
        (torch.empty(2, 3).t(), "f32[3, 2] strides [1, 3]"),
        (torch.empty(6, dtype=torch.int64)[2:], "i64[4] offset 2"),
        (torch.empty(2, dtype=torch.bfloat16, requires_grad=True), "bf16[2] grad"),
        (torch.empty(2, 0, 3), "f32[2, 0, 3]"),
        (torch.empty(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn[2]"),
        (torch.empty(2, device="meta"), "f32[2] meta"),
        (torch.eye(2).to_sparse(), "f32[2, 2] sparse_coo"),
        (torch.Size([2, 3]), "Size[2, 3]"),
        ((torch.empty(1), 3), "(f32[1], int 3)"),
        ({"x": 2.5}, "{x: float 2.5}"),
        (True, "bool True"),
        (None, ""),
        ("text", "str"),
    ],
)
def test_a_value_is_written_short(value: object, text: str):
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (torch.sigmoid, "torch.sigmoid"),
        (torch.nn.functional.gelu, "torch.nn.functional.gelu"),
        (torch.ops.aten.add.Tensor, "aten.add.Tensor"),
        (torch.ops.higher_order.cond, "higher_order.cond"),
        (abs, "builtins.abs"),
    ],
)
def test_a_target_is_written_as_a_person_would(target: object, text: str):
    assert target_text(fx.Graph().call_function(target)) == text  # type: ignore[arg-type]


def test_a_node_is_one_line_of_python():
    graph = fx.Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("weight")
    call = graph.call_function(torch.add, (x, [weight, None]), {"alpha": 2})
    method = graph.call_method("view", (x, (2, -1)))
    item = graph.call_function(abs, ((slice(None, x, 2),), {"key": x}))
    out = graph.output((call, method))
    assert [node_text(node) for node in (x, weight, call, method, item, out)] == [
        "x = input",
        "weight = self.weight",
        "add = torch.add(x, [weight, None], alpha=2)",
        "view = x.view((2, -1))",
        "abs_1 = builtins.abs((slice(None, x, 2),), {'key': x})",
        "return (add, view)",
    ]


def test_nested_graphs_are_shown_below_the_graph_that_calls_them():
    inner = fx.Graph()
    inner.output(inner.call_function(torch.cos, (inner.placeholder("a"),)))
    outer = fx.Graph()
    outer.output(outer.get_attr("body"))
    module = fx.GraphModule({"body": fx.GraphModule({}, inner)}, outer)
    lines = graph_text(module).splitlines()
    assert "    where self.body:" in lines
    assert any(line.startswith("        ") and "torch.cos(a)" in line for line in lines)


def test_a_condition_is_written_as_python_over_axis_names(captured: Program):
    rows = captured.capture.axis("x.shape[0]").symbol
    assert rows is not None
    assert condition_text(sympy.Le(rows, 64), captured.axes) == "x.shape[0] <= 64"
    assert condition_text(True, ()) == "True"
