"""Two programs, or two steps of one, side by side: in words, and as one drawing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from fxbucket.passes.program import Piece, Program
from fxbucket.visualize.differences import Difference, Facts, differences
from fxbucket.visualize.draw import facts_of, sketch_of
from fxbucket.visualize.fold import Fold
from fxbucket.visualize.labels import shorten, without_addresses
from fxbucket.visualize.sketch import Arrow, Cluster, Mark, Member, Sketch
from fxbucket.visualize.svg import DEFAULT_TIMEOUT, svg_of, write_text
from fxbucket.visualize.theme import ThemeName, theme_named

_MARKS: tuple[Mark, ...] = ("changed", "gone", "new")
_MAX_NOTES = 3


def diff_text(before: Program | Piece, after: Program | Piece) -> str:
    """Return in words what differs between two programs: pieces, then nodes, grouped by piece.

    Args:
        before: a program or a piece, for example ``step.before``.
        after: another, for example ``step.after``.

    Raises:
        OptionError: one of them is neither a program nor a piece, or they are not two of a kind.
    """
    found = differences(before, after)
    pieces = list(_piece_changes(before, after))
    if not found and not pieces:
        return "no difference"
    lines = [f"before: {_headline(before)}", f"after:  {_headline(after)}", _counted(found), *pieces]
    names = {piece.name: number for number, piece in enumerate(_pieces(before))}
    names = {piece.name: number for number, piece in enumerate(_pieces(after))} or names
    ordered = sorted(found, key=lambda one: names.get(one.node.place, -1))
    for place, group in groupby(ordered, key=lambda one: one.node.place):
        lines.append(place or "program")
        lines += [f"  {one.node.name}: {'; '.join(one.words)}" for one in group]
    return "\n".join(lines)


def save_diff_svg(
    before: Program | Piece,
    after: Program | Piece,
    path: str | os.PathLike[str],
    *,
    theme: ThemeName = "light",
    fold: Fold = "auto",
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Draw two programs side by side into an SVG file, with every node that differs marked.

    Args:
        before: a program or a piece, for example ``step.before``.
        after: another, for example ``step.after``.
        path: the file; it is replaced.
        theme: ``"light"`` or ``"dark"``.
        fold: as for :func:`~fxbucket.visualize.save_svg`.
        timeout: seconds that the layout may take; the folded drawing is used instead where the whole takes longer.

    Raises:
        OptionError: they cannot be compared, or an option has no such value.
        DrawingError: there is no `dot` program, it failed, or the file cannot be written.
    """
    colours = theme_named(theme)
    write_text(path, svg_of(diff_sketch(before, after), colours, fold, timeout))


def diff_sketch(before: Program | Piece, after: Program | Piece) -> Sketch:
    """Return the drawing of two programs side by side."""
    found = differences(before, after)
    sides = (("before", before, [one.before for one in found]), ("after", after, [one.after for one in found]))
    clusters: list[Cluster] = []
    arrows: list[Arrow] = []
    for side, subject, nodes in sides:
        pairs = ((one, node) for one, node in zip(found, nodes, strict=True) if node is not None)
        marks = {_place_in_drawing(node): one for one, node in pairs}
        sketch = sketch_of(subject)
        members = tuple(_marked(side, member, marks) for member in sketch.members)
        title = f"{side}: {sketch.title}" if sketch.title else side
        clusters.append(Cluster(side, title, "side", members, sketch.lines))
        arrows += [replace(arrow, tail=f"{side}.{arrow.tail}", head=f"{side}.{arrow.head}") for arrow in sketch.arrows]
    return Sketch("before and after", (_counted(found),), tuple(clusters), tuple(arrows))


def _place_in_drawing(node: Facts) -> tuple[str, str]:
    # A drawing has one output, whose place is no piece; what one piece gives is drawn as arrows.
    return ("", "output") if node.kind == "output" else (node.place, node.name)


def _marked(side: str, member: Member, marks: Mapping[tuple[str, str], Difference]) -> Member:
    if isinstance(member, Cluster):
        inside = tuple(_marked(side, inner, marks) for inner in member.members)
        return replace(member, key=f"{side}.{member.key}", members=inside)
    found = marks.get(("", "output") if member.role == "output" else (member.place, member.name))
    key = f"{side}.{member.key}"
    if found is None:
        return replace(member, key=key)
    # What a node became is written once, on the side where it is so.
    notes = tuple(shorten(word, 56) for word in found.words[:_MAX_NOTES]) if side == "after" else (found.mark,)
    return replace(member, key=key, mark=found.mark, notes=notes, tooltip="\n".join((*found.words, member.tooltip)))


def _pieces(subject: Program | Piece) -> Sequence[Piece]:
    return subject.pieces if isinstance(subject, Program) else ()


def _piece_changes(before: Program | Piece, after: Program | Piece) -> Iterator[str]:
    old, new = ({piece.name: piece for piece in _pieces(subject)} for subject in (before, after))
    yield from (f"{name}: piece gone" for name in old if name not in new)
    yield from (
        f"{name}: piece new: {without_addresses(str(piece.reason))}" for name, piece in new.items() if name not in old
    )
    for name in old:
        if name in new and _kind(old[name]) != _kind(new[name]):
            yield f"{name}: {_kind(old[name])} → {_kind(new[name])}"


def _kind(piece: Piece) -> str:
    return "runs as it is" if piece.is_boundary else "nothing to compile" if piece.is_trivial else "compiled"


def _headline(subject: Program | Piece) -> str:
    if isinstance(subject, Piece):
        return subject.name
    nodes = [node for piece in subject.pieces for node in piece.body] or list(subject.capture.module.graph.nodes)
    num_nodes = sum(node.op not in ("placeholder", "output") for node in nodes)
    return " · ".join(("program" if subject.pieces else "program, not split", *facts_of(subject, num_nodes)))


def _counted(found: Sequence[Difference]) -> str:
    counts = Counter(one.mark for one in found)
    return ", ".join(f"{counts[mark]} {mark}" for mark in _MARKS)
