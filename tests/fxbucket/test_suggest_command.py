"""``fxbucket suggest``: what it prints and draws for a table of sizes, and with which code it ends."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fxbucket import cli, suggest_command, suggest_sizes
from fxbucket.suggest_command import histogram_of

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = "size,count\n16,3\n40,1\n512,2.5\n"


@pytest.fixture
def suggest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command as a shell would, with a table; returns its code and what it printed."""

    def run(table: str | bytes, *arguments: object) -> tuple[int, str, str]:
        path = tmp_path / "seen.csv"
        path.write_bytes(table if isinstance(table, bytes) else table.encode())
        monkeypatch.setattr(sys, "argv", ["fxbucket", "suggest", str(path), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


def test_it_prints_what_the_function_gives(suggest: Any):
    code, out, err = suggest(TABLE, "--budget", 2)
    assert (code, err) == (0, "")
    assert out == f"{suggest_sizes({16: 3, 40: 1, 512: 2.5}, 2)}\n"


def test_every_option_means_what_it_means_to_the_function(suggest: Any, tmp_path: Path):
    code, out, _ = suggest(
        TABLE, "--budget", 4, "--multiple-of", 16, "--must-include", 32, "--must-include", 64, "--padding-cost", 2,
        "--compile-cost", 5, "--format", "json", "--svg", tmp_path / "ladder.svg", "--theme", "dark",
    )  # fmt: skip
    options: dict[str, Any] = {"padding_cost": 2.0, "compile_cost": 5.0, "multiple_of": 16, "must_include": [32, 64]}
    found = suggest_sizes({16: 3, 40: 1, 512: 2.5}, 4, **options)
    assert (code, json.loads(out)) == (0, found.data())
    assert [ladder["name"] for ladder in json.loads(out)["ladders"]] == ["powers of two", "linear"]
    from fxbucket.visualize import suggestion_svg

    assert (tmp_path / "ladder.svg").read_text(encoding="utf-8") == suggestion_svg(found, theme="dark")


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("size,count\n3,4\n", {3: 4}),
        ("# seen on Monday\n\ncount,host,size\n1,a,16\n2,b,16\n0.5,b,8\n", {16: 3, 8: 0.5}),
        ('\ufeffsize, count\r\n"16", "2"\r\n8,1e3\r\n', {16: 2, 8: 1000.0}),
    ],
    ids=["plain", "with more columns", "from a spreadsheet"],
)
def test_tables_of_several_forms_are_read(table: str, found: dict[int, float], tmp_path: Path):
    path = tmp_path / "seen.csv"
    path.write_bytes(table.encode())
    assert histogram_of(path) == found


@pytest.mark.parametrize(
    ("table", "arguments", "said"),
    [
        ("", [], "the first line must name the columns: size,count; it is ''"),
        ("16,3|", [], "the first line must name the columns: size,count; it is '16,3'"),
        ("size,count|", [], "histogram is empty"),
        ("size,count|16|", [], "seen.csv, line 2: '16' is no size with its count; write for example 512,20"),
        ("size,count|# c|16,many|", [], "seen.csv, line 3: '16,many' is no size with its count"),
        ("size,count|1.5,2|", [], "seen.csv, line 2: '1.5,2' is no size"),
        ("size,count|-1,2|", [], "a size of the histogram is -1"),
        ("size,count|1,-2|", [], "the number of calls of size 1 in the histogram is -2"),
        ("size,count|1,nan|", [], "the number of calls of size 1 in the histogram is nan"),
        ("size,count|16,3", ["--must-include", "50", "--multiple-of", "16"], "give 48 or 64"),
        ("size,count|16,3", ["--padding-cost", "inf"], "padding_cost is inf"),
    ],
)
def test_a_wrong_table_or_option_ends_with_2_and_one_line(suggest: Any, table: str, arguments: list[str], said: str):
    code, out, err = suggest(table.replace("|", "\n"), *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_file_that_is_no_text_ends_with_2(suggest: Any):
    code, _, err = suggest(b"size,count\n\xff\xfe")
    assert code == 2
    assert "seen.csv is no text in UTF-8" in err


@pytest.mark.parametrize(
    "arguments", [["--budget", "0"], ["--multiple-of", "0"], ["--compile-cost", "-1"], ["--theme", "blue"]]
)
def test_wrong_usage_ends_with_2(suggest: Any, arguments: list[str]):
    assert suggest(TABLE, *arguments)[0] == 2


def test_a_picture_that_cannot_be_written_ends_with_1(suggest: Any, tmp_path: Path):
    code, _, err = suggest(TABLE, "--svg", tmp_path / "none" / "ladder.svg")
    assert code == 1
    assert "cannot be written" in err


def test_every_option_is_in_the_document():
    text = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8").partition("## `suggest`")[2].partition("\n## ")[0]
    names = set(inspect.signature(suggest_command.suggest).parameters) - {"histogram"}
    assert {name for name in names if f"--{name.replace('_', '-')}" not in text} == set()
