"""An artifact of Inductor to and from the bytes of the store."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fxbucket.artifact import PieceCall
from fxbucket.compilers import Compiled, compile_form
from fxbucket.inductor import inductor_compile, inductor_folder, inductor_load, inductor_save, libraries_in
from fxbucket.passes.conditions import condition_from_text, condition_to_text
from fxbucket.passes.form import Form
from fxbucket.process_folder import process_folder
from fxbucket.sealed import Stored


def compile_to_store(form: Form, options: Mapping[str, Any], title: str) -> tuple[Compiled, Stored | None, str]:
    """Compile a form with Inductor in a folder of its own.

    Returns:
        What was compiled, the same as bytes, and an empty text; where it cannot be written, ``None`` and the reason.

    Raises:
        CompileError: the compiler failed.
    """
    return _compiled_in(_new_folder(), form, options, title)


def compile_for_others(form: Form, options: Mapping[str, Any], title: str) -> tuple[float, Stored | None, str]:
    """Compile a form like :func:`compile_to_store`, in a process that will not run it: no file of it is kept.

    Returns:
        The compiler's seconds, what was compiled as bytes, and an empty text or the reason why there are no bytes.

    Raises:
        CompileError: the compiler failed.
    """
    with tempfile.TemporaryDirectory(prefix="fxbucket-", ignore_cleanup_errors=True) as folder:
        compiled, stored, reason = _compiled_in(Path(folder), form, options, title)
    return compiled.seconds, stored, reason


def _compiled_in(folder: Path, form: Form, options: Mapping[str, Any], title: str) -> tuple[Compiled, Stored | None, str]:
    with inductor_folder(folder):
        compiled = compile_form(form, lambda module, inputs: inductor_compile(module, inputs, dict(options)), title)
        path = folder / "artifact"
        try:
            inductor_save(compiled.call, path)
        except Exception as error:  # torch says in many ways that something cannot be saved
            return compiled, None, f"torch cannot save it: {first_line(error)}"
        libraries = libraries_in(folder)
    about = {
        "title": title,
        "seconds": round(compiled.seconds, 3),
        "conditions": [condition_to_text(condition) for condition in compiled.conditions],
    }
    return compiled, Stored(path.read_bytes(), libraries, about), ""


def load_stored(stored: Stored) -> Compiled:
    """Return the artifact that these bytes hold, without asking a compiler.

    Raises:
        Exception: they hold no artifact of this torch; torch raises several kinds.
    """
    conditions = tuple(condition_from_text(text) for text in stored.about.get("conditions", ()))
    seconds = float(stored.about.get("seconds", 0.0))
    folder = _new_folder()
    for name, content in stored.libraries.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    path = folder / "artifact"
    path.write_bytes(stored.payload)
    call: PieceCall = inductor_load(path, folder)
    return Compiled(call, seconds, conditions)


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the head of its message: enough for a note."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextlib.contextmanager
def compiling_apart() -> Iterator[None]:
    """While the context is open, Inductor finds nothing that torch's own caches keep, and leaves nothing there."""
    with inductor_folder(_new_folder()):
        yield


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=process_folder("artifacts")))
