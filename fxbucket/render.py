"""One step of a program as a file: a picture, DOT, text, JSON, or a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fxbucket.passes.admit import Admit
from fxbucket.passes.bound import Bound
from fxbucket.passes.buckets import Bucket, Extent
from fxbucket.passes.concretize import Concretize
from fxbucket.passes.errors import OptionError, nearest
from fxbucket.passes.pipeline import Pipeline
from fxbucket.passes.plain_data import piece_data, program_data
from fxbucket.passes.program import Piece, Program, Step
from fxbucket.passes.text import axis_namer
from fxbucket.passes.verify import Verify
from fxbucket.visualize import diff_text, dot_text, save_diff_svg, save_page, svg_text
from fxbucket.visualize.svg import write_text

Format = Literal["svg", "dot", "text", "html", "json"]
SUFFIXES: dict[str, Format] = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".txt": "text", ".html": "html", ".json": "json"}

CAPTURED = "captured"


@dataclass(frozen=True)
class View:
    """What is shown, and how.

    Attributes:
        step: the name or number of a step of the trail; empty for the last.
        bucket: the sizes and ranges that the program is made for; ``None`` for the symbolic program, or where ``step`` asks
            for a concrete one for the first bucket that was admitted.
        piece: the name or number of one piece; empty for all of the program.
        against: another step to compare with; empty for none.
        theme: ``"light"`` or ``"dark"``.
        fold: see :func:`fxbucket.visualize.save_svg`.
        source_links: link ops to their source lines.
    """

    step: str = ""
    bucket: Mapping[str, Extent] | None = None
    piece: str = ""
    against: str = ""
    theme: Literal["light", "dark"] = "light"
    fold: bool | Literal["auto"] = "auto"
    source_links: bool = True


def format_for(asked: Format | None, out: Path | None) -> Format:
    """Return the format that was asked for, else the one that the file's name ends in, else text.

    Raises:
        OptionError: the name ends in something else.
    """
    if asked is not None:
        return asked
    if out is None:
        return "text"
    if out.suffix.lower() not in SUFFIXES:
        raise OptionError(f"--out {str(out)!r} does not say the format; {nearest(out.suffix, SUFFIXES)}, or give --format.")
    return SUFFIXES[out.suffix.lower()]


def render(program: Program, view: View, kind: Format, out: Path | None) -> None:
    """Write one view of a program to a file, or to standard output where there is none.

    Raises:
        OptionError: there is no such step, bucket or piece, or the format cannot show it.
        DrawingError: there is no picture of it, or the file cannot be written.
    """
    steps = steps_of(program, view)
    subject = _chosen(steps, view.step, view.piece)
    if view.against:
        _render_difference(_chosen(steps, view.against, view.piece), subject, view, kind, out)
    elif kind == "html":
        if out is None:
            raise OptionError("--format html writes a file; name it with --out page.html.")
        if view.piece:
            raise OptionError("--piece with --format html is not possible: a page shows all pieces of its program.")
        shown = _program_at(steps, view.step)
        save_page(shown, out, theme=view.theme, fold=view.fold, source_links=view.source_links)
    else:
        _emit(_text(subject, view, kind), out)


def steps_of(program: Program, view: View) -> list[tuple[str, Program]]:
    """Return every step by name: what was captured, each pass of the trail, and those that make it concrete if asked for."""
    trail = list(program.trail)
    concrete = ("concretize", "bound", "verify")
    asked = {view.step, view.against} & {*concrete, str(len(trail) + 1), str(len(trail) + 2)}
    if (view.bucket is not None or asked) and program.is_split:
        bucket = _bucket(program, view.bucket)
        sizing = Bound(bucket) if bucket.ranges else Concretize(bucket, remaining="keep")
        trail += Pipeline((sizing, Verify()))(program).trail[len(trail) :]
    first = trail[0].before if trail else program
    return [(CAPTURED, first), *((step.name, _with_trail(trail, number)) for number, step in enumerate(trail))]


def _with_trail(trail: Sequence[Step], number: int) -> Program:
    return replace(trail[number].after, trail=tuple(trail[: number + 1]))


def _bucket(program: Program, asked: Mapping[str, Extent] | None) -> Bucket:
    if asked is None:
        admitted = [decision.bucket for decision in program.decisions if decision.admitted]
        if not admitted:
            raise OptionError("no bucket to make the program concrete for; give --bucket tokens=512, or --sizes.")
        return admitted[0]
    names = {program.capture.axis(name).name: size for name, size in asked.items()}
    (decision,) = Admit((Bucket.of(names),), strict=True)(program).decisions
    return decision.bucket


def _chosen(steps: list[tuple[str, Program]], step: str, piece: str) -> Program | Piece:
    program = _program_at(steps, step)
    if not piece:
        return program
    names = [found.name for found in program.pieces]
    if not names:
        raise OptionError(f"--piece {piece!r}: this step has no pieces yet; choose a later one with --step.")
    if piece.isdigit() and int(piece) < len(names):
        return program.pieces[int(piece)]
    if piece not in names:
        raise OptionError(f"--piece {piece!r} is not there; {nearest(piece, names)}, or a number below {len(names)}.")
    return program.piece(piece)


def _program_at(steps: list[tuple[str, Program]], step: str) -> Program:
    if not step:
        return steps[-1][1]
    if step.isdigit() and int(step) < len(steps):
        return steps[int(step)][1]
    found = [program for name, program in steps if name == step]
    if not found:
        names = [name for name, _ in steps]
        raise OptionError(f"step {step!r} is not there; {nearest(step, names)}, or a number below {len(names)}.")
    return found[-1]


def _text(subject: Program | Piece, view: View, kind: Format) -> str:
    if kind == "svg":
        return svg_text(subject, theme=view.theme, fold=view.fold, source_links=view.source_links)
    if kind == "dot":
        return dot_text(subject, theme=view.theme, fold=view.fold, source_links=view.source_links)
    if kind == "json":
        data: Any = piece_data(subject, axis_namer(subject.axes)) if isinstance(subject, Piece) else program_data(subject)
        return json.dumps(data, indent=1)
    return str(subject)


def _render_difference(before: Program | Piece, after: Program | Piece, view: View, kind: Format, out: Path | None) -> None:
    if kind == "text":
        _emit(diff_text(before, after), out)
    elif kind == "svg" and out is not None:
        save_diff_svg(before, after, out, theme=view.theme, fold=view.fold)
    elif kind == "svg":
        raise OptionError("--against draws into a file; name it with --out difference.svg.")
    else:
        raise OptionError(f"--against with --format {kind} is not possible; a difference is text or svg.")


def _emit(text: str, out: Path | None) -> None:
    if out is not None:
        write_text(out, text.rstrip("\n") + "\n")
        return
    # A name in a label may hold what the terminal's encoding does not.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.rstrip("\n").encode(encoding, "backslashreplace").decode(encoding))
