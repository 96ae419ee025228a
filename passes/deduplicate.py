"""Deduplicate: pieces that are the same to a compiler share one artifact; this pass says which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fxbucket.passes.errors import PassError, PreconditionError
from fxbucket.passes.form import form_of
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Program


@dataclass(frozen=True)
class Deduplicate(BasePass):
    """Find the pieces that are equal up to names, parameters and the order of their arguments.

    Before: 32 layers, each a piece. After: ``program.same`` maps each repeated piece to the first one that is equal to it.
    Nothing else changes; compilation makes one artifact for all of them. Pieces that run as they are do not count.
    """

    name: ClassVar[str] = "deduplicate"

    def requires(self, program: Program) -> None:
        if not program.is_split:
            raise PreconditionError("deduplicate: the program is not split; run Split first (Split() keeps one piece).")

    def run(self, program: Program) -> Program:
        first: dict[str, str] = {}
        same: dict[str, str] = {}
        compiled = [piece for piece in program.pieces if piece.is_compiled]
        for piece in compiled:
            known = first.setdefault(form_of(piece, program).digest, piece.name)
            if known != piece.name:
                same[piece.name] = known
        done = replace(program, same=same)
        if not same:
            return done
        counted = f"{len(compiled)} compiled pieces are {len(first)} different ones"
        return done.with_findings(Finding("program", counted), *_findings(same))

    def ensures(self, before: Program, after: Program) -> None:
        for repeated, known in after.same.items():
            if known in after.same or not after.piece(known).is_compiled or not after.piece(repeated).is_compiled:
                raise PassError(f"deduplicate: {repeated} stands for {known}, which stands for another; please report it.")


def _findings(same: Mapping[str, str]) -> list[Finding]:
    repeated: dict[str, list[str]] = {}
    for piece, known in same.items():
        repeated.setdefault(known, []).append(piece)
    return [Finding(known, f"also serves {', '.join(pieces)}") for known, pieces in repeated.items()]
