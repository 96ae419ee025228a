from __future__ import annotations

import pytest
import torch

import fxbucket
from fxbucket.progress import Progress, progress_bar, report, watched

STEP = Progress("rows=4", "piece_0", 1, 4)


def test_a_report_that_nobody_watches_goes_nowhere():
    report(STEP)


def test_a_watcher_is_told_while_it_watches_and_the_inner_one_alone():
    outer: list[Progress] = []
    inner: list[Progress] = []
    with watched(outer.append):
        report(STEP)
        with watched(inner.append):
            report(STEP)
        report(STEP)
    report(STEP)
    assert (len(outer), len(inner)) == (2, 1)


def test_a_watcher_is_gone_after_an_error():
    told: list[Progress] = []

    def fails() -> None:
        with watched(told.append):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fails()
    report(STEP)
    assert told == []


def test_every_artifact_of_a_batch_is_reported_once_before_it_is_compiled():
    compiled = fxbucket.compile(
        lambda x: torch.sigmoid(x + 1) * 2, sizes={"x.shape[0]": [4, 8]}, splitting_ops=["aten::sigmoid"], compiler="eager"
    )
    told: list[Progress] = []
    with watched(told.append):
        compiled(torch.randn(4))
    assert [(step.bucket, step.piece) for step in told] == [
        ("x.shape[0]=4", "piece_0"), ("x.shape[0]=4", "piece_2"), ("x.shape[0]=8", "piece_0"), ("x.shape[0]=8", "piece_2"),
    ]  # fmt: skip
    assert [(step.done, step.total) for step in told] == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_where_there_is_no_terminal_progress_is_plain_lines_on_stderr(capsys: pytest.CaptureFixture[str]):
    with progress_bar():
        report(STEP)
    shown = capsys.readouterr()
    assert shown.err == "compiling rows=4 piece_0 (2/4)\n"
    assert shown.out == ""


def test_warmup_shows_what_it_compiles(capsys: pytest.CaptureFixture[str]):
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [4, 8]}, compiler="eager")
    compiled.warmup(torch.randn(4))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "compiling x.shape[0]=4 piece_0 (1/2)",
        "compiling x.shape[0]=8 piece_0 (2/2)",
        "compiling dynamic piece_0 (3/3)",
    ]
