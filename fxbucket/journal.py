"""What is told of a captured graph while it is cut and compiled: to Python's logging, torch's trace, a debug folder.

Nothing here is on the way of a call that a bucket serves.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from fxbucket.artifact import Artifact
from fxbucket.debug_folder import DebugFolder, debug_root, decisions_text, safe_name
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.errors import FxbucketWarning
from fxbucket.passes.plain_data import program_data
from fxbucket.passes.program import Program, Step
from fxbucket.torch_compat import capture_id, trace_artifact

_capture = logging.getLogger("fxbucket.capture")
_compile = logging.getLogger("fxbucket.compile")
_dispatch = logging.getLogger("fxbucket.dispatch")

_unwritable: set[str] = set()
"""Debug folders that failed in this process; each is warned of once."""


class Journal:
    """Tells what becomes of one captured graph.

    Attributes:
        number: the graph's number among those of its model.
        folder: where texts go, if they were asked for.
    """

    def __init__(self, number: int = 0, debug_dir: str | os.PathLike[str] | None = None) -> None:
        self.number = number
        self.folder: DebugFolder | None = None
        self._capture_id = capture_id()
        self._root = debug_root(debug_dir)
        self._warned_uncompiled = False
        if self._root is not None and str(self._root) not in _unwritable:
            root = self._root
            self._guarded(lambda: setattr(self, "folder", DebugFolder(root)))

    def captured(self, program: Program) -> None:
        """Tell of a graph that Dynamo has just captured."""
        axes = ", ".join(f"{axis.name} in {axis.range}" for axis in program.axes) or "no axis"
        num_nodes = sum(node.op not in ("placeholder", "output") for node in program.capture.module.graph.nodes)
        _capture.info("graph %d captured: %d nodes, %s", self.number, num_nodes, axes)
        for guard in program.capture.guards:
            _capture.debug("graph %d needs %s", self.number, guard.condition)
        self._write(lambda folder: folder.write_step("captured", program))
        self._trace("captured", "string", lambda: str(program))

    def step(self, step: Step) -> None:
        """Tell what a pass did; an observer of a pipeline."""
        log = logging.getLogger(f"fxbucket.{step.name}")
        if step.name == "split":
            boundaries = sum(piece.is_boundary for piece in step.after.pieces)
            log.info("graph %d: %d pieces, %d of them boundaries", self.number, len(step.after.pieces), boundaries)
            for piece in step.after.pieces:
                log.debug("graph %d: %s, %d nodes: %s", self.number, piece.name, len(piece.body), piece.reason)
        elif step.name == "admit":
            for decision in step.after.decisions:
                said = "admitted" if decision.admitted else f"refused: {decision.reason}"
                log.info("graph %d: bucket %s %s", self.number, decision.bucket, said)
        log.debug("graph %d: %s took %.3f s", self.number, step.arguments, step.seconds)
        self._write(lambda folder: folder.write_step(step.name, step.after))

    def prepared(self, program: Program, source: str) -> None:
        """Tell of a graph that is cut and whose buckets are decided; ``source`` is the look-up in front of them."""
        self._write(lambda folder: folder.write("decisions.txt", decisions_text(program)))
        self._write(lambda folder: folder.write("dispatch.py", source))
        self._trace("split", "json", lambda: _json(program_data(program, nodes=False)))

    def compiling(self, bucket: Bucket, num_pieces: int) -> None:
        """Tell that a bucket's compilation begins."""
        _compile.info("graph %d: compiling %s, %d pieces", self.number, bucket, num_pieces)

    def compiled(
        self,
        bucket: Bucket,
        program: Program,
        source: str,
        seconds: float,
        artifacts: Sequence[Artifact] = (),
        note: str = "",
    ) -> None:
        """Tell of a bucket that is ready.

        Args:
            bucket: what it serves.
            program: made concrete for the bucket; symbolic where that failed.
            source: the function that runs its pieces.
            seconds: how long it took in all.
            artifacts: what runs each piece.
            note: why it runs uncompiled, where it does.
        """
        for artifact in artifacts:
            if artifact.origin != "as it is":
                told = (self.number, bucket, artifact.piece, artifact.origin, artifact.seconds)
                _compile.debug("graph %d: %s %s %s, %.3f s", *told)
        _compile.info("graph %d: %s ready after %.3f s%s", self.number, bucket, seconds, ", uncompiled" if note else "")
        self._write(lambda folder: folder.write_bucket(bucket, program, source, note))
        self._trace(f"program_{safe_name(str(bucket))}", "string", lambda: f"{note or program}\n\n{source}")

    def explained(self, facts: Callable[[], Any]) -> None:
        """Tell what ``explain()`` says of the graph, as plain data, to torch's trace."""
        self._trace("explain", "json", lambda: _json(facts()))

    def missed(self, sizes: str, served: str) -> None:
        """Tell of a call that no bucket serves, and how it is served."""
        _dispatch.debug("graph %d: no bucket for %s; %s", self.number, sizes, served)

    def unpadded(self, reason: str) -> None:
        """Tell why calls are not padded though that was asked for."""
        _dispatch.warning("graph %d: calls are not padded: %s", self.number, reason)

    def uncompiled(self, reason: str) -> None:
        """Tell of a call that runs uncompiled though that was not asked for: once as a warning, then for debugging."""
        level = logging.DEBUG if self._warned_uncompiled else logging.WARNING
        self._warned_uncompiled = True
        _dispatch.log(level, "graph %d: a call runs uncompiled: %s", self.number, reason)

    def _trace(self, name: str, encoding: str, text: Callable[[], str]) -> None:
        trace_artifact(f"fxbucket_{name}", encoding, text, self._capture_id)

    def _write(self, write: Callable[[DebugFolder], None]) -> None:
        folder = self.folder
        if folder is not None:
            self._guarded(lambda: write(folder))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do something with the debug folder; where it fails, warn once and write no more."""
        try:
            action()
        except Exception as error:  # nothing that is written for people to look at may break their call
            self.folder = None
            if str(self._root) not in _unwritable:
                _unwritable.add(str(self._root))
                warnings.warn(
                    f"debug folder {str(self._root)!r} cannot be written ({type(error).__name__}: {error}), so nothing more "
                    f"goes there; name another one by debug_dir or FXBUCKET_DEBUG_DIR.",
                    FxbucketWarning,
                    stacklevel=2,
                )


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, default=str)
