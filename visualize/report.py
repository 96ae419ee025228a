"""What the script of a page reads: texts and drawings of every step, piece and bucket, each distinct one once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fxbucket.passes.errors import DrawingError
from fxbucket.passes.program import Piece, Program, Step
from fxbucket.passes.text import piece_text, program_text
from fxbucket.visualize.diff import diff_text
from fxbucket.visualize.drawings import Drawings
from fxbucket.visualize.explained import BucketFacts, Explained, GraphFacts, kind_of
from fxbucket.visualize.fold import Fold
from fxbucket.visualize.labels import without_addresses, without_folders

ALL_SIZES = "all sizes"
"""What a page calls the program before it is made concrete."""

Data = dict[str, Any]
"""A JSON object."""

NOTHING = -1
"""Stands in the place of a number where there is no text or no drawing."""


@dataclass(frozen=True)
class Report:
    """What the script of a page reads.

    Attributes:
        structure: graphs with their buckets, and programs with their pieces; a number stands for a text or a drawing.
        texts: every distinct text.
        drawings: every distinct drawing, as SVG.
        drawing_error: why there is no drawing, or an empty text.
    """

    structure: Data
    texts: tuple[str, ...]
    drawings: tuple[str, ...]
    drawing_error: str


def report_of(subject: Explained, *, fold: Fold, source_links: bool, timeout: float) -> Report:
    """Return what a page shows of a subject.

    Args:
        subject: what was explained.
        fold: as for :func:`~fxbucket.visualize.save_svg`.
        source_links: whether paths of this machine may stand in it.
        timeout: seconds that each layout may take.
    """
    return _Writer(fold, source_links, timeout).report(subject)


class _Writer:
    """Collects texts and drawings; lives for one report.

    Programs and pieces are known by their identity: most steps hand the pieces of the step before on as they are. The
    subject keeps all of them alive meanwhile.
    """

    def __init__(self, fold: Fold, source_links: bool, timeout: float) -> None:
        self._source_links = source_links
        self._drawings = Drawings(fold, source_links, timeout)
        self._texts: dict[str, int] = {}
        self._programs: list[Data] = []
        self._number_of: dict[object, int] = {}
        self._pieces: dict[int, Data] = {}

    def report(self, subject: Explained) -> Report:
        graphs = [self._graph(number, graph) for number, graph in enumerate(subject.graphs)]
        drawings: list[str] = []
        problem = ""
        try:
            drawings = self._drawings.draw()
        except DrawingError as error:
            problem = str(error)
        structure = {"graphs": graphs, "programs": self._programs}
        return Report(structure, tuple(self._texts), tuple(drawings), problem)

    def _shown(self, text: str) -> str:
        text = without_addresses(text)
        return text if self._source_links else without_folders(text)

    def _text(self, text: str) -> int:
        """Return the number of a text."""
        shown = self._shown(text)
        return self._texts.setdefault(shown, len(self._texts)) if shown else NOTHING

    def _graph(self, number: int, graph: GraphFacts) -> Data:
        bucket = graph.program.bucket
        whole: Data = {
            "label": ALL_SIZES if bucket is None else str(bucket),
            "state": "symbolic" if bucket is None else "made concrete",
            "note": "",
            "function": NOTHING,
            "steps": self._steps(graph.program),
            "artifacts": {},
        }
        labels = unique([one.bucket for one in graph.buckets])
        buckets = [self._bucket(label, one, graph) for label, one in zip(labels, graph.buckets, strict=True)]
        return {
            "title": f"graph {number}",
            "refusal": self._shown(graph.refusal),
            "dispatch": self._text(graph.source),
            "buckets": [whole, *buckets],
        }

    def _bucket(self, label: str, bucket: BucketFacts, graph: GraphFacts) -> Data:
        return {
            "label": label,
            "state": bucket.state,
            "note": self._shown(bucket.reason),
            "function": self._text(graph.bucket_sources.get(bucket.bucket, "")),
            "steps": self._steps(bucket.program) if bucket.program is not None else [],
            "artifacts": {
                artifact.name: {"origin": artifact.origin, "code": self._text(artifact.code)}
                for artifact in bucket.artifacts
            },
        }

    def _steps(self, program: Program) -> list[Data]:
        first = program.trail[0].before if program.trail else program
        start: Data = {
            "name": "program" if first.is_split else "capture",
            "arguments": "",
            "seconds": None,
            "findings": [],
            "program": self._program(first),
            "changes": NOTHING,
        }
        return [start, *map(self._step, program.trail)]

    def _step(self, step: Step) -> Data:
        before, after = self._program(step.before), self._program(step.after)
        changed = _graph_of(step.before) != _graph_of(step.after)
        return {
            "name": step.name,
            "arguments": self._shown(step.arguments),
            "seconds": step.seconds,
            "findings": [self._shown(str(finding)) for finding in step.findings],
            "program": after,
            "changes": self._changes(before, after, step) if changed else NOTHING,
        }

    def _changes(self, before: int, after: int, step: Step) -> int:
        key = ("changes", before, after)
        if key not in self._number_of:
            self._number_of[key] = self._text(diff_text(step.before, step.after))
        return self._number_of[key]

    def _program(self, program: Program) -> int:
        """Return the number of a program; those that read the same have one."""
        if id(program) not in self._number_of:
            self._number_of[id(program)] = self._written(program)
        return self._number_of[id(program)]

    def _written(self, program: Program) -> int:
        graph, code = _graph_of(program), self._text(program_text(program))
        if (graph, code) not in self._number_of:
            if graph not in self._number_of:
                self._number_of[graph] = self._drawings.program(program)
            self._number_of[graph, code] = len(self._programs)
            pieces = [self._piece(piece) for piece in program.pieces]
            self._programs.append({"code": code, "drawing": self._number_of[graph], "pieces": pieces})
        return self._number_of[graph, code]

    def _piece(self, piece: Piece) -> Data:
        if id(piece) not in self._pieces:
            drawing, drawn_for = self._drawings.piece(piece)
            self._pieces[id(piece)] = {
                "name": piece.name,
                "kind": kind_of(piece),
                "reason": self._shown(str(piece.reason)),
                "nodes": len(piece.body),
                "code": self._text(piece_text(piece)),
                "drawing": drawing,
                "drawn_for": drawn_for,
            }
        return self._pieces[id(piece)]


def _graph_of(program: Program) -> object:
    """Return what two programs share when their drawings are the same, without reading their nodes."""
    pieces = tuple(id(piece) for piece in program.pieces)
    return id(program.capture), pieces, program.is_split, str(program.bucket), str(program.outputs)


def unique(labels: list[str]) -> list[str]:
    """Return labels of which no two are equal: a second ``dynamic`` is ``dynamic (2)``."""
    counts: dict[str, int] = {}
    found = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        found.append(label if counts[label] == 1 else f"{label} ({counts[label]})")
    return found
