"""What the field tests share: no call may be equal to eager because torch gave up compiling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def no_giving_up() -> Iterator[None]:
    """Make it an error that torch runs a function as it is after too many captures, and allow many."""
    with torch.compiler.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=64):
        yield
