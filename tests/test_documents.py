"""What docs/command_line.md says that commands print is what they print."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from pathlib import Path

import pytest

from fxbucket import cli
from tests.torch_versions import NEWER

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "command_line.md"


def sessions() -> list[tuple[str, str]]:
    """Return each command of the document with what stands below it."""
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return [(found[1], found[2]) for block in blocks for found in re.finditer(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", block)]


@pytest.mark.parametrize(("command", "promised"), sessions(), ids=[command for command, _ in sessions()])
def test_a_command_prints_what_the_document_says(
    command: str, promised: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    if NEWER and "--piece" in command:
        pytest.skip(
            "torch 2.14 gives the result of attention other strides than torch 2.13, which the document was made with"
        )
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        cli.main()
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(promised, printed, flags), f"promised:\n{promised}\nprinted:\n{printed}"


def test_every_option_of_render_is_in_the_document():
    import inspect

    text = DOCUMENT.read_text(encoding="utf-8")
    names = [name for name in inspect.signature(cli.render).parameters if name not in ("model", "full", "source_links")]
    options = {f"--{name}" for name in names} | {"--full", "--folded", "--no-source-links"}
    assert {option for option in options if option not in text} == set()
