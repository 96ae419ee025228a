"""Two ranks on this machine: with gloo on its processors, and with NCCL on two GPUs where there are."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.options import Options
from fxbucket.passes.errors import OptionError
from fxbucket.rank_exchange import listed
from fxbucket.rank_facts import differences

SCRIPT = Path(__file__).parent / "scenarios.py"
NAMES = re.findall(r"^@scenario\ndef (\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
LIMIT = 200
"""Seconds after which ranks that hang are ended."""


def run_ranks(folder: Path, backend: str) -> list[dict[str, str]]:
    """Run all scenarios on two ranks, and return what each of them raised on each rank."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    logs = [folder / f"rank_{rank}.log" for rank in range(2)]
    started = []
    for rank, path in enumerate(logs):
        environment = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with path.open("w", encoding="utf-8") as log:
            command = [sys.executable, str(SCRIPT), str(folder), backend]
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT)
    finally:
        for process in started:
            process.kill()
            process.wait()
    print(*(path.read_text(encoding="utf-8", errors="replace")[-20000:] for path in logs), sep="\n\n")
    files = [folder / f"rank_{rank}.json" for rank in range(2)]
    return [json.loads(file.read_text(encoding="utf-8")) if file.exists() else {} for file in files]


def check(results: list[dict[str, str]], name: str) -> None:
    for rank, found in enumerate(results):
        assert name in found, f"rank {rank} did not come to its end"
        assert not found[name], f"rank {rank}: {found[name]}"


@pytest.fixture(scope="module")
def on_gloo(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return run_ranks(tmp_path_factory.mktemp("gloo"), "gloo")


@pytest.fixture(scope="module")
def on_nccl(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return run_ranks(tmp_path_factory.mktemp("nccl"), "nccl")


@pytest.mark.slow
def test_two_ranks_on_gloo(on_gloo: list[dict[str, str]]):
    """One test, for a test of each scenario would start the ranks in each process of pytest."""
    for name in NAMES:
        check(on_gloo, name)


@pytest.mark.gpu2
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_on_nccl(on_nccl: list[dict[str, str]], name: str):
    check(on_nccl, name)


@given(st.sets(st.integers(0, 30), min_size=1))
def test_ranks_are_listed_so_that_each_can_be_read_again(ranks: set[int]):
    found: set[int] = set()
    for part in listed(sorted(ranks)).split(" ", 1)[1].split(", "):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == ranks


@given(st.dictionaries(st.integers(0, 5), st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")), min_size=1))
def test_differences_are_told_just_where_facts_differ(facts: dict[int, dict[str, str]]):
    equal = all(held == next(iter(facts.values())) for held in facts.values())
    assert (differences(facts) == "") == equal


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"agree": "min"}, "agree='min' is not possible"),
        ({"agree": "check", "agree_timeout": 0}, "agree_timeout=0"),
        ({"agree": "check", "agree_timeout": float("inf")}, "agree_timeout=inf"),
        ({"agree": "check", "agree_group": [0, 1]}, "agree_group"),
        ({"agree": "max", "compile_when": "background"}, "background"),
    ],
)
def test_options_by_which_ranks_could_not_agree_are_refused(given: dict[str, object], text: str):
    with pytest.raises(OptionError, match=re.escape(text)):
        Options.of(given)


def test_agreement_needs_ranks():
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [4]}, compiler="eager", agree="check")
    with pytest.raises(OptionError, match="init_process_group"):
        compiled(torch.zeros(4, 2))
