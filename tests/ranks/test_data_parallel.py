"""DDP and FSDP2: a compiled model trains on two ranks as the model does, each rank with lengths of its own."""

from __future__ import annotations

import pytest
import torch

from tests.ranks.spawned import WORLD, on_each_rank

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")

if torch.distributed.is_available():
    from tests.ranks.data_parallel_checks import CHECKS, all_checks


def check(backend: str) -> None:
    """Make all checks in one start of two processes, and one test: most of the time is torch's import."""
    outcomes = on_each_rank(all_checks, backend=backend)
    assert [set(found) for found in outcomes] == [set(CHECKS)] * WORLD
    assert "\n".join(f"{name}: {text}" for found in outcomes for name, text in found.items() if text) == ""


@pytest.mark.slow
def test_two_ranks_on_gloo():
    check("gloo")


@pytest.mark.gpu2
def test_two_ranks_on_nccl():
    check("nccl")
