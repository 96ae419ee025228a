"""What a process that compiles beside the caller is given, what it does, and what it answers.

A task carries a piece's form and nothing else of the model; the answer holds the artifact's bytes, or says that they lie in
the store that both share.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fxbucket.environment import Environment, environment
from fxbucket.inductor import inductor_settings, with_inductor_settings
from fxbucket.passes.errors import FxbucketError, StoreError
from fxbucket.passes.form import Form
from fxbucket.sealed import Stored
from fxbucket.store import Store
from fxbucket.stored import compile_for_others, first_line


@dataclass(frozen=True)
class Task:
    """One artifact to be compiled elsewhere.

    Attributes:
        key: the artifact's key.
        form: the piece; portable.
        options: Inductor's configuration for it.
        settings: every setting of Inductor as it is in the caller.
        environment: what the worker's environment must be.
        threads: torch's threads in the caller, which kernels are generated for.
        precision: the caller's precision of float32 products.
        folder: the store's folder, or ``None`` to have the bytes sent back.
        title: the piece and its bucket, for people.
        caller: the process that wants it.
    """

    key: str
    form: Form
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    environment: Environment
    threads: int
    precision: str
    folder: str | None
    title: str
    caller: str


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        kind: ``"made"``; ``"found"``: it was in the store by then; ``"busy"``: another process is making it;
            ``"unsuitable"``: this process cannot make it; ``"failed"``: the compiler raised an error; ``"lost"``: the
            process died, or was never given the task.
        stored: the artifact that was made, where no store was given.
        note: the reason where there is no artifact.
        seconds: how long the compiler took.
    """

    kind: Literal["made", "found", "busy", "unsuitable", "failed", "lost"]
    stored: Stored | None = None
    note: str = ""
    seconds: float = 0.0


def task_for(key: str, form: Form, options: Mapping[str, Any], now: Environment, folder: str | None, title: str) -> Task:
    """Return the task that makes an artifact in a process like this one; the arguments are the fields of :class:`Task`."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return Task(key, form, dict(options), inductor_settings(), now, threads, precision, folder, title, _this_process())


def compile_task(task: Task) -> Outcome:
    """Compile one task; runs in a worker."""
    if task.caller == _this_process():
        return Outcome("unsuitable", note="the executor runs tasks in threads of this process, which compile one at a time")
    # A worker of another library may run tasks in several threads, but torch's settings belong to the process.
    with _one_at_a_time, _as_in_caller(task):
        different = task.environment.differences(environment(task.options))
        if different:
            return Outcome("unsuitable", note=f"the worker is another kind of process: {'; '.join(different[:3])}")
        try:
            if task.folder is None:
                return _compiled(task, None)
            store = Store(Path(task.folder))
            with store.lock(task.key, wait=False) as held:
                if not held:
                    return Outcome("busy")
                with contextlib.suppress(StoreError):
                    if store.get(task.key) is not None:
                        return Outcome("found")
                return _compiled(task, store)
        except (AttributeError, ImportError) as error:
            return Outcome("unsuitable", note=f"the worker does not know an op or function of it: {error}")
        except StoreError as error:
            return Outcome("unsuitable", note=str(error))
        except (FxbucketError, MemoryError) as error:
            return Outcome("failed", note=first_line(error))


def _compiled(task: Task, store: Store | None) -> Outcome:
    seconds, stored, reason = compile_for_others(task.form, task.options, task.title)
    if stored is None:
        return Outcome("unsuitable", note=reason)
    if store is None:
        return Outcome("made", stored, seconds=seconds)
    store.put(task.key, stored)
    return Outcome("made", seconds=seconds)


@contextlib.contextmanager
def _as_in_caller(task: Task) -> Iterator[None]:
    """While the context is open, torch and Inductor are set as they are in the caller."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(task.threads)
    torch.set_float32_matmul_precision(task.precision)
    try:
        with with_inductor_settings(task.settings):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


_one_at_a_time = threading.Lock()

_LOADED_AS = uuid.uuid4().hex


def _this_process() -> str:
    """Return what no other process is known by: neither one of another machine, nor a fork of this one."""
    return f"{os.getpid()} {_LOADED_AS}"
