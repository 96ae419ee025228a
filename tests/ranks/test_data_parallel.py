"""DDP and FSDP2: a compiled model trains on two ranks as the model does, each rank with lengths of its own."""

from __future__ import annotations

import pytest
import torch

from tests.ranks.spawned import WORLD, on_each_rank

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")

if torch.distributed.is_available():
    from tests.ranks.data_parallel_checks import CHECKS, all_checks


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    # All checks in one start of two processes: most of the time is torch's import.
    return on_each_rank(all_checks)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check: str, outcomes: list[dict[str, str]]):
    assert [found[check] for found in outcomes] == [""] * WORLD
