"""What every test starts from: a fresh torch.compile, one seed, one thread, a store of this run's own."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# Tests of one run share artifacts, also between processes; no test sees what the user or an earlier run has stored.
if "FXBUCKET_CACHE_DIR" not in os.environ:
    os.environ["FXBUCKET_CACHE_DIR"] = tempfile.mkdtemp(prefix="fxbucket-tests-")
    atexit.register(shutil.rmtree, os.environ["FXBUCKET_CACHE_DIR"], ignore_errors=True)

# HYPOTHESIS_PROFILE=long looks for hours (make fuzz). Continuous integration sees the same examples each run, so that a
# failure there is the change's own; what random examples find elsewhere is kept in .hypothesis and tried first.
settings.register_profile("quick", max_examples=10, deadline=None, derandomize="CI" in os.environ)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked ``gpu`` where there is none, and ``gpu2`` where there are fewer than two."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("gpu2") is not None and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a test's parameter so that every worker process gives it the same name: no address, no uninitialised data."""
    if isinstance(val, torch.Tensor) or (isinstance(val, tuple) and any(isinstance(item, torch.Tensor) for item in val)):
        return None
    name = getattr(val, "__qualname__", None) or str(val)
    return None if " at 0x" in name or len(name) > 60 else name


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """Forget what torch.compile has compiled, before and after, and seed torch.

    This is once a test, not once an example: a property test that compiles resets torch itself for each example.
    """
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()
