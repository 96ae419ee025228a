"""Runs a function in a process of its own with fresh caches, so that nothing of another run helps it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_new_process(function: Callable[..., Any], *arguments: Any, store: Path | None = None) -> Any:
    """Return what a function of a module gives in a new process.

    Args:
        function: what to run; it is imported by its name.
        arguments: what JSON can carry.
        store: fxbucket's cache folder; a fresh one by default, as Inductor's always is.

    Raises:
        RuntimeError: the process failed; its text is what it wrote to stderr.
    """
    module = function.__module__
    if module == "__main__":
        # `python -m` has a module under a name that says nothing to another process.
        module = sys.modules[module].__spec__.name
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
            "FXBUCKET_CACHE_DIR": str(store or Path(folder, "store")),
        }
        code = f"import sys, json; from {module} import {function.__name__} as function; "
        code += "print(json.dumps(function(*json.loads(sys.argv[1]))))"
        command = [sys.executable, "-W", "ignore", "-c", code, json.dumps(arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])
