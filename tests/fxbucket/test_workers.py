"""Compilation in other processes: what is made there, and what becomes of workers that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes.errors import FxbucketWarning, OptionError, StoppedError
from fxbucket.store import Store
from fxbucket.worker_pool import WorkerDiedError, WorkerPool
from fxbucket.workers import Workers

ROOT = Path(__file__).resolve().parents[2]

linux = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1) * 3


def compile_with(workers: object, folder: Path | None, function: Any = model, sizes: tuple[int, ...] = (4, 8)) -> Any:
    torch.compiler.reset()
    return fxbucket.compile(function, sizes={"x.shape[0]": list(sizes)}, on_miss="eager", workers=workers, cache=folder)


def call(compiled: Any, function: Any = model, sizes: tuple[int, ...] = (4, 8)) -> tuple[list[str], list[str]]:
    """Call at each size, compare with eager, and return where each artifact came from, and its note."""
    for rows in sizes:
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), function(x))
    found = [artifact for bucket in compiled.explain().graphs[0].buckets for artifact in bucket.artifacts]
    return [artifact.origin for artifact in found], [artifact.note for artifact in found]


def descendants(pid: int) -> set[int]:
    """Return all processes below one, from /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit():
                state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(path.name)] = int(parent)
        except OSError:
            continue
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def commands(pids: set[int]) -> str:
    texts = []
    for pid in pids:
        try:
            texts.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return "\n".join(texts)


def until(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.02)


# The pool, with functions that do not know torch


@pytest.fixture
def pool() -> Any:
    pool = WorkerPool(2)
    yield pool
    pool.shutdown(cancel_futures=True)


def test_a_pool_runs_functions_in_other_processes(pool: WorkerPool):
    pids = {future.result(60) for future in [pool.submit(os.getpid) for _ in range(8)]}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_an_error_of_a_function_is_its_futures_and_the_worker_goes_on(pool: WorkerPool):
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(60)
    assert pool.submit(divmod, 7, 2).result(60) == (3, 1)


def test_an_argument_that_cannot_be_sent_is_an_error_and_the_worker_goes_on(pool: WorkerPool):
    with pytest.raises(Exception, match=r"(?i)pickle"):
        pool.submit(len, threading.Lock()).result(60)
    assert pool.submit(divmod, 7, 2).result(60) == (3, 1)


def test_a_worker_that_dies_ends_its_own_task_alone(pool: WorkerPool):
    sleeping = pool.submit(time.sleep, 2)
    dying = pool.submit(os._exit, 7)
    after = [pool.submit(divmod, 7, 2) for _ in range(4)]
    with pytest.raises(WorkerDiedError, match="worker died"):
        dying.result(60)
    assert sleeping.result(60) is None
    assert [future.result(60) for future in after] == [(3, 1)] * 4


def test_a_pool_that_is_shut_down_takes_nothing_and_leaves_nobody(pool: WorkerPool):
    pids = {pool.submit(os.getpid).result(60)}
    running, waiting = [pool.submit(time.sleep, 100) for _ in range(2)], [pool.submit(time.sleep, 100) for _ in range(3)]
    until(lambda: all(future.running() for future in running))
    started = time.monotonic()
    pool.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    for future in running:
        with pytest.raises(StoppedError):
            future.result(60)
    assert time.monotonic() - started < 60  # and not the 100 seconds of the tasks
    with pytest.raises(StoppedError):
        pool.submit(os.getpid)
    if Path("/proc").is_dir():
        until(lambda: not pids & descendants(os.getpid()))


@linux
def test_the_end_of_the_program_ends_workers_in_the_middle(tmp_path: Path):
    code = """
    import os, time
    from fxbucket.worker_pool import WorkerPool
    pool = WorkerPool(2)
    print(pool.submit(os.getpid).result(60), flush=True)
    for _ in range(5):
        pool.submit(time.sleep, 300)
    time.sleep(0.5)
    """
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=200, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 200
    assert "Traceback" not in done.stderr
    until(lambda: not Path(f"/proc/{int(done.stdout)}").exists())


# What is chosen


def test_threads_are_refused_with_the_mend():
    with ThreadPoolExecutor(1) as threads, pytest.raises(OptionError, match="pool of threads; give one of processes"):
        fxbucket.compile(model, workers=threads)


@pytest.mark.parametrize("workers", [-1, True, 1.5, "two", object()])
def test_what_can_not_compile_is_refused(workers: object):
    with pytest.raises(OptionError, match="workers="):
        fxbucket.compile(model, workers=workers)


def test_where_one_process_will_do_there_is_no_other():
    assert Workers(0).executor(9) is Workers(1).executor(9) is Workers(2).executor(1) is Workers(None).executor(3) is None
    assert Workers(None, behind=True).executor(0) is None
    one = Workers(None, behind=True).executor(1)
    assert isinstance(one, WorkerPool)
    assert Workers(3).executor(3) is Workers(3).executor(9)


class Refusing(Executor):
    """An executor that takes nothing."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("cannot schedule new futures after shutdown")


class OtherFutures(Executor):
    """An executor of a library that has futures of its own."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        return object()


class Threads:
    """A pool of threads that does not say that it is one, as some libraries have."""

    def __init__(self) -> None:
        self._inner = ThreadPoolExecutor(2)

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._inner.submit(*args, **kwargs)


# With Inductor


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False])
def test_workers_make_what_this_process_runs(tmp_path: Path, stored: bool):
    folder = tmp_path if stored else None
    origins, notes = call(compile_with(2, folder))
    assert (origins, notes) == (["worker"] * 2, [""] * 2)
    origins, _ = call(compile_with(2, folder))
    assert origins == (["loaded"] * 2 if stored else ["worker"] * 2)


@pytest.mark.slow
@linux
def test_a_worker_that_is_killed_is_reported_with_its_piece_and_bucket(tmp_path: Path):
    """A worker is killed while the C++ compiler works for it, which is the middle of a compilation."""
    killed: list[int] = []

    def kill() -> None:
        def busy() -> list[int]:
            workers = [pid for pid in descendants(os.getpid()) if "popen_loky_posix" in commands({pid})]
            return [pid for pid in workers if "cc1plus" in commands(descendants(pid))]

        until(busy)
        for pid in busy()[:1]:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        origins, notes = call(compile_with(2, tmp_path, sizes=(4, 8, 12)), sizes=(4, 8, 12))
    killer.join()
    assert len(killed) == 1
    (told,) = [str(each.message) for each in caught if issubclass(each.category, FxbucketWarning)]
    assert "a worker failed, and this process compiles in its place: piece_0 for bucket x.shape[0]=" in told
    assert sorted(origins) == ["compiled", "worker", "worker"]
    assert ["the worker died" in note for note in notes] == [origin == "compiled" for origin in origins]


@pytest.mark.slow
def test_an_executor_that_fails_means_one_warning_and_compilation_here(tmp_path: Path):
    ended = ProcessPoolExecutor(1)
    ended.shutdown()
    for number, executor in enumerate((Refusing(), ended)):
        with pytest.warns(FxbucketWarning, match="a worker failed") as caught:
            origins, notes = call(compile_with(executor, tmp_path / str(number)))
        assert len([each for each in caught if issubclass(each.category, FxbucketWarning)]) == 1
        assert origins == ["compiled"] * 2
        assert all("cannot schedule new futures after shutdown" in note for note in notes)


def test_futures_that_are_not_the_standard_librarys_are_an_error_that_says_so(tmp_path: Path):
    with pytest.raises(Exception, match=r"give an executor whose submit\(\) returns a concurrent.futures.Future"):
        compile_with(OtherFutures(), tmp_path)(torch.randn(4, 3))


@pytest.mark.slow
def test_threads_that_do_not_say_so_are_found_out_and_this_process_compiles(tmp_path: Path):
    settings = torch.get_num_threads(), torch.get_float32_matmul_precision()
    origins, notes = call(compile_with(Threads(), tmp_path))
    assert origins == ["compiled"] * 2
    assert all("threads of this process" in note for note in notes)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == settings


@pytest.mark.slow
def test_a_pool_of_spawned_processes_compiles(tmp_path: Path):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        origins, notes = call(compile_with(executor, tmp_path))
        assert (origins, notes) == (["worker"] * 2, [""] * 2)
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)
        try:
            assert call(compile_with(executor, tmp_path))[0] == ["worker"] * 2  # as the caller is set now
        finally:
            torch.set_num_threads(threads)


@torch.library.custom_op("worker_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Is defined where these tests run, and in no worker."""
    return x * 2


twice.register_fake(torch.empty_like)


def calls_twice(x: torch.Tensor) -> torch.Tensor:
    return twice(x) + 1


@pytest.mark.slow
def test_an_op_that_workers_do_not_know_is_compiled_here_and_explained(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FxbucketWarning)
        compiled = compile_with(2, tmp_path, calls_twice)
        origins, notes = call(compiled, calls_twice)
    assert origins == ["compiled"] * 2
    assert all("the worker does not know an op" in note and "twice" in note for note in notes)
    assert "does not know an op" in " ".join(str(compiled.explain()).split())
    assert call(compile_with(2, tmp_path, calls_twice), calls_twice)[0] == ["loaded"] * 2


@pytest.mark.slow
def test_dask_compiles_in_two_processes_that_share_the_store(tmp_path: Path):
    distributed = pytest.importorskip("distributed", reason="needs dask[distributed]")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        origins, notes = call(compile_with(client.get_executor(), tmp_path))
        assert (origins, notes) == (["worker"] * 2, [""] * 2)
    assert len([facts for facts in Store(tmp_path).verify() if not facts.fault]) == 2
    assert call(compile_with(0, tmp_path))[0] == ["loaded"] * 2


INTERRUPTED = """
import signal, sys, torch, fxbucket
# Shells have their background jobs ignore it, and whoever runs the tests may be one.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)

def model(x):
    return torch.relu(x + 1) * 3

if __name__ == "__main__":
    sizes = list(range(4, 60, 4))
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": sizes}, on_miss="eager", workers=2, cache=sys.argv[1])
    print("begin", flush=True)
    compiled(torch.randn(4, 3))
    print("never", flush=True)
"""


@pytest.mark.slow
@linux
@pytest.mark.parametrize("to_all", [False, True], ids=["kill -INT", "Ctrl-C at a terminal"])
def test_an_interrupt_ends_workers_and_keeps_what_is_finished(tmp_path: Path, to_all: bool):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script), str(tmp_path / "store")]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environ, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        until(lambda: len(list((tmp_path / "store").glob("??/*.artifact"))) >= 2, 300)
        below = descendants(process.pid)
        if to_all:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert out == ""
    assert "KeyboardInterrupt" in err
    assert process.returncode != 0
    until(lambda: "popen_loky" not in commands(below), 30)
    until(lambda: "cc1plus" not in commands(below), 30)
    finished = list(Store(tmp_path / "store").verify())
    assert [facts.fault for facts in finished] == [""] * len(finished)
    assert 2 <= len(finished) < 14
