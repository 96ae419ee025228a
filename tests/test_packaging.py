"""What people install: the files of the wheel, its entry points, and one name for each module."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INPUTS = ("pyproject.toml", "README.md", "LICENSE", "fxbucket", "passes", "visualize")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build from a copy: setuptools leaves build/ beside its source, and packs what an earlier build left there."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for name in INPUTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, copy / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
    ]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("fxbucket-*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_every_module_once(wheel: zipfile.ZipFile):
    places = {"fxbucket": "fxbucket", "passes": "fxbucket/passes", "visualize": "fxbucket/visualize"}
    expected = set()
    for folder, place in places.items():  # rglob does not follow the links in fxbucket/
        modules = {f"{place}/{path.relative_to(ROOT / folder).as_posix()}" for path in (ROOT / folder).rglob("*.py")}
        assert modules, f"{folder}/ holds no module"
        expected |= modules
    assert {name for name in wheel.namelist() if name.endswith(".py")} == expected
    assert "fxbucket/py.typed" in wheel.namelist()


def test_wheel_holds_the_files_of_the_report(wheel: zipfile.ZipFile):
    parts = {path.name for path in (ROOT / "visualize").iterdir() if path.suffix in (".jinja", ".css", ".js")}
    assert {"page.html.jinja", "page.css", "page.js"} <= parts
    assert {f"fxbucket/visualize/{name}" for name in parts} <= set(wheel.namelist())


def test_wheel_has_one_top_level_name(wheel: zipfile.ZipFile):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fxbucket"}


def test_wheel_declares_the_command_and_the_backend(wheel: zipfile.ZipFile):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    declared = configparser.ConfigParser()
    declared.read_string(wheel.read(name).decode())
    assert dict(declared["console_scripts"]) == {"fxbucket": "fxbucket.cli:main"}
    assert dict(declared["torch_dynamo_backends"]) == {"fxbucket": "fxbucket.backend:dynamo_backend"}


@pytest.mark.parametrize("folder", ["passes", "visualize"])
def test_a_code_folder_is_no_package_of_its_own(folder: str):
    """With the root on sys.path ``import passes`` would load every class a second time."""
    command = [sys.executable, "-c", f"import {folder}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "ImportError" in run.stderr
    assert f"fxbucket.{folder}" in run.stderr.splitlines()[-1]
