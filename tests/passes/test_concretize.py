from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Bucket, Concretize, Discover, Pipeline, Program, Split, Verify, at_op
from fxbucket.passes.captured import value_of
from fxbucket.passes.concretize import is_fully_concrete
from fxbucket.passes.errors import AxisError, PreconditionError, SizeError
from fxbucket.passes.program import Finding
from fxbucket.passes.symbolic import fake_mode_of, symbols_in

FULL = {"x.shape[0]": 16, "k": 7, "n": 3}


@pytest.fixture(scope="module")
def split(captured: Program) -> Program:
    return Pipeline([Split(at_op("aten::sigmoid")), Discover(), Verify()])(captured)


def everything_in(program: Program) -> list[Any]:
    """Return metadata, arguments and outputs of every node of every piece."""
    return [
        part
        for piece in program.pieces
        for node in piece.module.graph.nodes
        for part in (*node.meta.values(), node.args, node.kwargs)
    ]


def test_no_symbol_is_left_anywhere(split: Program):
    program = Concretize(FULL)(split)
    assert symbols_in(everything_in(program)) == frozenset()
    assert program.open_symbols == ()
    assert is_fully_concrete(program)
    assert not is_fully_concrete(split)


def test_sizes_that_became_numbers_no_longer_cross_a_cut(split: Program):
    program = Concretize(FULL)(split)
    for piece in program.pieces:
        placeholders = [node for node in piece.module.graph.nodes if node.op == "placeholder"]
        assert len(placeholders) == len(piece.inputs)
        assert all(isinstance(value_of(node), torch.Tensor) for node in placeholders)
    assert program.outputs[3] == 16 * 7 + 3
    assert type(program.outputs[3]) is int


def test_the_program_says_what_it_was_made_for(split: Program):
    program = Concretize(FULL)(split)
    assert program.bucket == Bucket.of(FULL)
    assert {str(program.capture.axis(name).symbol): size for name, size in FULL.items()} == {
        str(symbol): size for symbol, size in program.binding.items()
    }
    assert str(program).startswith("program for x.shape[0]=16, k=7, n=3")


def test_a_bucket_and_a_mapping_and_an_expression_mean_the_same(split: Program):
    by_expression = {"x.shape[0]": 16, "y.shape[1]": 7, "n": 3}
    assert Concretize(FULL)(split) == Concretize(Bucket.of(FULL))(split) == Concretize(by_expression)(split)


def test_a_concrete_program_computes_what_the_model_does(split: Program, block: Any, run: Callable[..., Any]):
    x, y = torch.randn(16, 4), torch.randn(3, 7)
    found, expected = run(Concretize(FULL)(split), block, x=x, y=y, n=3), block(x, y, 3)
    assert found[3] == expected[3]
    for mine, wanted in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(mine, wanted)


@given(st.integers(1, 30), st.integers(2, 30), st.integers(-9, 9))
def test_written_metadata_is_what_propagation_derives(split: Program, half: int, columns: int, n: int):
    sizes = {"x.shape[0]": 2 * half, "k": columns, "n": n}
    program = Pipeline([Concretize(sizes), Verify()])(split)
    shapes = [tuple(value_of(node).shape) for node in program.pieces[-1].module.graph.nodes if node.op == "placeholder"]
    assert (3, columns) in shapes


@settings(max_examples=settings().max_examples // 3)
@given(st.permutations(range(3)), st.integers(2, 9), st.integers(2, 9), st.booleans(), st.booleans())
def test_inputs_keep_strides_sharing_and_gradients(order: list[int], rows: int, columns: int, grad: bool, offset: bool):
    """The captured call gives a permuted view of a larger tensor, twice; a bucket's inputs are laid out alike."""
    torch.compiler.reset()

    def views(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.zeros(rows + offset, columns, 5)[int(offset) :].permute(order)
        return base.detach().requires_grad_(grad), base

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y

    where = {"x": order.index(0), "y": order.index(1)}
    axes = {
        "b": [f"x.shape[{where['x']}]", f"y.shape[{where['x']}]"],
        "t": [f"x.shape[{where['y']}]", f"y.shape[{where['y']}]"],
    }
    program = Pipeline([Split(), Discover()])(fxbucket.capture(model, *views(3, 4), axes=axes))
    concrete = Pipeline([Concretize({"b": rows, "t": columns}, remaining="keep"), Verify()])(program)
    (piece,) = concrete.pieces
    given_values = [value_of(node) for node in piece.module.graph.nodes if node.op == "placeholder"]
    mine = [value for value in given_values if isinstance(value, torch.Tensor)]
    expected = views(rows, columns)
    assert [tensor.shape for tensor in mine] == [tensor.shape for tensor in expected]
    assert [tensor.stride() for tensor in mine] == [tensor.stride() for tensor in expected]
    assert [tensor.requires_grad for tensor in mine] == [grad, False]
    assert mine[0].untyped_storage() == mine[1].untyped_storage()


def test_parameters_stay_parameters(split: Program):
    before = {node.name for node in split.pieces[0].module.graph.nodes if isinstance(value_of(node), torch.nn.Parameter)}
    after = Concretize(FULL)(split).pieces[0]
    assert before
    assert {node.name for node in after.module.graph.nodes if isinstance(value_of(node), torch.nn.Parameter)} == before


def test_an_axis_without_a_size_is_an_error_that_names_it_and_the_mend(split: Program):
    with pytest.raises(SizeError, match=r"axis 'k', 'n' has no size.*remaining='keep'"):
        Concretize({"x.shape[0]": 16})(split)


def test_an_axis_without_a_size_may_be_kept_symbolic(split: Program, block: Any, run: Callable[..., Any]):
    program = Pipeline([Concretize({"x.shape[0]": 16}, remaining="keep"), Verify()])(split)
    rows, k, n = (program.capture.axis(name).symbol for name in ("x.shape[0]", "k", "n"))
    assert symbols_in(everything_in(program)) == {k, n}
    assert set(program.open_symbols) == {k, n}
    assert rows in program.binding
    concretized = program.trail[-2]
    assert concretized.findings == (Finding("k", "kept symbolic"), Finding("n", "kept symbolic"))
    x, y = torch.randn(16, 4), torch.randn(3, 9)
    assert run(program, block, x=x, y=y, n=4)[3] == block(x, y, 4)[3]


def test_what_is_kept_symbolic_is_tried_at_the_given_hints(split: Program):
    k = split.capture.axis("k").symbol
    program = Concretize({"x.shape[0]": 16, "n": 3}, remaining="keep", hints={k: 123})(split)  # type: ignore[dict-item]
    mode = fake_mode_of(value_of(node) for piece in program.pieces for node in piece.module.graph.nodes)
    assert mode is not None
    sizes = [
        size
        for piece in program.pieces
        for node in piece.module.graph.nodes
        if isinstance(value_of(node), torch.Tensor)
        for size in value_of(node).shape
        if isinstance(size, torch.SymInt)
    ]
    assert {size.node.hint for size in sizes if str(size) == str(k)} == {123}


@pytest.mark.parametrize(
    ("sizes", "kind", "said"),
    [
        ({**FULL, "x.shape[0]": 7}, SizeError, r"breaks a guard: the capture needs .*x.shape\[0\] % 2"),
        ({**FULL, "k": 1}, SizeError, "size 1 of axis 'k' lies outside 2..∞"),
        ({**FULL, "kk": 3}, AxisError, "axis 'kk' is not an axis of this capture.*'k'"),
    ],
)
def test_a_size_for_which_the_capture_is_not_valid_is_refused(
    split: Program, sizes: dict[str, int], kind: type[Exception], said: str
):
    with pytest.raises(kind, match=said):
        Concretize(sizes)(split)


def test_a_program_is_split_first_and_made_concrete_once(captured: Program, split: Program):
    with pytest.raises(PreconditionError, match="run Split first"):
        Concretize(FULL)(captured)
    with pytest.raises(PreconditionError, match=r"concrete for x.shape\[0\]=16, k=7, n=3 already"):
        Concretize(FULL)(Concretize(FULL)(split))


def test_concretize_is_pure_and_repeatable(split: Program):
    before, symbols = str(split), symbols_in(everything_in(split))
    first, second = Concretize(FULL)(split), Concretize(FULL)(split)
    assert first == second
    assert str(split) == before
    assert symbols_in(everything_in(split)) == symbols
    assert Concretize({**FULL, "k": 8})(split) != first


def test_two_buckets_share_no_metadata(split: Program):
    one, other = (Concretize({**FULL, "k": size})(split) for size in (7, 8))
    tensors = [
        {id(value_of(node)) for piece in program.pieces for node in piece.module.graph.nodes if value_of(node) is not None}
        for program in (one, other)
    ]
    assert tensors[0].isdisjoint(tensors[1])


def size_arithmetic(x: torch.Tensor) -> tuple[Any, ...]:
    b = x.shape[0]
    padded = torch.nn.functional.pad(x, (0, 0, 0, (8 - b % 8) % 8))
    return x[: b // 2], x[: -(-b // 2)], padded, x.new_zeros(max(b, 7), min(b, 7)), b**2, b / 4, b % 5, round(b / 3)


@pytest.mark.parametrize("rows", [9, 14, 100, 1001])
def test_sizes_in_arguments_are_exact(rows: int, run: Callable[..., Any]):
    program = Pipeline([Split(), Discover()])(fxbucket.capture(size_arithmetic, torch.randn(13, 2), dynamic=["x.shape[0]"]))
    x = torch.randn(rows, 2)
    found = run(Pipeline([Concretize({"x.shape[0]": rows}), Verify()])(program), x=x)
    expected = size_arithmetic(x)
    assert found[4:] == expected[4:]
    assert [tensor.shape for tensor in found[:4]] == [tensor.shape for tensor in expected[:4]]


def test_a_piece_with_nothing_left_to_do_is_gone():
    def model(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = torch.sigmoid(x)
        return y, x.shape[0] * 3 + 1

    program = Split(at_op("aten::sigmoid"))(fxbucket.capture(model, torch.randn(4), dynamic=["x.shape[0]"]))
    concrete = Concretize({"x.shape[0]": 6})(program)
    assert len(concrete.pieces) < len(program.pieces)
    assert [piece.index for piece in concrete.pieces] == list(range(len(concrete.pieces)))
    assert concrete.outputs[1] == 19
