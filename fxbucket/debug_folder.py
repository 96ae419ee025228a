"""A folder of texts for each captured graph, on request: every step, and what each bucket compiles and runs.

``debug_dir`` among the options asks for it, or the environment variable ``FXBUCKET_DEBUG_DIR``.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from pathlib import Path

from fxbucket.passes.buckets import Bucket
from fxbucket.passes.program import Program
from fxbucket.passes.text import axis_namer, condition_text, piece_text

VARIABLE = "FXBUCKET_DEBUG_DIR"
"""The environment variable that names the folder where no option does."""

_LONGEST = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")


def debug_root(option: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder that was asked for: the option, else the environment variable, else ``None``."""
    asked = option if option is not None else os.environ.get(VARIABLE) or None
    return Path(asked) if asked is not None else None


def safe_name(text: str) -> str:
    """Return a text as a file name for every system; texts that differ stay different, but for upper and lower case.

    Put something before it: some names (``con``, ``nul``) belong to the system on Windows.
    """
    plain = _UNSAFE.sub("_", text)
    if text and plain == text and len(text) <= _LONGEST and not text.endswith("."):
        return text
    # What was replaced may be all that told two texts apart.
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{plain[:_LONGEST].strip('_.')}_{digest}" if plain.strip("_.") else digest


class DebugFolder:
    """The folder of one captured graph.

    Attributes:
        path: the folder.
    """

    def __init__(self, root: Path) -> None:
        """Make the first ``graph_NNNN`` in ``root`` that is free, so that processes may share it.

        Raises:
            OSError: it cannot be made.
        """
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            self.path = root / f"graph_{number:04}"
            try:
                self.path.mkdir()
            except FileExistsError:
                continue
            break
        self._num_steps = self._num_buckets = 0

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder; it appears whole or not at all."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(text.rstrip("\n") + "\n", encoding="utf-8", errors="backslashreplace")
        unfinished.replace(path)

    def write_step(self, name: str, program: Program) -> None:
        """Write what came out of a step: ``0_captured.txt``, ``1_split.txt``."""
        self.write(f"{self._num_steps}_{safe_name(name)}.txt", str(program))
        self._num_steps += 1

    def write_bucket(self, bucket: Bucket, program: Program, source: str, note: str = "") -> None:
        """Write what was compiled for a bucket: every piece, and the function that runs them."""
        folder = f"bucket_{self._num_buckets}_{safe_name(str(bucket))}"
        self._num_buckets += 1
        name = axis_namer(program.axes)
        for number, piece in enumerate(program.pieces):
            self.write(f"{folder}/{number}_{safe_name(piece.name)}.txt", piece_text(piece, name))
        if source:
            self.write(f"{folder}/bucket.py", source)
        if note:
            self.write(f"{folder}/note.txt", note)


def decisions_text(program: Program) -> str:
    """Return what the capture is valid for: axes, guards, and which buckets were admitted or why not; a line each."""
    lines = ["axes"]
    for axis in program.axes:
        read_by = ", ".join(axis.expressions)
        lines.append(f"  {axis.name}: {axis.range}, {axis.hint} when captured; read by {read_by}; torch's {axis.expression}")
    lines.append("guards")
    for guard in program.capture.guards:
        origin = f"  # {guard.origin}" if guard.origin else ""
        lines.append(f"  {condition_text(guard.condition, program.axes)}{origin}")
    lines.append("buckets")
    lines += [
        f"  {decision.bucket}: {'admitted' if decision.admitted else f'refused: {decision.reason}'}"
        for decision in program.decisions
    ]
    return "\n".join(lines)
