"""Texts of every step in a folder, on request."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.debug_folder import DebugFolder, safe_name
from fxbucket.passes.errors import OptionError
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Program


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * 2).sum(0)


def compiled_with(**options: Any) -> Any:
    given = {"sizes": {"x.shape[0]": [4, 1]}, "splitting_ops": ["aten::sigmoid"], **options}
    return fxbucket.compile(model, compiler="eager", **given)


def files_in(folder: Path) -> dict[str, str]:
    """Return the texts of all files below a folder by their path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_every_step_and_bucket_is_there(tmp_path: Path):
    compiled_with(debug_dir=tmp_path / "made" / "here")(torch.ones(6, 3))
    files = files_in(tmp_path / "made" / "here")
    bucket = f"graph_0000/bucket_0_{safe_name('x.shape[0]=4')}"
    assert list(files) == [
        "graph_0000/0_captured.txt",
        "graph_0000/1_split.txt",
        "graph_0000/2_discover.txt",
        "graph_0000/3_admit.txt",
        "graph_0000/4_deduplicate.txt",
        f"{bucket}/0_piece_0.txt",
        f"{bucket}/1_piece_1.txt",
        f"{bucket}/2_piece_2.txt",
        f"{bucket}/bucket.py",
        "graph_0000/bucket_1_dynamic/0_piece_0.txt",
        "graph_0000/bucket_1_dynamic/1_piece_1.txt",
        "graph_0000/bucket_1_dynamic/2_piece_2.txt",
        "graph_0000/bucket_1_dynamic/bucket.py",
        "graph_0000/decisions.txt",
        "graph_0000/dispatch.py",
    ]
    assert "f32[4, 3]" in files[f"{bucket}/0_piece_0.txt"]
    assert "f32[x.shape[0], 3]" in files["graph_0000/bucket_1_dynamic/0_piece_0.txt"]
    assert files[f"{bucket}/bucket.py"].startswith("def bucket(")
    assert files["graph_0000/dispatch.py"].startswith("def dispatch(")
    assert "piece_1" in files["graph_0000/1_split.txt"]
    assert "piece_1" not in files["graph_0000/0_captured.txt"]
    lines = files["graph_0000/decisions.txt"].splitlines()
    assert lines[0] == "axes"
    assert lines[1].startswith("  x.shape[0]: 2..∞, 6 when captured; read by x.shape[0]; torch's s")
    assert lines[-2] == "  x.shape[0]=4: admitted"
    assert lines[-1].startswith("  x.shape[0]=1: refused: size 1 of axis")


def test_the_environment_asks_for_it_and_the_option_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FXBUCKET_DEBUG_DIR", str(tmp_path / "environment"))
    compiled_with()(torch.ones(4, 3))
    torch.compiler.reset()
    compiled_with(debug_dir=str(tmp_path / "option"))(torch.ones(4, 3))
    assert [path.name for path in (tmp_path / "environment").iterdir()] == ["graph_0000"]
    assert [path.name for path in (tmp_path / "option").iterdir()] == ["graph_0000"]


def test_each_graph_has_a_folder_of_its_own(tmp_path: Path):
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        print("the graph breaks here")
        return x + 1

    fxbucket.compile(broken, sizes={"x.shape[0]": [4]}, compiler="eager", debug_dir=tmp_path)(torch.ones(4, 3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph_0000", "graph_0001"]


def test_a_graph_that_fails_to_split_leaves_what_was_captured(tmp_path: Path):
    with pytest.raises(fxbucket.FxbucketError):
        compiled_with(splitting_ops=["aten::nothing"], debug_dir=tmp_path)(torch.ones(4, 3))
    assert list(files_in(tmp_path)) == ["graph_0000/0_captured.txt"]


@dataclass(frozen=True)
class WrongDtype(BasePass):
    """Writes metadata that Verify refuses."""

    name: ClassVar[str] = "wrong_dtype"

    def run(self, program: Program) -> Program:
        module = copy.deepcopy(program.pieces[0].module)
        node = next(node for node in module.graph.nodes if node.op == "call_function")
        node.meta["example_value"] = node.meta["example_value"].double()
        return replace(program, pieces=(replace(program.pieces[0], module=module), *program.pieces[1:]))


def test_a_bucket_that_runs_uncompiled_says_why(tmp_path: Path):
    x = torch.ones(4, 3)
    with pytest.warns(fxbucket.FxbucketWarning, match="runs uncompiled"):
        assert torch.equal(compiled_with(debug_dir=tmp_path, passes=[WrongDtype()])(x), model(x))
    (note,) = tmp_path.glob(f"graph_0000/bucket_0_{safe_name('x.shape[0]=4')}/note.txt")
    assert "verify: " in note.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_made_warns_once_and_breaks_nothing(tmp_path: Path):
    taken = tmp_path / "file"
    taken.write_text("")
    x = torch.ones(4, 3)
    with pytest.warns(fxbucket.FxbucketWarning, match=r"debug folder .*file' cannot be written .*FXBUCKET_DEBUG_DIR"):
        assert torch.equal(compiled_with(debug_dir=taken)(x), model(x))
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled_with(debug_dir=taken)(x), model(x))


def test_a_folder_that_goes_away_breaks_nothing(tmp_path: Path):
    compiled = compiled_with(debug_dir=tmp_path / "root", compile_when="lazily")
    compiled(torch.ones(6, 3))
    for path in sorted((tmp_path / "root").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    x = torch.ones(4, 3)
    with pytest.warns(fxbucket.FxbucketWarning, match="FileNotFoundError"):
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("wrong", [3, True, ["folder"]])
def test_a_path_is_asked_for(wrong: object):
    with pytest.raises(OptionError, match=r"debug_dir=.*give the path of a folder"):
        compiled_with(debug_dir=wrong)


@given(st.text(max_size=200), st.text(max_size=200))
def test_names_are_safe_on_every_system_and_stay_apart(first: str, second: str):
    names = [safe_name(text) for text in (first, second)]
    for name in names:
        assert 0 < len(name) <= 80
        assert not set(name) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._=-")
        assert not name.endswith(".")
    assert (names[0] == names[1]) == (first == second)


def test_files_appear_whole(tmp_path: Path):
    folder = DebugFolder(tmp_path)
    folder.write("a.txt", "one \ud800")
    folder.write("a.txt", "two")
    assert os.listdir(folder.path) == ["a.txt"]
    assert (folder.path / "a.txt").read_text(encoding="utf-8") == "two\n"
    assert DebugFolder(tmp_path).path.name == "graph_0001"
