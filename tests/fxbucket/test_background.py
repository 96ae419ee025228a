from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

import fxbucket
from fxbucket.background import Background

SIZES = {"x.shape[0]": [4, 8]}


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x + 1) * 2


class Gate:
    """A compiler that runs graphs as they are, and waits to be let through before each."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self.threads: set[str] = set()

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.open.wait(60)
        return module.forward


def behind(compiler: object = "aot_eager", **options: Any) -> Any:
    return fxbucket.compile(model, **{"sizes": SIZES, "compile_when": "background", "compiler": compiler} | options)


def test_no_call_waits_and_each_bucket_switches_over_when_it_is_ready():
    gate = Gate()
    compiled = behind(gate)
    for rows in (4, 8, 5, 4):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), model(x))  # and this line is reached, though nothing is compiled yet
    assert gate.begun.wait(60)
    (graph,) = compiled.explain().graphs
    assert graph.eager_calls == 4
    assert {bucket.state for bucket in graph.buckets} == {"waiting"}
    assert not compiled.wait(0.01)
    gate.open.set()
    assert compiled.wait(60)
    for rows in (4, 8, 5):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), model(x))
    (graph,) = compiled.explain().graphs
    assert graph.eager_calls == 4
    assert {bucket.bucket: bucket.calls for bucket in graph.buckets} == {"x.shape[0]=4": 1, "x.shape[0]=8": 1, "dynamic": 1}
    assert gate.threads == {"fxbucket-background"}


@pytest.mark.parametrize("on_miss", ["eager", "dynamic"])
def test_what_serves_a_miss_is_what_on_miss_says(on_miss: str):
    compiled = behind(on_miss=on_miss)
    compiled(torch.randn(4, 3))
    compiled(torch.randn(5, 3))
    assert compiled.wait(60)
    compiled(torch.randn(5, 3))
    calls = compiled.explain().calls()
    assert calls.get("dynamic", 0) == (1 if on_miss == "dynamic" else 0)


def test_sizes_that_are_pinned_when_seen_are_compiled_behind_their_first_call():
    backend = fxbucket.backend(sizes="seen", compile_when="background", compiler="aot_eager")
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (4, 6):
        compiled(torch.randn(rows, 3))
    assert backend.wait(60)
    for rows in (4, 6):
        compiled(torch.randn(rows, 3))
    (graph,) = backend.explain().graphs
    assert [bucket.calls for bucket in graph.buckets if bucket.bucket != "dynamic"] == [1, 1]


def test_a_compiler_that_fails_is_told_of_once_and_calls_go_on():
    def fails(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        raise ZeroDivisionError("no")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = behind(fails)
        compiled(torch.randn(4, 3))
        assert compiled.wait(60)
        x = torch.randn(4, 3)
        assert torch.equal(compiled(x), model(x))
    told = [str(item.message) for item in caught if issubclass(item.category, fxbucket.FxbucketWarning)]
    assert len(told) == 1
    assert "bucket x.shape[0]=4 runs uncompiled" in told[0]
    assert "ZeroDivisionError" in told[0]
    states = {bucket.state for bucket in compiled.explain().graphs[0].buckets}
    assert states == {"as captured"}


def test_warmup_waits_for_everything():
    compiled = behind()
    compiled.warmup(torch.randn(4, 3))
    assert {bucket.state for bucket in compiled.explain().graphs[0].buckets} == {"compiled"}
    assert compiled.wait(0)


def test_a_model_that_is_not_compiled_in_the_background_has_nothing_to_wait_for():
    assert fxbucket.compile(model, compiler="eager").wait(0)


def test_gradients_are_right_before_and_after_the_switch():
    compiled = behind()
    for round_number in range(2):
        x = torch.randn(4, 3, requires_grad=True)
        same = x.detach().clone().requires_grad_()
        compiled(x).sum().backward()
        model(same).sum().backward()
        torch.testing.assert_close(x.grad, same.grad)
        if round_number == 0:
            assert compiled.wait(60)


@settings(max_examples=5)
@given(calls=st.lists(st.sampled_from([4, 8, 5, 6]), min_size=1, max_size=12))
def test_calls_from_many_threads_are_right_whenever_they_come(calls: list[int]):
    torch.compiler.reset()
    compiled = behind()
    compiled(torch.randn(4, 3))

    def call(rows: int) -> bool:
        x = torch.randn(rows, 3)
        return torch.allclose(compiled(x), model(x))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, calls))
    assert compiled.wait(60)
    assert all(call(rows) for rows in calls)


def test_a_program_that_ends_in_the_middle_of_a_compilation_ends_at_once(tmp_path: Any):
    script = """
import time, torch, fxbucket
def slow(module, inputs):
    time.sleep(0.3)
    return module.forward
compiled = fxbucket.compile(lambda x: torch.sigmoid(x + 1) * 2, sizes={"x.shape[0]": list(range(2, 200))}, compiler=slow,
                            splitting_ops=["aten::sigmoid"], compile_when="background")
compiled(torch.randn(4, 3))
print("served", flush=True)
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served\n"
    assert time.monotonic() - started < 60, "all of it would take two minutes"


def test_tasks_run_in_order_and_none_after_the_end():
    background = Background()
    seen: list[int] = []
    for number in range(3):
        background.submit(lambda number=number: seen.append(number))
    assert background.wait(10)
    assert seen == [0, 1, 2]
    background.stop()
    background.submit(lambda: seen.append(3))
    assert background.wait(1)
    assert seen == [0, 1, 2]
