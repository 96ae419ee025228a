"""What is told while a model is captured and compiled: to Python's logging, and to torch's trace."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket import dispatch


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * 2).sum(0)


def compiled_with(**options: Any) -> Any:
    given = {"axes": {"rows": "x.shape[0]"}, "sizes": {"rows": [4, 1]}, "splitting_ops": ["aten::sigmoid"], **options}
    return fxbucket.compile(model, compiler="eager", **given)


def ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "fxbucket"


def told(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[tuple[str, str]]:
    """Return what was logged, and under which name."""
    return [(record.name, record.getMessage()) for record in caplog.records if record.levelno >= level and ours(record)]


def test_every_step_is_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "fxbucket"):
        compiled_with()(torch.ones(6, 3))
    assert [line for line in told(caplog) if "ready after" not in line[1]] == [
        ("fxbucket.capture", "graph 0 captured: 3 nodes, rows in 2..∞"),
        ("fxbucket.split", "graph 0: 3 pieces, 1 of them boundaries"),
        ("fxbucket.admit", "graph 0: bucket rows=4 admitted"),
        (
            "fxbucket.admit",
            "graph 0: bucket rows=1 refused: size 1 of axis 'rows' lies outside 2..∞, the range for which this capture is "
            "valid; choose a size in it.",
        ),
        ("fxbucket.compile", "graph 0: compiling rows=4, 3 pieces"),
        ("fxbucket.compile", "graph 0: compiling dynamic, 3 pieces"),
    ]
    ready = [text.partition(" ready after ")[0] for _, text in told(caplog) if "ready after" in text]
    assert ready == ["graph 0: rows=4", "graph 0: dynamic"]


def test_details_are_for_debugging(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "fxbucket"):
        compiled_with()(torch.ones(6, 3))
    lines = told(caplog)
    assert ("fxbucket.capture", "a capture begins; axes: rows") in lines
    assert ("fxbucket.split", "graph 0: piece_1, 1 nodes: boundary op aten::sigmoid") in lines
    assert ("fxbucket.compile", "compiling rows=4 piece_0, 1 of 2") in lines
    assert ("fxbucket.dispatch", "graph 0: no bucket for rows=6; dynamic") in lines
    assert any(text.startswith("graph 0: rows=4 piece_0 compiled, 0.") for _, text in lines)
    assert any(text.startswith("graph 0: Split(at_op('aten::sigmoid')) took 0.") for _, text in lines)


def test_a_hit_logs_nothing(caplog: pytest.LogCaptureFixture):
    compiled = compiled_with()
    compiled(torch.ones(4, 3))
    with caplog.at_level(logging.DEBUG, "fxbucket"):
        compiled(torch.ones(4, 3))
    assert told(caplog) == []
    assert compiled.explain().calls()["rows=4"] == 2


def test_calls_that_run_uncompiled_unasked_are_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "MAX_DYNAMIC", 0)
    compiled = compiled_with()
    for rows in (6, 7):
        with caplog.at_level(logging.DEBUG, "fxbucket"):
            compiled(torch.ones(rows, 3))
    said = "graph 0: a call runs uncompiled: none of 0 symbolic compilations serves its sizes"
    assert told(caplog, logging.WARNING) == [("fxbucket.dispatch", said)]
    assert told(caplog).count(("fxbucket.dispatch", said)) == 2


def test_a_library_configures_no_handler_but_one_that_does_nothing():
    assert [type(handler) for handler in logging.getLogger("fxbucket").handlers] == [logging.NullHandler]
    assert logging.getLogger("fxbucket").level == logging.NOTSET


SCRIPT = """
import torch, fxbucket
from tests.fxbucket.test_journal import compiled_with
compiled = compiled_with(splitting_ops=["aten::sigmoid"])
compiled(torch.ones(6, 3))
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
"""


def artifacts_in(folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the record and the text of each artifact of fxbucket in torch's trace: a tab begins a line of a text."""
    (log,) = folder.glob("*.log")
    found: dict[str, tuple[dict[str, Any], str]] = {}
    name = ""
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("\t"):
            if name:
                record, text = found[name]
                found[name] = (record, f"{text}{line[1:]}\n")
            continue
        record = json.loads(line[line.index("{") :]) if "{" in line else {}
        name = record.get("artifact", {}).get("name", "")
        name = name if name.startswith("fxbucket_") else ""
        if name:
            found[name] = (record, "")
    return found


@pytest.mark.slow
def test_torch_trace_holds_artifacts_at_their_capture(tmp_path: Path):
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parent.parent.parent
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=environment, check=True)
    found = artifacts_in(tmp_path)
    assert list(found) == [
        "fxbucket_captured", "fxbucket_split", "fxbucket_program_rows=4", "fxbucket_explain", "fxbucket_program_dynamic",
    ]  # fmt: skip
    # The last was compiled by a call, when the capture was long over, and still stands at it.
    assert {(record["frame_id"], record["frame_compile_id"]) for record, _ in found.values()} == {(0, 0)}
    split = json.loads(found["fxbucket_split"][1])
    assert [piece["reason"] for piece in split["pieces"]][1] == "boundary op aten::sigmoid"
    assert [decision["admitted"] for decision in split["decisions"]] == [True, False]
    assert "f32[4, 3]" in found["fxbucket_program_rows=4"][1]
    assert "def bucket(" in found["fxbucket_program_rows=4"][1]
    explained = json.loads(found["fxbucket_explain"][1])
    assert [bucket["state"] for bucket in explained["buckets"]] == ["compiled", "refused"]
