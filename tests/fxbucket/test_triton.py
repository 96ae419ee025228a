"""Triton kernels in models: as ops of ``torch.library.triton_op``, and called as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

import fxbucket
from fxbucket.custom_ops import reasons_to_keep_here
from fxbucket.passes import Concretize, Discover, Pipeline, Program, Split, at_op
from fxbucket.passes.errors import CompileError, FxbucketWarning, GradientError, StoreError
from fxbucket.passes.form import form_of
from fxbucket.visualize import dot_text
from tests.fxbucket import triton_models
from tests.fxbucket.triton_models import DEVICE, EXPECTED

AXES = {"rows": ["x.shape[0]", "y.shape[0]"]}
gpu = pytest.mark.gpu


@pytest.fixture(autouse=True)
def kernels_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Dynamo capture kernels as it does on a GPU; without one it does not look for them."""
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)


def arguments(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, device=DEVICE), torch.randn(rows, device=DEVICE)


def compiled(model: Callable[..., Any], **options: Any) -> Any:
    return fxbucket.compile(model, **{"axes": AXES, "sizes": {"rows": [20, 40]}, "compiler": "eager", **options})


def check(call: Callable[..., Any], model: Callable[..., Any], rows: int) -> None:
    x, y = arguments(rows)
    expected = EXPECTED[model](x, y)
    torch.testing.assert_close(call(x, y), expected)


def split(model: Callable[..., Any], *cuts: Any, rows: int | None = None) -> Program:
    program = Pipeline([Split(*map(at_op, cuts)), Discover()])(fxbucket.capture(model, *arguments(20), axes=AXES))
    return program if rows is None else Concretize({"rows": rows})(program)


CUTS = [
    (), ("torch.cos",), ("triton.add_rows",), ("tests.fxbucket.triton_models.add_rows",), (triton_models.add_kernel,),
    ("triton_kernel_wrapper_mutation",),
]  # fmt: skip


@pytest.mark.parametrize("cuts", CUTS, ids=["no cut", "elsewhere", "printed name", "path", "kernel", "higher-order op"])
def test_a_kernel_that_is_called_as_it_is_gives_what_it_should_wherever_the_graph_is_cut(cuts: tuple[Any, ...]):
    call = compiled(triton_models.two_layers, splitting_ops=list(cuts))
    for rows in (20, 40, 30, 20):
        check(call, triton_models.two_layers, rows)
    assert call.explain().calls() == {"rows=20": 2, "rows=40": 1, "dynamic": 1}
    assert len(call.programs[0].pieces) == (1 if not cuts else 4 if cuts[0] == "torch.cos" else 5)


def test_a_kernel_s_call_reads_as_it_was_written():
    symbolic, concrete = split(triton_models.two_layers), split(triton_models.two_layers, rows=40)
    assert "= triton.add_rows[(floordiv, 1, 1)](x=sin, y=l_y_, out=out, n=s" in str(symbolic)
    assert "= triton.add_rows[(3, 1, 1)](x=sin, y=l_y_, out=out, n=40, block=16)" in str(concrete)
    assert "add_rows" in dot_text(concrete)


def test_equal_calls_are_equal_and_calls_of_another_kernel_are_not():
    def digests(model: Callable[..., Any]) -> list[str]:
        program = split(model, "torch.cos", rows=20)
        return [form_of(piece, program).digest for piece in program.pieces if piece.is_compiled]

    first, second = digests(triton_models.two_layers)
    assert first == second
    added, subtracted = digests(triton_models.two_kernels)
    assert added == first
    assert subtracted != added
    kernel_side_table.reset_table()  # as torch.compiler.reset() does, since torch 2.13
    assert digests(triton_models.two_layers)[0] != first, "the numbers of kernels that it may look up are others now"


def test_a_kernel_is_never_taken_for_one_that_had_its_number():
    call = compiled(triton_models.two_kernels, splitting_ops=["torch.cos"])
    check(call, triton_models.two_kernels, 20)
    torch.compiler.reset()
    check(compiled(triton_models.subtracted), triton_models.subtracted, 20)
    check(call, triton_models.two_kernels, 20)


def test_what_calls_a_kernel_stays_in_its_process(tmp_path: Path):
    program = split(triton_models.two_layers, rows=20)
    (reason, *_) = (text for text in form_of(program.pieces[0], program).local_reasons if "Triton" in text)
    assert reason == "calls the Triton kernel add_rows, which only this process knows"
    call = compiled(triton_models.two_layers)
    check(call, triton_models.two_layers, 20)
    with pytest.raises(StoreError, match="cannot be saved"):
        call.save(tmp_path / "model")


def test_a_kernel_s_write_to_an_argument_is_noticed():
    program = fxbucket.capture(triton_models.in_place, *arguments(20), axes=AXES)
    written = {program.capture.placeholders[position].name for position in program.capture.written}
    assert "l_x_" in written
    call = compiled(triton_models.in_place)
    for rows in (20, 40):
        x, y = arguments(rows)
        total = x + y
        torch.testing.assert_close(call(x, y), total.cos())
        torch.testing.assert_close(x, total)


def test_padding_asks_for_an_op_in_the_place_of_a_kernel():
    call = compiled(triton_models.two_layers, on_miss="pad")
    check(call, triton_models.two_layers, 20)
    with pytest.warns(FxbucketWarning, match="it is a Triton kernel; make it an op with torch.library.triton_op"):
        check(call, triton_models.two_layers, 30)
    assert call.explain().calls()["dynamic"] == 1


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.parametrize("cuts", [(), ("triton_tests::add",)], ids=["no cut", "cut"])
def test_an_op_made_of_a_kernel_is_one_node_that_can_be_cut_out_padded_or_compiled(cuts: tuple[str, ...], compiler: str):
    call = compiled(
        triton_models.with_op, splitting_ops=list(cuts), compiler=compiler, on_miss="pad", row_safe_ops=["triton_tests::add"]
    )
    for rows in (20, 40, 30):
        check(call, triton_models.with_op, rows)
    assert call.explain().calls() == {"rows=20": 1, "rows=40": 2}
    assert [piece.is_boundary for piece in call.programs[0].pieces] == ([False, True, False] if cuts else [False])


def test_an_op_made_of_a_kernel_that_is_compiled_into_a_piece_is_not_stored():
    capture = fxbucket.capture(triton_models.with_op, *arguments(20)).capture
    (reason,) = reasons_to_keep_here(capture.module, capture.ambient)
    assert reason.startswith("calls triton_tests::add, which is compiled into it")


def test_an_interpreted_kernel_cannot_be_compiled_and_the_error_says_where_to_cut():
    model = triton_models.with_interpreted_op
    with pytest.raises(CompileError, match=r"splitting_ops=\['triton_tests::interpreted'\] runs them as they are"):
        compiled(model, compiler="aot_eager")(*arguments(20))
    check(compiled(model, compiler="aot_eager", splitting_ops=["triton_tests::interpreted"]), model, 20)


def test_an_op_without_a_backward_is_an_error_where_gradients_are_recorded():
    call = compiled(triton_models.with_op, splitting_ops=["triton_tests::add"])
    x, y = arguments(20)
    with pytest.raises(GradientError, match="op triton_tests::add has no autograd formula"):
        call(x.requires_grad_(), y)


@gpu
def test_the_example_runs_on_a_gpu(tmp_path: Path):
    example = Path(__file__).resolve().parents[2] / "examples" / "triton_attention.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "50 tokens: equal to eager, served by tokens=64" in done.stdout


@gpu
@pytest.mark.parametrize("cudagraphs", ["off", "full"])
@pytest.mark.parametrize("cuts", [(), ("torch.cos",), ("triton.add_rows",), ("triton_tests::add",)])
def test_inductor_and_recordings_take_kernels(cuts: tuple[str, ...], cudagraphs: str):
    model = triton_models.with_op if cuts == ("triton_tests::add",) else triton_models.two_layers
    call = compiled(model, compiler="inductor", splitting_ops=list(cuts), cudagraphs=cudagraphs)
    with torch.no_grad():
        for rows in (20, 40, 30, 20, 40, 20, 20, 40):
            check(call, model, rows)
    states = {bucket.bucket: bucket.recording for bucket in call.explain().graphs[0].buckets}
    assert cudagraphs == "off" or states["rows=20"].startswith("recorded")


@gpu
@pytest.mark.parametrize("cudagraphs", ["off", "full"])
def test_a_kernel_s_write_reaches_the_caller_s_argument(cudagraphs: str):
    program = fxbucket.capture(triton_models.in_place, *arguments(20), axes=AXES)
    written = [program.capture.placeholders[position].name for position in program.capture.written]
    assert written == ["l_x_"]
    call = compiled(triton_models.in_place, compiler="inductor", cudagraphs=cudagraphs)
    with torch.no_grad():
        for rows in (20, 20, 40, 20, 20):
            x, y = arguments(rows)
            total = x + y
            torch.testing.assert_close(call(x, y), total.cos())
            torch.testing.assert_close(x, total)


@gpu
def test_a_compiled_op_made_of_a_kernel_is_not_stored_and_explain_says_why():
    call = compiled(triton_models.with_op, compiler="inductor")
    check(call, triton_models.with_op, 20)
    notes = [artifact.note for bucket in call.explain().graphs[0].buckets for artifact in bucket.artifacts]
    assert any("calls triton_tests::add, which is compiled into it" in note for note in notes)
