"""A sketch → one whose arguments lie beside what reads them, where one box would send arrows all over the drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fxbucket.visualize.sketch import LEAF_ROLES, Arrow, Box, Cluster, Member, Sketch, boxes_in

MAX_READERS = 4
"""Boxes that may read one argument before it is drawn several times.

A size that every layer reads makes Graphviz lay 16 layers out ten times as wide, or not at all.
"""


def spread_arguments(sketch: Sketch) -> Sketch:
    """Return the sketch with an argument that many boxes read drawn once in each piece that reads it.

    Where one piece, or a graph without pieces, reads it more than :data:`MAX_READERS` times, it is drawn once for each
    reader. The copies stand for no node of their own.
    """
    readers: dict[str, list[Arrow]] = {}
    for arrow in sketch.arrows:
        readers.setdefault(arrow.tail, []).append(arrow)
    spread = {
        member.key: member
        for member in sketch.members
        if isinstance(member, Box) and member.role in LEAF_ROLES and len(readers.get(member.key, ())) > MAX_READERS
    }
    if not spread:
        return sketch
    piece_of = {
        box.key: member.key for member in sketch.members if isinstance(member, Cluster) for box in boxes_in((member,))
    }
    paths = {box.key: box.path for box in sketch.boxes}
    copies: dict[str, list[Box]] = {}
    tails: dict[tuple[str, str], str] = {}
    for key, argument in spread.items():
        by_piece: dict[str, list[str]] = {}
        for arrow in readers[key]:
            by_piece.setdefault(piece_of.get(arrow.head, ""), []).append(arrow.head)
        for piece, heads in by_piece.items():
            is_shared = piece != "" and len(heads) <= MAX_READERS
            for group in [heads] if is_shared else [[head] for head in heads]:
                copy = replace(argument, key=f"{key}@{group[0]}", path=paths[group[0]], num_nodes=0)
                copies.setdefault(group[0], []).append(copy)
                tails.update({(key, head): copy.key for head in group})

    def beside(members: Sequence[Member]) -> Iterator[Member]:
        for member in members:
            if isinstance(member, Cluster):
                yield replace(member, members=tuple(beside(member.members)))
            elif member.key not in spread:
                yield from copies.get(member.key, ())
                yield member

    arrows = (replace(arrow, tail=tails.get((arrow.tail, arrow.head), arrow.tail)) for arrow in sketch.arrows)
    return replace(sketch, members=tuple(beside(sketch.members)), arrows=tuple(arrows))
