"""What fxbucket needs on a machine, what is there, and what to do about the rest."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich import box
from rich.markup import escape
from rich.table import Table

from fxbucket.passes.errors import UnsupportedTorchError
from fxbucket.passes.torch_version import OLDEST_TORCH, check_torch_version
from fxbucket.torch_compat import backend_names

State = Literal["ok", "optional", "needed"]

_NAMED = ("inductor", "aot_eager", "eager")


@dataclass(frozen=True)
class Check:
    """One thing that fxbucket stands on.

    Attributes:
        name: the thing.
        state: ``"ok"``, or how much its absence matters.
        found: what is there.
        mend: what to do, or an empty text.
    """

    name: str
    state: State
    found: str
    mend: str = ""


def examine() -> tuple[Check, ...]:
    """Return what this machine has, in the order in which a call comes to need it."""
    checks: tuple[Callable[[], Check], ...] = (
        _python, _torch, _compilers, _cpp_compiler, _python_headers, _gpu, _dot, _transformers,
    )  # fmt: skip
    return tuple(check() for check in checks)


def table_of(checks: Iterable[Check]) -> Table:
    """Return checks as a table for the terminal."""
    words = {"ok": "[green]ok[/green]", "optional": "[yellow]missing[/yellow]", "needed": "[red]MISSING[/red]"}
    table = Table("", "what", box=box.SIMPLE)
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for check in checks:
        table.add_row(words[check.state], check.name, escape(check.found), escape(check.mend))
    return table


def _python() -> Check:
    return Check("Python", "ok", f"{sys.version.split()[0]}, {sys.executable}")


def _torch() -> Check:
    try:
        check_torch_version()
    except UnsupportedTorchError as error:
        return Check("torch", "needed", torch.__version__, str(error))
    return Check("torch", "ok", f"{torch.__version__}; fxbucket supports {'.'.join(map(str, OLDEST_TORCH))} and newer")


def _compilers() -> Check:
    names = backend_names()
    if "fxbucket" not in names:
        found = "torch.compile knows no backend 'fxbucket'"
        return Check("compilers", "optional", found, "install the package, do not only put it on sys.path: pip install -e .")
    others = len({*names} - {"fxbucket", *_NAMED})
    return Check("compilers", "ok", f"{', '.join(_NAMED)}, and {others} other backends of torch.compile")


def _cpp_compiler() -> Check:
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    path = shutil.which(wanted)
    if path is None:
        mend = "install it (apt-get install g++, dnf install gcc-c++, xcode-select --install), or name another with CXX"
        return Check("C++ compiler", "needed", f"no {wanted}: compiler='inductor' fails for the CPU", mend)
    return Check("C++ compiler", "ok", _first_line(path, "--version"))


def _python_headers() -> Check:
    header = Path(sysconfig.get_path("include", scheme="posix_prefix")) / "Python.h"
    if header.exists():
        return Check("Python's headers", "ok", str(header.parent))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    mend = f"apt-get install python{version}-dev, dnf install python3-devel"
    return Check("Python's headers", "needed", f"no {header}: compiler='inductor' fails for the CPU", mend)


def _gpu() -> Check:
    if not torch.cuda.is_available():
        return Check("GPU", "ok", "none; everything runs on the CPU")
    return Check("GPU", "ok", ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())))


def _dot() -> Check:
    path = shutil.which("dot")
    if path is None:
        return Check("Graphviz's dot", "optional", "none: no drawings", "apt-get install graphviz, brew install graphviz")
    return Check("Graphviz's dot", "ok", _first_line(path, "-V"))


def _transformers() -> Check:
    if importlib.util.find_spec("transformers") is None:
        return Check("transformers", "optional", "none: no `fxbucket demo`", "pip install transformers")
    return Check("transformers", "ok", "found, for `fxbucket demo`")


def _first_line(program: str, argument: str) -> str:
    """Return what a program says of itself, with the place where it was found."""
    try:
        said = subprocess.run([program, argument], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}, which does not run: {error}"
    lines = (said.stdout or said.stderr).strip().splitlines()
    return f"{program}: {lines[0]}" if lines else program
