"""The line of a model's Python that a node comes from."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass, replace
from urllib.parse import quote

import torch
from torch import fx

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>.*)')
_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep


@dataclass(frozen=True)
class SourceLine:
    """The line of a model's Python that a node comes from."""

    path: str
    line: int
    function: str
    code: str

    @property
    def url(self) -> str:
        """A link to the line, empty where the code lies in no file."""
        path = self.path.replace(os.sep, "/")
        if not os.path.isabs(self.path):
            return ""
        return f"file://{quote(path if path.startswith('/') else '/' + path)}#L{self.line}"

    def without_folder(self) -> SourceLine:
        """Return the line with the name of its file alone."""
        return replace(self, path=os.path.basename(self.path))

    def __str__(self) -> str:
        where = f"{self.path}:{self.line} in {self.function}"
        return f"{where}\n    {self.code}" if self.code else where


def source_line(node: fx.Node) -> SourceLine | None:
    """Return the innermost line of a node's stack trace that is not torch's own; ``None`` where it has no trace.

    The function that fxbucket generates around a model is nobody's source, and has another name in every capture.
    """
    return _innermost(str(node.meta.get("stack_trace") or ""))


@functools.lru_cache(maxsize=8192)  # The nodes of a line share its trace, and so does each program that a pass makes.
def _innermost(trace: str) -> SourceLine | None:
    lines = trace.splitlines()
    found: list[SourceLine] = []
    for position, line in enumerate(lines):
        frame = _FRAME.search(line)
        if frame is None or frame["path"].startswith("<fxbucket "):
            continue
        after = lines[position + 1].strip() if position + 1 < len(lines) else ""
        code = "" if _FRAME.search(after) else after
        found.append(SourceLine(frame["path"], int(frame["line"]), frame["function"], code))
    users = [line for line in found if not line.path.startswith(_TORCH_FOLDER)]
    return (users or found)[-1] if found else None
