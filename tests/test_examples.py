"""Every example prints what its docstring promises, and what the documents say of the tree is true."""

from __future__ import annotations

import ast
import doctest
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.torch_versions import OLDER

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "benchmark.py")


def promise_of(example: Path) -> str:
    """Return what the docstring says the example prints: the indented block at its end."""
    docstring = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    head, found, promised = docstring.partition("\nPrints")
    assert found, f"{example.name}: the docstring does not end with what it prints: {head}"
    return textwrap.dedent(promised.partition(":\n\n")[2]) + "\n"


def run(example: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, str(example)], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_what_it_promises(example: Path, tmp_path: Path):
    if example.stem == "draw" and shutil.which("dot") is None:
        pytest.skip("needs Graphviz's dot")
    if example.stem == "triton_attention" and OLDER and not torch.cuda.is_available():
        pytest.skip("the interpreter of Triton 3.6, torch 2.11's own, cannot run a loop with NumPy 2.4")
    done = run(example, tmp_path)
    assert done.returncode == 0, done.stderr
    promised = promise_of(example)
    assert doctest.OutputChecker().check_output(promised, done.stdout, doctest.ELLIPSIS), (
        f"promised:\n{promised}\nprinted:\n{done.stdout}"
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot")
def test_drawings_go_where_they_are_asked_for(tmp_path: Path):
    script = [sys.executable, str(ROOT / "examples" / "draw.py"), str(tmp_path / "pictures")]
    subprocess.run(script, check=True, capture_output=True)
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {
        "split.svg", "concrete.svg", "difference.svg", "folded.svg",
    }  # fmt: skip


def blocks_of(markdown: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    parts = markdown.split(f"```{language}\n")[1:]
    return [part.partition("```")[0] for part in parts]


def test_readme_shows_the_quickstart_and_its_output():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quickstart = ROOT / "examples" / "quickstart.py"
    source = quickstart.read_text(encoding="utf-8")
    code = source[source.index("import torch") :]
    assert code in blocks_of(readme, "python")
    assert promise_of(quickstart) in blocks_of(readme, "text")


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
)
def test_links_lead_somewhere(document: str):
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    targets = [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'(?:src|href)="([^"]+)"', text)]
    files = [target.partition("#")[0] for target in targets if "://" not in target]
    assert [file for file in files if file and not (path.parent / file).exists()] == []


@pytest.mark.parametrize("folder", ["passes", "fxbucket", "visualize"])
def test_architecture_names_every_module(folder: str):
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition(f"| **{folder}/** |")[2].partition("| **")[0]
    modules = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    assert modules - set(re.findall(r"`(\w+\.py)`", section)) == set()


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_hold_no_path_of_one_machine(picture: Path):
    assert "file:" not in picture.read_text(encoding="utf-8")
