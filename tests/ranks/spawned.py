"""Runs one function on several ranks, each a process of this machine, and gives what each returned."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
WORLD = 2
COLLECTIVE_SECONDS = 60
"""How long a rank waits for another in a collective before it is an error."""


def on_each_rank(function: Callable[..., Any], *args: Any, seconds: float = 300.0, backend: str = "gloo") -> list[Any]:
    """Return what ``function(rank, *args)`` gave on each rank of a process group on loopback; with NCCL each has a GPU.

    Raises:
        RuntimeError: a rank raised an error (its traceback is the text), died, or took too long; none is left running.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(WORLD)]
    ranks = [
        context.Process(target=_rank, args=(rank, port, backend, pipes[rank][1], function, args), daemon=True)
        for rank in range(WORLD)
    ]
    # A new process gets this one's path of modules, and pytest alone puts no folder of the project there.
    sys.path.insert(0, str(ROOT))
    try:
        for process, (_, write) in zip(ranks, pipes, strict=True):
            process.start()
            write.close()
    finally:
        sys.path.remove(str(ROOT))
    deadline, found = time.monotonic() + seconds, []
    try:
        for rank, (read, _) in enumerate(pipes):
            if not read.poll(max(deadline - time.monotonic(), 0)):
                raise RuntimeError(f"rank {rank} did not answer within {seconds:g} seconds")
            try:
                is_right, answer = read.recv()
            except EOFError:
                raise RuntimeError(f"rank {rank} died") from None
            if not is_right:
                raise RuntimeError(f"rank {rank}: {answer}")
            found.append(answer)
    finally:
        for process in ranks:
            process.join(5 if len(found) == WORLD else 0)
            if process.is_alive():
                process.kill()
                process.join()
    return found


def _rank(rank: int, port: int, backend: str, answer: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    torch.set_num_threads(1)
    warnings.filterwarnings(
        "ignore", message="The .grad attribute of a Tensor"
    )  # Dynamo's own, for arguments with a history
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(backend, rank=rank, world_size=WORLD, timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS))
        try:
            answer.send((True, function(rank, *args)))
        finally:
            dist.destroy_process_group()
    except BaseException:
        answer.send((False, traceback.format_exc()))


def outcomes(checks: dict[str, Callable[[int], None]], rank: int) -> dict[str, str]:
    """Run checks one after the other, each with a fresh torch.compile; returns what each failed with, or ``""``."""
    found = {}
    for name, check in checks.items():
        torch.compiler.reset()
        torch.manual_seed(0)
        dist.barrier()
        try:
            check(rank)
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
    return found
