"""Processes that compile one model at once into one folder of torch's own caches, without fxbucket's store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ONE_PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import fxbucket
from tests.field.cases.cache import shared_folder

model, calls = shared_folder.world()
compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, splitting_ops=["aten::sigmoid"], cache=None)
torch.testing.assert_close(compiled(*calls[0]), model(*calls[0]))
"""

NUM_PROCESSES = 2
SHARED = frozenset({"fxgraph", "aotautograd"})
"""Folders of torch's own caches of graphs."""


def run_all(folder: Path) -> list[str]:
    """Start the processes and return what each failed with; an empty text where it did not."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", ONE_PROCESS, str(ROOT)]
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(NUM_PROCESSES)]
    ended = [(process.communicate(timeout=300)[1], process.returncode) for process in running]
    return [said if code else "" for said, code in ended]


@pytest.mark.slow
def test_processes_may_share_a_folder_cold_warm_and_with_torn_entries(tmp_path: Path):
    right = [""] * NUM_PROCESSES
    assert run_all(tmp_path) == right
    assert run_all(tmp_path) == right
    entries = [path for path in tmp_path.rglob("*") if path.is_file() and not SHARED.isdisjoint(path.parts)]
    assert entries, "torch keeps its entries elsewhere; look there"
    for path in entries:
        os.truncate(path, 10)
    assert run_all(tmp_path) == right
