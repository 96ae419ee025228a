"""``fxbucket cache``: what it prints and removes, and with which code it ends."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fxbucket import cli
from fxbucket.sealed import Stored
from fxbucket.store import Store

KEYS = [f"{number:02x}" * 32 for number in range(3)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Give a store of three artifacts, each used an hour after the one before it."""
    monkeypatch.setenv("FXBUCKET_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    store = Store(tmp_path / "store")
    for number, key in enumerate(KEYS):
        store.put(key, Stored(bytes(2000), {}, {"title": f"piece_{number} for bucket x.shape[0]=8"}))
        os.utime(path_of(store, key), (3600.0 * 24 * 365 + 3600 * number,) * 2)
    return store


def path_of(store: Store, key: str) -> Path:
    return store.folder / key[:2] / f"{key}.artifact"


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str, str]:
    """Run the program as a shell would; returns its code and what it printed."""
    monkeypatch.setattr(sys, "argv", ["fxbucket", "cache", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


@pytest.fixture
def cache(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def keys(store: Store) -> list[str]:
    return [facts.key for facts in store.entries()]


def test_path_prints_the_folder_and_makes_nothing(cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FXBUCKET_CACHE_DIR", str(tmp_path / "none"))
    assert cache("path") == (0, f"{tmp_path / 'none'}\n", "")
    assert cache("path", "--cache", tmp_path / "other") == (0, f"{tmp_path / 'other'}\n", "")
    assert list(tmp_path.iterdir()) == []


def test_ls_lists_what_was_used_last_first(store: Store, cache: Any):
    code, out, _ = cache("ls")
    assert code == 0
    rows = [line for line in out.splitlines() if "piece_" in line]
    assert [row.split()[1] for row in rows] == [KEYS[2][:12], KEYS[1][:12], KEYS[0][:12]]
    for text in ("piece_0 for bucket x.shape[0]=8", "1971-01-01", "kB"):
        assert text in rows[2]
    assert out.splitlines()[-1].startswith("3 artifacts, ")
    assert out.splitlines()[-1].endswith(f" kB, in {store.folder}")
    assert "fault" not in out


def test_ls_as_json_holds_all_of_it(store: Store, cache: Any):
    data = json.loads(cache("ls", "--format", "json")[1])
    assert data["folder"] == str(store.folder)
    assert [each["key"] for each in data["artifacts"]] == KEYS[::-1]
    assert data["size"] == sum(path_of(store, key).stat().st_size for key in KEYS)
    assert data["artifacts"][0]["about"] == {"title": "piece_2 for bucket x.shape[0]=8"}


def test_verify_ends_with_1_where_something_is_damaged(store: Store, cache: Any):
    assert cache("verify")[:2] == (0, "3 artifacts read, 0 of them cannot be used\n")
    path = path_of(store, KEYS[1])
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = cache("verify")
    assert code == 1
    assert "3 artifacts read, 1 of them cannot be used" in out
    assert "damaged" in out
    assert KEYS[1][:12] in out
    assert KEYS[0][:12] not in out
    code, out, _ = cache("verify", "--format", "json")
    assert code == 1
    assert [each["key"] for each in json.loads(out)["artifacts"]] == [KEYS[1]]


def test_prune_keeps_what_was_used_last(store: Store, cache: Any):
    size = path_of(store, KEYS[0]).stat().st_size
    code, out, _ = cache("prune", "--max-size", f"{2 * size / 1000}kB")
    assert code == 0
    assert out.startswith("1 artifact removed, ")
    assert keys(store) == KEYS[1:]
    removed = json.loads(cache("prune", "--max-size", size, "--format", "json")[1])
    assert [each["key"] for each in removed["artifacts"]] == [KEYS[1]]
    assert keys(store) == KEYS[2:]
    assert cache("prune", "--max-size", "1GiB")[1].startswith("0 artifacts removed, 0 bytes; ")


def test_clear_removes_all_of_it(store: Store, cache: Any):
    assert cache("clear") == (0, "3 artifacts removed\n", "")
    assert keys(store) == []
    assert cache("clear")[1] == "0 artifacts removed\n"


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["prune", "--max-size", "1"], ["clear"]])
def test_where_there_is_no_store_none_is_made(cache: Any, tmp_path: Path, command: list[str]):
    code, out, _ = cache(*command, "--cache", tmp_path / "none")
    assert code == 0
    assert "0 artifacts" in out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["prune", "--max-size", "1"], ["clear"]])
def test_a_folder_that_others_may_write_to_ends_with_1(store: Store, cache: Any, command: list[str]):
    store.folder.chmod(0o777)
    code, out, err = cache(*command)
    assert (code, out) == (1, "")
    assert "can be written by others" in err
    assert keys(store) == KEYS


@pytest.mark.parametrize("size", ["", "much", "-1", "2XB", "1e3", "GB", "1.GB", "iB", "1iB", "1 2MB", "٣MB", "nan"])
def test_a_size_that_is_none_ends_with_2_and_removes_nothing(store: Store, cache: Any, size: str):
    code, _, err = cache("prune", f"--max-size={size}")
    assert code == 2
    assert "500MB" in err
    assert keys(store) == KEYS


@pytest.mark.parametrize("command", [[], ["nonsense"], ["prune"], ["ls", "--format", "xml"]])
def test_wrong_usage_ends_with_2(cache: Any, command: list[str]):
    assert cache(*command)[0] == 2
