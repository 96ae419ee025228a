"""Which threads keep out of each other's way on a device; what needs none to be tested."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from fxbucket.graph_compat import device_turn, measure_in_turn
from tests.threads import in_threads

benchmarking: Any = importlib.import_module("torch._inductor.runtime.benchmarking")


class Measures:
    """Stands for a way to measure kernels; there is none without a GPU."""

    def benchmark_gpu(self) -> bool:
        return is_taken()


def is_taken() -> bool:
    """Whether another thread could not record now."""
    found: list[bool] = []

    def ask(_: int) -> None:
        found.append(not device_turn.acquire(blocking=False))
        if not found[0]:
            device_turn.release()

    in_threads(ask, [0])
    return found[0]


@pytest.fixture(autouse=True)
def torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fxbucket_measures_in_turn", "_gpu_benchmark_lock_context"):
        monkeypatch.setattr(benchmarking, name, None, raising=False)
    for name, known in list(vars(benchmarking).items()):
        if isinstance(known, type) and "benchmark_gpu" in vars(known):
            monkeypatch.setattr(known, "benchmark_gpu", known.benchmark_gpu)
            monkeypatch.setattr(benchmarking, name, known)


def test_kernels_are_measured_in_turn_by_a_torch_that_has_no_lock_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(benchmarking, "set_gpu_benchmark_lock_context", raising=False)
    monkeypatch.setattr(benchmarking, "Measures", Measures, raising=False)
    monkeypatch.setattr(Measures, "benchmark_gpu", Measures.benchmark_gpu)
    assert not Measures().benchmark_gpu()
    measure_in_turn()
    measure_in_turn()
    assert Measures().benchmark_gpu()
    assert not is_taken()


@pytest.mark.skipif(not hasattr(benchmarking, "gpu_benchmark_lock"), reason="this torch has no lock for it")
def test_kernels_are_measured_in_turn_beside_the_lock_of_another_s():
    entered: list[str] = []

    @contextlib.contextmanager
    def other() -> Iterator[None]:
        entered.append("other")
        yield

    benchmarking.set_gpu_benchmark_lock_context(other)
    measured = benchmarking.gpu_benchmark_lock(is_taken)
    assert not measured()
    measure_in_turn()
    measure_in_turn()
    assert measured()
    assert not is_taken()
    assert entered == ["other", "other"]


def test_a_measurement_inside_another_has_the_turn_already():
    measure_in_turn()
    with device_turn:
        assert Measures().benchmark_gpu()
        assert is_taken()
