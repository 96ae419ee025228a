from __future__ import annotations

import re
import time
from dataclasses import replace

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
        report(replace(STEP, done=2, hits=2))
        report(replace(STEP, done=3, hits=2, bucket="x.shape[0]=4 [bold]"))
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        "compiling rows=4 piece_0 (2/4), 0 s, about 0 s left",
        "compiling rows=4 piece_0 (3/4), 0 s, 2 from the store",
        "compiling x.shape[0]=4 [bold] piece_0 (4/4), 0 s, about 0 s left, 2 from the store",
    ]
    assert shown.out == ""


def test_a_terminal_gets_a_bar_with_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar():
        report(replace(STEP, bucket="x.shape[0]=4 [bold]", done=3, hits=2))
        time.sleep(0.3)  # the bar is drawn ten times a second
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    for part in ("x.shape[0]=4 [bold] piece_0", "3/4", "2 from the store", "0:00:00", "left", "compiled"):
        assert part in shown


@pytest.mark.parametrize("hits", [0, 1])
def test_batches_are_counted_on_and_a_step_that_is_told_twice_is_one(capsys: pytest.CaptureFixture[str], hits: int):
    with progress_bar():
        for done in (0, 1, 1, 1):
            report(Progress("rows=4", "piece_0", done, 2, hits, batch=7))
        report(Progress("dynamic", "piece_0", 0, 1, 0, batch=9))
    lines = capsys.readouterr().err.splitlines()
    assert [re.findall(r"\d/\d", line)[0] for line in lines] == ["1/2", "2/2", "2/2", "2/2", "3/3"]
    assert ["from the store" in line for line in lines] == [bool(hits)] * 5


def test_warmup_shows_what_it_compiles(capsys: pytest.CaptureFixture[str]):
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [4, 8]}, compiler="eager")
    compiled.warmup(torch.randn(4))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "compiling x.shape[0]=4 piece_0 (1/2)",
        "compiling x.shape[0]=8 piece_0 (2/2)",
        "compiling dynamic piece_0 (3/3)",
    ]
