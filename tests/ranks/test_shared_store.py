"""One store for all ranks: each artifact is made once, and a rank that dies in the middle holds nobody up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from fxbucket.environment import environment
from fxbucket.passes import Discover, Pipeline, Program, Split
from fxbucket.passes.captured import Capture, Placeholder
from fxbucket.passes.form import form_of
from fxbucket.passes.symbolic import fresh_environment
from fxbucket.store import Store, Stored
from fxbucket.workers import Workers

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or shutil.which("g++") is None, reason="starts its processes by forks, and compiles C++"
)


def facts_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what shared_store_ranks.py found; all of it in one process with forks, since most of the time is imports."""
    folder = tmp_path_factory.mktemp("ranks")
    compiler = folder / "bin" / "g++"
    compiler.parent.mkdir()
    # It tells its version, as torch asks for that; asked for more, it says so and hangs.
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in --version) exec {shutil.which("g++")} --version;; esac\n'
        f"touch {folder}/hangs\nexec sleep 600\n"
    )
    compiler.chmod(0o755)
    environ = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.ranks.shared_store_ranks", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=400, env=os.environ | environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "Warning: an artifact" not in done.stderr
    found["folder"] = folder
    return found


def whole(folder: Path) -> int:
    """Return how many entries a store has, none of them damaged, with nothing left half-written beside them."""
    assert list(folder.rglob("*.unfinished")) == []
    entries = list(Store(folder).verify())
    assert [entry.fault for entry in entries if entry.fault] == []
    return len(entries)


def check_that_ranks_of_one_model_make_each_artifact_once_and_keys_name_no_rank(facts: dict[str, Any]):
    origins = [origin for rank in facts["ranks"] for origin in rank]
    assert set(origins) == {"compiled", "loaded", "as it is"}
    made = origins.count("compiled")
    assert made == whole(facts["folder"] / "ranks")
    assert made + origins.count("loaded") == 2 * made
    assert facts["gradients agree"] == [True, True]


def check_that_a_rank_killed_while_it_compiles_lets_others_take_other_work_and_then_its_own(facts: dict[str, Any]):
    assert facts["made while another held"] == 1
    assert facts["killed"] == {"while compiling": -9, "while waiting": -9}
    assert facts["went on"] == ["compiled", "compiled"]
    assert facts["came after"] == ["loaded", "loaded"]
    assert whole(facts["folder"] / "faults") == 2


def check_that_without_locks_ranks_make_duplicates_and_nobody_waits(facts: dict[str, Any]):
    """On a folder whose locks hold nobody, or that has none, as some network file systems."""
    for kind in ("locks that do not hold", "no locks"):
        assert facts[kind] == {"beside one that hangs": ["compiled"], "after": ["loaded"]}
        assert whole(facts["folder"] / kind) == 1


def digest_on(device: str) -> str:
    """Return the digest of the form of ``torch.relu(x)`` for an argument on a device, which need not be there."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    result = graph.call_function(torch.relu, (x,))
    graph.output((result,))
    _, mode = fresh_environment()
    with mode:
        for node in (x, result):
            node.meta["example_value"] = torch.empty(4, 3, device=device)
    module = fx.GraphModule({}, graph)
    capture = Capture(module=module, placeholders=(Placeholder(0, "x", "L['x']", "input"),), axes=(), guards=())
    program = Pipeline([Split(()), Discover()])(Program(capture))
    (piece,) = program.pieces
    return form_of(piece, program).digest


def test_a_piece_depends_on_the_number_of_its_device_and_on_nothing_else_of_a_rank(monkeypatch: pytest.MonkeyPatch):
    """Inductor writes the number into what it generates, so ``cuda:1`` must not be served what was made for ``cuda:0``."""
    digests = {digest_on(device) for device in ("cpu", "cuda:0", "cuda:1")}
    assert len(digests) == 3
    keys = set()
    for rank in range(2):
        for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"):
            monkeypatch.setenv(name, str(rank))
        keys.add(environment({}).key_of(digest_on("cuda:0")))
    assert len(keys) == 1


def test_ranks_that_start_together_read_an_entry_and_do_not_write_to_it(tmp_path: Path):
    store, key = Store(tmp_path / "store"), "ab" * 32
    store.put(key, Stored(b"payload"))
    (entry,) = store.entries()
    for age, is_marked in ((60.0, False), (7200.0, True)):
        before = time.time() - age
        os.utime(entry.path, (before, before))
        assert store.get(key) == Stored(b"payload")
        assert (abs(entry.path.stat().st_mtime - before) > 1) == is_marked


def test_a_rank_s_workers_are_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(cores))
    assert Workers(None).executor(1000) is None
    assert Workers(2).executor(1000) is not None, "a number that was given is a number of this rank's own"
    for odd in ("", "0", "-1", "many"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", odd)
        assert (Workers(None).executor(1000) is None) == (cores < 2)


@pytest.mark.slow
def test_ranks_that_share_a_store(tmp_path_factory: pytest.TempPathFactory):
    """One test, for several would start the ranks in each process of pytest."""
    facts = facts_of(tmp_path_factory)
    check_that_ranks_of_one_model_make_each_artifact_once_and_keys_name_no_rank(facts)
    check_that_a_rank_killed_while_it_compiles_lets_others_take_other_work_and_then_its_own(facts)
    check_that_without_locks_ranks_make_duplicates_and_nobody_waits(facts)
