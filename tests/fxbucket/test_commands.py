"""``fxbucket render``, ``report`` and ``explain``, as a stranger would use them."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fxbucket import cli
from fxbucket.demo import Plan

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.sigmoid(self.up(x)))

def make():
    print("made")
    return Model(), (torch.randn(6, 8),)

def fails():
    raise ValueError("no weights")
"""
GIVEN = ["--axes", "tokens=x.shape[0]", "--sizes", "tokens=256,512", "--split", "aten::sigmoid"]
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "a model.py"
    path.write_text(SOURCE)
    return f"{path}:make"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def output_of(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def ends_with(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and the errors of the program, run as a shell would."""
    monkeypatch.setattr(sys, "argv", ["fxbucket", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().err


def test_the_last_step_is_printed(model: str):
    text = output_of("render", model, *GIVEN)
    assert text.startswith("program\n  axis tokens in 2..∞\n  bucket tokens=256: admitted\n")
    assert "piece_1 (boundary, runs as it is): boundary op aten::sigmoid\n" in text
    assert "made" not in text


@pytest.mark.parametrize("step", ["captured", "0"])
def test_any_step_is_printed(model: str, step: str):
    text = output_of("render", model, *GIVEN, "--step", step)
    assert "torch.sigmoid" in text
    assert "piece_" not in text


@pytest.mark.parametrize(
    ("choice", "shape"),
    [
        (["--step", "concretize"], "f32[256, 8]"),
        (["--step", "5"], "f32[256, 8]"),
        (["--bucket", "tokens=7"], "f32[7, 8]"),
        (["--bucket", "x.shape[0]=7", "--step", "verify"], "f32[7, 8]"),
        (["--bucket", "tokens=7", "--step", "split"], "f32[tokens, 8]"),
    ],
)
def test_a_bucket_is_printed(model: str, choice: list[str], shape: str):
    assert shape in output_of("render", model, *GIVEN, *choice)


def test_one_piece_is_printed(model: str):
    by_name = output_of("render", model, *GIVEN, "--piece", "piece_1")
    assert by_name == output_of("render", model, *GIVEN, "--piece", "1")
    assert by_name.startswith("piece_1 (boundary, runs as it is)")


def test_json_is_printed(model: str):
    data = json.loads(output_of("render", model, *GIVEN, "--format", "json"))
    assert [piece["kind"] for piece in data["pieces"]] == ["compiled", "boundary", "compiled"]
    piece = json.loads(output_of("render", model, *GIVEN, "--format", "json", "--piece", "1"))
    assert piece["reason"] == "boundary op aten::sigmoid"


def test_dot_is_printed_with_and_without_paths(model: str):
    text = output_of("render", model, *GIVEN, "--format", "dot", "--theme", "dark")
    assert text.startswith("digraph {")
    assert "cluster_piece_1" in text
    assert "file://" in text
    assert "file://" not in output_of("render", model, *GIVEN, "--format", "dot", "--no-source-links")


@needs_dot
def test_the_name_of_the_file_says_the_format(model: str, tmp_path: Path):
    for suffix in ("svg", "dot", "gv", "txt", "json"):
        assert output_of("render", model, *GIVEN, "--out", str(tmp_path / f"a.{suffix}")) == ""
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("}svg")
    assert (tmp_path / "a.gv").read_text() == (tmp_path / "a.dot").read_text()
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == output_of("render", model, *GIVEN)


@needs_dot
def test_full_and_folded_differ_where_layers_repeat(tmp_path: Path):
    (tmp_path / "deep.py").write_text(
        "import torch\ndef make():\n    def f(x):\n        for _ in range(20):\n            x = (x + 1).relu()\n"
        "        return x\n    return f, (torch.ones(4, 4),)\n"
    )
    place = f"{tmp_path / 'deep.py'}:make"
    full, folded = (output_of("render", place, "--format", "svg", how) for how in ("--full", "--folded"))
    assert len(folded) < len(full) / 3


@needs_dot
def test_a_difference_is_printed_and_drawn(model: str, tmp_path: Path):
    given = [*GIVEN, "--step", "concretize", "--against", "split"]
    assert "l_x_: shape (tokens, 8) → (256, 8)" in output_of("render", model, *given)
    assert output_of("render", model, *given, "--out", str(tmp_path / "difference.svg")) == ""
    assert "before: program" in (tmp_path / "difference.svg").read_text(encoding="utf-8")


def test_explain_compiles_calls_and_prints(model: str):
    text = output_of("explain", model, *GIVEN, "--compiler", "eager")
    assert "boundary op aten::sigmoid" in text
    assert "tokens=256" in text
    data = json.loads(output_of("explain", model, *GIVEN, "--compiler", "eager", "--format", "json"))
    buckets = {bucket["bucket"]: bucket["calls"] for bucket in data["graphs"][0]["buckets"]}
    assert buckets == {"tokens=256": 0, "tokens=512": 0, "dynamic": 1}


def test_combinations_and_sizes_that_are_seen(model: str):
    given = ["--axes", "b=x.shape[0]", "--sizes", "b=2", "--compiler", "eager", "--format", "json"]
    assert json.loads(output_of("explain", model, *given))["graphs"][0]["buckets"][0]["bucket"] == "b=2"
    seen = ["--axes", "b=x.shape[0]", "--sizes", "seen", "--compiler", "eager", "--format", "json"]
    assert json.loads(output_of("explain", model, *seen))["graphs"][0]["buckets"][0]["bucket"] == "b=6"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step", "splt"], "step 'splt' is not there; possible: 'split'"),
        (["--step", "9"], "or a number below 5"),
        (["--piece", "piece_9"], "--piece 'piece_9' is not there"),
        (["--piece", "0", "--step", "captured"], "this step has no pieces yet"),
        (["--bucket", "tokens=1"], "size 1 of axis 'tokens' lies outside 2..∞"),
        (["--bucket", "rows=4"], "axis 'rows' is not an axis of this capture"),
        (["--bucket", "4"], "name the axis"),
        (["--out", "picture.png"], "--out 'picture.png' does not say the format"),
        (["--sizes", "256"], "name the axis"),
        (["--axes", "tokens"], "write a short name"),
        (["--axes", "other=y.shape[0]"], "axis 'y.shape[0]' names no argument"),
        (["--split", "aten::sigmod"], "'aten::sigmod') matches no node"),
        (["--graph", "1"], "graph 1 is not there"),
        (["--format", "html"], "--format html writes a file; name it with --out page.html"),
        (["--piece", "0", "--out", "page.html"], "--piece with --format html is not possible"),
        (["--format", "json", "--against", "0"], "a difference is text or svg"),
        (["--format", "svg", "--against", "0"], "--against draws into a file"),
    ],
)
def test_what_is_wrong_is_told_on_one_line_and_ends_with_2(
    model: str,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    monkeypatch.chdir(tmp_path)
    code, errors = ends_with(monkeypatch, capsys, "render", model, *GIVEN, *arguments)
    assert code == 2
    lines = [line for line in errors.splitlines() if line != "made"]
    assert len(lines) == 1
    assert lines[0].startswith("fxbucket: ")
    assert said in lines[0]


def test_no_bucket_to_choose_is_told(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    code, errors = ends_with(monkeypatch, capsys, "render", model, "--step", "concretize")
    assert (code, "no bucket to make the program concrete for" in errors) == (2, True)


def whole_page(path: Path) -> str:
    """Return a page with the texts and drawings that are packed in it."""
    page = path.read_text(encoding="utf-8")
    packed = re.findall(r">\s*([A-Za-z0-9+/=]{400,})\s*<", page)
    assert packed
    return "\n".join([page, *(gzip.decompress(base64.b64decode(one)).decode() for one in packed)])


@needs_dot
def test_a_page_of_the_steps_is_written(model: str, tmp_path: Path):
    assert output_of("render", model, *GIVEN, "--bucket", "tokens=7", "--out", str(tmp_path / "page.html")) == ""
    page = whole_page(tmp_path / "page.html")
    assert "<!doctype html>" in page
    assert "f32[7, 8]" in page


@needs_dot
def test_a_report_is_written_with_calls_over_time(model: str, tmp_path: Path):
    out = tmp_path / "report.html"
    said = output_of("report", model, *GIVEN, "--compiler", "eager", "--calls", "3", "--out", str(out), "--no-source-links")
    assert said.startswith(f"{out}: ")
    page = whole_page(out)
    assert "boundary op aten::sigmoid" in page
    assert "a model.py:make" in page
    assert str(tmp_path) not in page


@pytest.mark.parametrize("command", ["render", "explain", "report"])
def test_a_factory_that_fails_ends_with_1(
    model: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    code, errors = ends_with(monkeypatch, capsys, command, model.replace(":make", ":fails"))
    assert (code, "fails() raised ValueError: no weights" in errors) == (1, True)


@pytest.mark.parametrize(
    "arguments", [["render"], ["render", "m:f", "--format", "png"], ["explain", "m:f", "--theme", "dark"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str]):
    assert run(*arguments).exit_code == 2


def test_a_file_that_cannot_be_written_ends_with_1(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    code, errors = ends_with(monkeypatch, capsys, "render", model, "--out", str(tmp_path / "nowhere" / "a.dot"))
    assert (code, "cannot be written" in errors) == (1, True)


def test_defaults_of_the_demo_are_those_of_its_plan():
    import inspect

    given = {name: parameter.default for name, parameter in inspect.signature(cli.demo).parameters.items()}
    assert {name: given[name] for name in ("compiler", "rounds", "threads", "tolerance")} == {
        "compiler": Plan.compiler,
        "rounds": Plan.rounds,
        "threads": Plan.threads,
        "tolerance": Plan.tolerance,
    }


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    script = "import sys; from fxbucket.cli import main; sys.argv[0] = 'fxbucket'; main()"
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", script, *arguments], env=given, capture_output=True, text=True, check=False)


def test_help_does_not_wait_for_torch():
    script = (
        "import sys; from typer.testing import CliRunner; from fxbucket import cli\n"
        "for command in ([], ['render'], ['explain']):\n"
        "    assert CliRunner().invoke(cli.app, [*command, '--help']).exit_code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


@pytest.mark.slow
def test_a_shell_gets_text_errors_and_codes(model: str):
    done = shell("render", model, *GIVEN, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "made\n")
    assert "axis tokens in 2..\\u221e" in done.stdout
    wrong = shell("render", "nowhere:make")
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "fxbucket: there is no module 'nowhere'; start in the folder that holds it, or give a path: "
        "path/to/file.py:factory.\n"
    )


@pytest.mark.parametrize(
    ("torch_source", "said"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "fxbucket: torch is not installed: pip"),
        ("__version__ = '2.5.0'", "2.5.0"),
    ],
)
def test_without_a_torch_that_will_do_each_command_ends_with_3(torch_source: str, said: str, tmp_path: Path):
    (tmp_path / "torch.py").write_text(torch_source)
    done = shell("doctor", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_public_names_stay_functions_whatever_is_imported_first():
    script = (
        "from fxbucket.backend import dynamo_backend; import fxbucket.capture; import fxbucket, torch\n"
        "assert callable(fxbucket.backend) and callable(fxbucket.capture) and callable(fxbucket.compile)\n"
        "assert fxbucket.passes.Split and fxbucket.visualize.dot_text\n"
        "from fxbucket import *\n"
        "assert {'Axis', 'Range', 'backend', 'compile'} <= set(globals()) and 'passes' in dir(fxbucket)\n"
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def test_an_unknown_public_name_is_an_attribute_error():
    import fxbucket

    with pytest.raises(AttributeError, match="module 'fxbucket' has no attribute 'compil'"):
        fxbucket.compil  # type: ignore[attr-defined]  # noqa: B018
