"""The command line: what it prints, what it leaves behind, and with which code it ends."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import fxbucket
from fxbucket import cli, demo, doctor
from fxbucket.demo import Plan

QUICK = ["demo", "--compiler", "eager", "--rounds", "1", "--size", "8", "--size", "24"]

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot")


class Output(NamedTuple):
    logits: torch.Tensor


class SmallModel(nn.Module):
    """Stands for the demo's Llama: takes ``input_ids``, holds one attention, gives ``logits``."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.noise = noise
        self.embedding = nn.Embedding(demo.VOCABULARY, 16)

    def forward(self, input_ids: torch.Tensor) -> Output:
        x = self.embedding(input_ids)
        mixed = F.scaled_dot_product_attention(x, x, x)
        return Output(mixed * 2 + torch.rand(16) * self.noise)


class ReadsTheSize(SmallModel):
    """Is captured once for even and once for odd sizes."""

    def forward(self, input_ids: torch.Tensor) -> Output:
        return super().forward(input_ids) if input_ids.shape[1] % 2 == 0 else super().forward(input_ids + 0)


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "llama", SmallModel)


def exit_code_of_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the program as a shell would."""
    monkeypatch.setattr(sys, "argv", ["fxbucket", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_version():
    done = CliRunner().invoke(cli.app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"fxbucket {fxbucket.__version__}\n")


@pytest.mark.parametrize("arguments", [["demo", "--size", "1"], ["demo", "--rounds", "0"], ["nonsense"], []])
def test_wrong_usage_ends_with_2(arguments: list[str]):
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--size", "8", "--size", "8"], "listed more than once"), (["--compiler", "inductr"], "inductor")],
)
def test_a_wrong_option_ends_with_2_and_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert exit_code_of_main(monkeypatch, "demo", *arguments) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_demo_of_llama_keeps_its_promises(tmp_path: Path):
    pytest.importorskip("transformers")
    done = CliRunner().invoke(cli.app, [*QUICK, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for text in ("tokens=8", "tokens=24", "dynamic", "captured graphs: 1", "explain.txt"):
        assert text in done.stdout
    pieces = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "pieces").iterdir()}
    assert sorted(pieces) == sorted(f"piece_{number}_{label}.txt" for number in range(5) for label in ("symbolic", "24"))
    assert "f32[1, tokens, 64]" in pieces["piece_0_symbolic.txt"]
    assert "f32[1, 24, 64]" in pieces["piece_0_24.txt"]
    assert not [name for name, text in pieces.items() if name.endswith("_24.txt") and re.search(r"\btokens\b", text)]
    explanation = (tmp_path / "explain.txt").read_text(encoding="utf-8")
    assert "boundary op torch.nn.functional.scaled_dot_product_attention" in explanation
    assert "def dispatch(" in explanation
    assert "def bucket(" in explanation


@needs_dot
@pytest.mark.usefixtures("small_model")
def test_demo_draws(tmp_path: Path):
    done = CliRunner().invoke(cli.app, [*QUICK, "--out", str(tmp_path / "made" / "here")])
    assert done.exit_code == 0, done.output
    pictures = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "made" / "here").glob("*.svg")}
    assert pictures.keys() == {"split.svg", "concrete_24.svg"}
    assert "tokens" in pictures["split.svg"]


@pytest.mark.usefixtures("small_model")
def test_demo_without_dot_says_what_it_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(cli.app, [*QUICK, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "skipped the pictures split.svg and concrete_24.svg" in said
    assert "install" in said
    assert (tmp_path / "explain.txt").exists()
    assert not list(tmp_path.glob("*.svg"))


def test_demo_that_differs_from_eager_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "llama", lambda: SmallModel(noise=0.1))
    done = CliRunner().invoke(cli.app, [*QUICK, "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "8 tokens: the logits differ from eager by" in done.stderr


def test_demo_that_captures_twice_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "llama", ReadsTheSize)
    done = CliRunner().invoke(cli.app, [*QUICK, "--size", "7", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "captured 2 times, not once" in done.stderr


def test_demo_without_transformers_ends_with_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert exit_code_of_main(monkeypatch, "demo") == 3
    assert "pip install transformers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "others"), [((16, 64, 128), (40, 96, 192)), ((64, 16), (40, 96)), ((2, 3), (4,)), ((2,), (3,))]
)
def test_sizes_that_are_not_pinned(sizes: tuple[int, ...], others: tuple[int, ...]):
    assert Plan(sizes=sizes).others == others


def test_doctor_names_what_it_found():
    found = {check.name: check for check in doctor.examine()}
    assert found["torch"].found.startswith(torch.__version__)
    assert found["compilers"].state == "ok"
    assert "inductor" in found["compilers"].found


def test_doctor_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    done = CliRunner().invoke(cli.app, ["doctor"])
    assert done.exit_code == 3
    mends = {check.name: check.mend for check in doctor.examine() if check.state != "ok"}
    assert "upgrade torch" in mends["torch"]
    assert "apt-get install g++" in mends["C++ compiler"]
    assert "apt-get install graphviz" in mends["Graphviz's dot"]


def test_doctor_without_dot_alone_is_content(monkeypatch: pytest.MonkeyPatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "dot" else which(name) or "/usr/bin/true")
    monkeypatch.setattr(doctor, "_python_headers", lambda: doctor.Check("Python's headers", "ok", ""))
    done = CliRunner().invoke(cli.app, ["doctor"])
    assert done.exit_code == 0
    assert "missing" in done.stdout
