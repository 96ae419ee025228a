"""What small programs look like at each step, as text and as DOT, line for line.

After a change that is meant, look at the difference and refresh the files::

    REFRESH_GOLDEN=1 .venv/bin/python -m pytest tests/visualize/test_golden.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fxbucket
from fxbucket.passes import Concretize, Discover, Pipeline, Split, Verify
from fxbucket.visualize import diff_text, dot_text
from tests.torch_versions import OLDER
from tests.visualize.golden_models import CASES, Case

GOLDEN = Path(__file__).parent / "golden"
REFRESHED = "REFRESH_GOLDEN" in os.environ


def steps_of(case: Case) -> dict[str, fxbucket.passes.Program]:
    captured = fxbucket.capture(case.model, *case.args, axes=case.axes)
    split = Pipeline((Split(case.boundary), Discover(), Verify()))(captured)
    concrete = Pipeline((Concretize(case.sizes), Verify()))(split)
    return {"captured": captured, "split": split, "concrete": concrete}


def texts_of(case: Case) -> dict[str, str]:
    """Return the golden texts of a case by the names of their files."""
    steps = steps_of(case)
    sections = {name: str(program) for name, program in steps.items()}
    sections["captured to split"] = diff_text(steps["captured"], steps["split"])
    sections["split to concrete"] = diff_text(steps["split"], steps["concrete"])
    name = case.model.__name__
    found = {f"{name}.txt": "\n\n".join(f"=== {title}\n{text}" for title, text in sections.items()) + "\n"}
    for step in ("split", "concrete"):
        found[f"{name}_{step}.dot"] = dot_text(steps[step], fold=False, source_links=False)
    return found


@pytest.mark.skipif(OLDER, reason="torch before 2.13 chooses other symbols and source lines")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model.__name__)
def test_it_looks_as_it_did(case: Case):
    texts = texts_of(case)
    if REFRESHED:
        for file, text in texts.items():
            (GOLDEN / file).write_text(text, encoding="utf-8")
        pytest.skip("refreshed; look at the difference")
    for file, text in texts.items():
        assert text.splitlines() == (GOLDEN / file).read_text(encoding="utf-8").splitlines(), file


def test_no_file_is_left_over():
    expected = {f"{case.model.__name__}{end}" for case in CASES for end in (".txt", "_split.dot", "_concrete.dot")}
    assert {path.name for path in GOLDEN.iterdir()} == expected
