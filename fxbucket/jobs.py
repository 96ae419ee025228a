"""What is to be made for buckets, what was made, and the artifacts that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from fxbucket.artifact import Artifact, Origin
from fxbucket.compilers import Compiled, recorded_conditions
from fxbucket.passes.form import Form
from fxbucket.passes.program import Piece, Program
from fxbucket.uncompiled import runner_of


@dataclass(frozen=True, eq=False)
class Job:
    """One artifact to be made.

    Attributes:
        key: what it is known by; equal keys are one artifact.
        piece: the first piece that needs it.
        program: the piece's program, made concrete for its bucket.
        form: the piece's form; ``None`` where artifacts are not shared.
        is_lasting: whether the artifact also serves equal pieces of later captures.
        local_reason: why it cannot be stored or made elsewhere, or an empty text.
        options: Inductor's configuration for it.
        untuned_key: what it is known by where there is no time for options of pinned sizes; empty without such.
    """

    key: str
    piece: Piece
    program: Program
    form: Form | None
    is_lasting: bool
    local_reason: str
    options: Mapping[str, Any]
    untuned_key: str = ""

    @property
    def title(self) -> str:
        """The piece and its bucket, for people."""
        return f"{self.piece.name} for bucket {self.program.bucket}"


@dataclass(frozen=True, eq=False)
class Made:
    """An artifact that was made for a job; ``note`` tells why it was not stored or sent to a worker."""

    job: Job
    compiled: Compiled
    origin: Origin
    seconds: float
    note: str = ""


@dataclass(frozen=True, eq=False)
class Built:
    """A program's artifacts, in the order of its pieces, and what all of them together rely on."""

    artifacts: tuple[Artifact, ...]
    conditions: tuple[sympy.Basic, ...]


def built(program: Program, plan: Sequence[Job | None], known: Mapping[str, Made]) -> Built:
    """Return the artifacts of a program.

    Args:
        program: made concrete for its bucket.
        plan: the job of each piece; ``None`` for those that run as they are.
        known: what was made, by key.
    """
    artifacts = []
    for piece, job in zip(program.pieces, plan, strict=True):
        if job is None:
            artifacts.append(Artifact(piece.name, runner_of(piece.module), piece.inputs, "as it is"))
            continue
        made = known[job.key]
        inputs = piece.inputs
        if job.form is not None and made.job.form is not None:
            inputs = tuple(piece.inputs[place] for place in job.form.order)
            if not job.form.is_portable:
                # It was compiled as it stood, so it takes its inputs in the order of the piece that it was compiled for.
                inputs = tuple(name for _, name in sorted(zip(made.job.form.order, inputs, strict=True)))
        own = made.job is job
        origin, seconds, note = (made.origin, made.seconds, made.note) if own else ("shared", 0.0, "")
        compiled = made.compiled
        artifacts.append(
            Artifact(piece.name, compiled.call, inputs, origin, seconds, compiled.conditions, note, compiled.direct)
        )
    conditions = [condition for artifact in artifacts for condition in artifact.conditions]
    return Built(tuple(artifacts), tuple(dict.fromkeys([*recorded_conditions(program), *conditions])))
