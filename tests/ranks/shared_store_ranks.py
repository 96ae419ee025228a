"""Ranks that share a store, some of which die: forks of this process, which test_shared_store.py starts and reads."""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx  # noqa: TID251  # once, and not in each fork
from torch.nn.parallel import DistributedDataParallel

import fxbucket
from fxbucket.store import Store
from tests.ranks.spawned import on_each_rank
from tests.training.twins import Stack, origins

SECONDS = 120.0


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1) * 3


class Fork:
    """A process that goes on from here with one function, in a process group of its own, and its answer."""

    def __init__(self, run: Callable[..., Any], *args: Any) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        code = 1
        signal.alarm(int(3 * SECONDS))  # a process that hangs is a test that fails, and soon
        try:
            os.setpgid(0, 0)
            os.write(write, json.dumps(run(*args)).encode())
            code = 0
        finally:
            os._exit(code)

    def answer(self) -> Any:
        with open(self._read, "rb") as held:
            content = held.read()
        os.waitpid(self.pid, 0)
        return json.loads(content)

    def kill(self) -> int:
        """End it, and the compiler that it called; returns the signal that ended it, negative."""
        os.killpg(self.pid, signal.SIGKILL)
        os.close(self._read)
        return -os.WTERMSIG(os.waitpid(self.pid, 0)[1])


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {SECONDS:g} seconds until {what}")
        time.sleep(0.02)


def compiled(folder: Path, sizes: list[int], path: str = "", flock: Any = None) -> list[str]:
    """Compile a function for sizes and return where its artifacts came from, with another compiler or other locks."""
    if path:
        os.environ["PATH"] = f"{path}:{os.environ['PATH']}"
    if flock is not None:
        fcntl.flock = flock
    compiled = fxbucket.compile(function, sizes={"x.shape[0]": sizes}, on_miss="error", cache=folder, workers=0)
    for rows in sizes:
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), function(x))
    return origins(compiled)


def hanging(folder: Path, root: Path, flock: Any = None) -> Fork:
    """Return a rank that hangs in the compilation of its one artifact, and has its lock."""
    (root / "hangs").unlink(missing_ok=True)
    made = Fork(compiled, folder, [4], str(root / "bin"), flock)
    until((root / "hangs").exists, "a rank hangs in its compiler")
    return made


def faults(root: Path) -> dict[str, Any]:
    folder = root / "faults"
    victim = hanging(folder, root)
    waiting, other = Fork(compiled, folder, [4]), Fork(compiled, folder, [4, 8])
    until(lambda: len(list(Store(folder).entries())) == 1, "a rank takes what nobody makes")
    held = len(list(Store(folder).entries()))
    killed = {"while waiting": waiting.kill(), "while compiling": victim.kill()}
    return {
        "made while another held": held, "killed": killed, "went on": other.answer(),
        "came after": Fork(compiled, folder, [4, 8]).answer(),
    }  # fmt: skip


def no_locks(*_: Any) -> None:
    raise OSError(errno.ENOSYS, "this file system has no locks")


def without_locks(root: Path, kind: str, flock: Any) -> dict[str, Any]:
    victim = hanging(root / kind, root, flock)
    beside = Fork(compiled, root / kind, [4], "", flock).answer()
    victim.kill()
    return {"beside one that hangs": beside, "after": Fork(compiled, root / kind, [4]).answer()}


def rank_of_two(rank: int, root: Path) -> tuple[list[str], bool]:
    """Train for a step with DDP on one of two ranks, as torchrun starts them, each with lengths of its own."""
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    torch.manual_seed(0)
    model, eager = (Stack(1, 8) for _ in range(2))
    eager.load_state_dict(copy.deepcopy(model.state_dict()))
    options: dict[str, Any] = {"axes": {"rows": "x.shape[0]"}, "sizes": {"rows": [4, 8]}, "splitting_ops": ["aten::sigmoid"]}
    ours = fxbucket.compile(model, **options, on_miss="error", cache=root / "ranks", workers=0)
    for root_module in (DistributedDataParallel(ours), DistributedDataParallel(eager)):
        for rows in (4, 8) if rank else (8, 4, 8):
            with contextlib.nullcontext() if rows == 8 else root_module.no_sync():
                root_module(torch.full((rows, 8), 0.5 + rank)).square().mean().backward()
            if rank == 0 and rows == 8:
                break
    pairs = zip(model.parameters(), eager.parameters(), strict=True)
    agrees = all(torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-6) for one, other in pairs)  # type: ignore[arg-type]
    return origins(ours), agrees


def main(root: Path) -> dict[str, Any]:
    """Return all that was found, as plain data."""
    torch.set_num_threads(1)
    compiled(root / "warm", [4])  # what each process would ask the compiler once, such as its version
    torch.compiler.reset()
    # Not forks: what trains has threads of its own, and so does gloo.
    answers = on_each_rank(rank_of_two, root)
    return {
        "ranks": [found for found, _ in answers],
        "gradients agree": [agrees for _, agrees in answers],
        **faults(root),
        "locks that do not hold": without_locks(root, "locks that do not hold", lambda *_: None),
        "no locks": without_locks(root, "no locks", no_locks),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    print(json.dumps(main(Path(sys.argv[1]))))
