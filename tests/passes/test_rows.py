"""RowSafety: what it says holds for random programs, whatever the padding holds; its options, its findings, its errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import hypothesis
import pytest
import sympy
import torch
from hypothesis import given, note
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Pipeline, Program, RowSafety, Split, at_op
from fxbucket.passes.captured import python_spelling
from fxbucket.passes.errors import AxisError, FxbucketError, OptionError
from fxbucket.passes.row_facts import grows
from fxbucket.passes.rows import RowProof, prove_rows
from tests.row_programs import DYNAMIC, SIZES, PaddedProgram, arguments, difference, draw_program, fits, padded, run

Sizes = Mapping[str, int]
FILLS = (0.0, math.nan, math.inf, -1e30, None)
"""What padding may hold; ``None`` stands for random numbers."""


def capture(program: PaddedProgram) -> Program | None:
    """Capture a program with both axes; ``None`` where it fixes one, or is no single graph."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fxbucket.capture(program.function(), *arguments(SIZES, 1).values(), axes=DYNAMIC, dynamic=list(DYNAMIC))
        except FxbucketError:
            return None


def symbols_of(program: Program, axes: str) -> set[sympy.Symbol]:
    return {symbol for axis in axes for symbol in program.capture.axis(axis).symbols}


def what_differs(program: Program, call: Sizes, bucket: Sizes, fills: tuple[float | None, ...]) -> str:
    """Run a graph on real and on padded arguments, and return how outputs and effects differ on the real rows."""
    real = arguments(call, 3)
    expected = run(program, real)
    for number, fill in enumerate(fills):
        fresh, larger = arguments(call, 3), arguments(bucket, 3)
        given = {name: padded(fresh[name], larger[name].shape, fill, number) for name in fresh}
        try:
            got = run(program, given)
        except RuntimeError as error:
            return f"fill {fill}: {error}"
        found = difference((expected, real), (got, given))
        if found:
            return f"fill {fill}: {found}"
    return ""


SIZE = st.integers(3, 9)


@given(data=st.data())
@hypothesis.settings(max_examples=40, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_what_is_proved_holds_whatever_the_padding_holds(data: st.DataObject):
    drawn = draw_program(lambda options: data.draw(st.sampled_from(list(options))), data.draw(st.integers(1, 6)))
    program = capture(drawn)
    hypothesis.assume(program is not None)
    assert program is not None
    call = {"a": data.draw(SIZE), "b": data.draw(SIZE)}
    bucket = {axis: size + data.draw(st.integers(0, 5)) for axis, size in call.items()}
    axes = "".join(axis for axis in call if call[axis] != bucket[axis])
    hypothesis.assume(axes and fits(program, call) and fits(program, bucket))
    fill = data.draw(st.sampled_from([None, None, 0.0, -math.inf, 1.0]))
    places = [held.index for held in program.capture.placeholders if held.source in ("L['x']", "L['y']")]
    known = {} if fill is None else dict.fromkeys(places, fill)
    proof = prove_rows(program, symbols_of(program, axes), fills=known)
    note(f"{drawn.source}\ncall {call}, bucket {bucket}, fill {fill}\n{proof}")
    try:
        found = what_differs(program, call, bucket, FILLS if fill is None else (fill,))
    except (RuntimeError, IndexError):
        hypothesis.reject()  # the call alone raises at this size
    # So whatever differs was refused.
    assert not (proof.is_safe and found), found


def test_the_check_of_the_property_sees_padding_that_leaks():
    """The same comparison on programs that mix rows: it must find each of them."""
    for body in ("x.sum(0)", "x.flip(0)", "torch.cat([x, x])", "x[-1]", "x / x.shape[0]", "x.softmax(0)", "x[i % 2 - 1]"):
        program = capture(PaddedProgram(f"def program(x, y, w, z, w20, i):\n    return {body}, y * 1, i * 1\n"))
        assert program is not None
        assert what_differs(program, {"a": 4, "b": 5}, {"a": 6, "b": 5}, FILLS), body
        assert not prove_rows(program, symbols_of(program, "a")).is_safe, body
    program = capture(
        PaddedProgram("def program(x, y, w, z, w20, i):\n    w20[: x.shape[0]].add_(1)\n    return x * 1, y, i * 1\n")
    )
    assert program is not None
    assert what_differs(program, {"a": 4, "b": 5}, {"a": 6, "b": 5}, FILLS)


class Attention(torch.nn.Module):
    """Rows, two of whose ops mix them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = self.inner(x)[None, None].chunk(3, -1)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)[0, 0]
        return mixed, torch.nn.functional.cross_entropy(mixed, labels)


@pytest.fixture(scope="module")
def attention() -> Program:
    torch.compiler.reset()
    x, labels = torch.randn(6, 8), torch.randint(0, 8, (6,))
    return fxbucket.capture(Attention(), x, labels, axes={"tokens": ["x.shape[0]", "labels.shape[0]"]}, dynamic=["tokens"])


def tokens(program: Program) -> set[sympy.Symbol]:
    return set(program.capture.axis("tokens").symbols)


SDPA = "torch.nn.functional.scaled_dot_product_attention"


def test_a_leak_names_node_op_line_and_reason(attention: Program):
    (leak,) = prove_rows(attention, tokens(attention)).leaks
    assert leak.op.startswith("aten::_scaled_dot_product")
    assert leak.node in {node.name for node in attention.capture.module.graph.nodes}
    assert leak.line.startswith("test_rows.py:")
    assert ", in forward: mixed = torch.nn.functional.scaled_dot_product_attention(" in leak.line
    assert "it sums over the keys along dim 2 (tokens), padded rows too" in leak.reason
    assert leak.reason in str(leak)


@pytest.mark.parametrize(
    "spelling", [SDPA, "aten::scaled_dot_product_attention", torch.nn.functional.scaled_dot_product_attention]
)
def test_an_op_that_the_user_answers_for_is_believed_with_all_that_it_lowers_to(attention: Program, spelling: Any):
    proof = prove_rows(attention, tokens(attention), row_safe_ops=[spelling])
    assert [leak.op for leak in proof.leaks] == ["aten::nll_loss_forward"]
    labels = next(held.index for held in attention.capture.placeholders if held.source == "L['labels']")
    assert prove_rows(attention, tokens(attention), row_safe_ops=[spelling], fills={labels: -100}).is_safe


def test_an_op_may_be_named_as_what_it_lowers_to(attention: Program):
    (leak,) = prove_rows(attention, tokens(attention)).leaks
    proof = prove_rows(attention, tokens(attention), row_safe_ops=[leak.op, "aten::nll_loss_forward"])
    assert proof.is_safe


@torch.library.custom_op("rowtest::mix", mutates_args=())
def mix(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


@mix.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("rowtest::fill", mutates_args=("out",))
def fill(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x)


def test_an_op_of_another_library_is_refused_until_it_is_answered_for():
    torch.compiler.reset()
    program = fxbucket.capture(lambda x: torch.ops.rowtest.mix(x + 1) * 2, torch.randn(4, 3), dynamic=["x.shape[0]"])
    symbols = program.capture.axis("x.shape[0]").symbols
    (leak,) = prove_rows(program, symbols).leaks
    assert leak.op == "rowtest::mix"
    assert 'row_safe_ops=["rowtest::mix"]' in leak.reason
    for target in ("rowtest::mix", "rowtest::mix.default", "torch.ops.rowtest.mix", torch.ops.rowtest.mix, mix):
        assert prove_rows(program, symbols, row_safe_ops=[target]).is_safe, target


def test_an_op_that_writes_is_believed_only_where_its_target_is_padded_too():
    def model(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        rows = torch.empty_like(x)
        torch.ops.rowtest.fill(x, rows)
        torch.ops.rowtest.fill(x, out[: x.shape[0]])
        return rows

    torch.compiler.reset()
    program = fxbucket.capture(model, torch.randn(4, 3), torch.randn(9, 3), dynamic=["x.shape[0]"])
    symbols = program.capture.axis("x.shape[0]").symbols
    assert len(prove_rows(program, symbols).leaks) == 2
    (leak,) = prove_rows(program, symbols, row_safe_ops=["rowtest::fill"]).leaks
    assert "and so to other rows of it" in leak.reason


def test_an_op_that_is_believed_hands_on_what_was_mixed_before_it():
    torch.compiler.reset()
    program = fxbucket.capture(lambda x: torch.ops.rowtest.mix(x.flip(0)), torch.randn(4, 3), dynamic=["x.shape[0]"])
    (leak,) = prove_rows(program, program.capture.axis("x.shape[0]").symbols, row_safe_ops=["rowtest::mix"]).leaks
    assert leak.op == "aten::flip"


def test_arguments_that_share_memory_are_not_written_through_padding():
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    torch.compiler.reset()
    x = torch.randn(4, 3)
    program = fxbucket.capture(model, x, x.view(-1), dynamic=["x.shape[0]"])
    (leak,) = prove_rows(program, program.capture.axis("x.shape[0]").symbols).leaks
    assert "memory that two arguments share" in leak.reason


def test_what_cannot_be_lowered_is_refused():
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    torch.compiler.reset()
    program = fxbucket.capture(model, torch.randn(4, 3), dynamic=["x.shape[0]"])
    (leak,) = prove_rows(program, program.capture.axis("x.shape[0]").symbols).leaks
    assert "its ATen ops are not known" in leak.reason


def test_the_pass_tells_in_the_trail(attention: Program):
    step = RowSafety(("tokens",))(attention).trail[-1]
    (finding,) = step.findings
    assert "it sums over the keys" in finding.text
    believed = RowSafety(("labels.shape[0]",), (SDPA,), {"labels": -100})(attention)
    assert [finding.text for finding in believed.trail[-1].findings] == ["padding along labels.shape[0] is harmless"]


def test_the_pass_changes_nothing_and_says_the_same_again(attention: Program):
    before = str(attention)
    first, second = (RowSafety(("tokens",))(attention) for _ in range(2))
    assert first == second == attention
    assert first.trail[-1].findings == second.trail[-1].findings
    assert str(attention) == before
    split = Pipeline([Split(at_op(SDPA)), RowSafety(("tokens",))])(attention)
    assert split.trail[-1].findings == first.trail[-1].findings


def test_a_proof_prints_what_it_found(attention: Program):
    assert str(RowProof(frozenset())) == "padding is harmless"
    assert str(prove_rows(attention, tokens(attention))).startswith("padding could reach real rows:\n  ")


def test_what_the_user_names_wrong_is_told(attention: Program):
    with pytest.raises(AxisError, match=r"'tokenz' is not an axis of this capture.*'tokens'"):
        RowSafety(("tokenz",))(attention)
    with pytest.raises(AxisError, match="s999 is no symbol of this capture"):
        prove_rows(attention, [sympy.Symbol("s999")])
    with pytest.raises(
        OptionError, match=r"row_safe_ops: 'aten::scaled_dot_product_atention'.*scaled_dot_product_attention"
    ):
        prove_rows(attention, tokens(attention), row_safe_ops=["aten::scaled_dot_product_atention"])
    with pytest.raises(OptionError, match="row_safe_ops: 3 is no op"):
        prove_rows(attention, tokens(attention), row_safe_ops=[3])
    with pytest.raises(OptionError, match=r"fills: 'lables' is no argument of the graph.*'labels'"):
        RowSafety(("tokens",), fills={"lables": 0})(attention)


@pytest.mark.parametrize(("source", "name"), [("L['x']", "x"), ("L['batch']['ids']", "batch['ids']"), ("G['x']", "G['x']")])
def test_arguments_are_named_as_in_python(source: str, name: str):
    assert python_spelling(source) == name


def test_sizes_that_may_fall_are_told_from_those_that_grow():
    s, t = (sympy.Symbol(name, integer=True, positive=True) for name in "st")
    padded_symbols = frozenset({s})
    half = sympy.floor(s / 2)
    for size in (3, s, 2 * s, s + t, s - t, s * t, half, sympy.Max(s - 3, 0), (s - 1) * t, s**2, t - 7, half * (s + 1)):
        assert grows(size, padded_symbols), size
    for size in (t - s, -s, 10 - s, sympy.Mod(s, 4), s - half, t / s, -half, s * (s - 5)):
        assert not grows(size, padded_symbols), size
    assert not grows(s - t, frozenset({s, t}))
