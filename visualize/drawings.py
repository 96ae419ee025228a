"""The drawings of a page: each distinct one is laid out once, several at a time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from fxbucket.passes.program import Piece, Program
from fxbucket.visualize.draw import sketch_of
from fxbucket.visualize.fold import Fold, folded
from fxbucket.visualize.inline import inline_svg
from fxbucket.visualize.sketch import Box, Member, Sketch


class Drawings:
    """Collects what is to be drawn, and draws it."""

    def __init__(self, fold: Fold, source_links: bool, timeout: float) -> None:
        self._fold = fold
        self._source_links = source_links
        self._timeout = timeout
        self._sketches: dict[Sketch, int] = {}
        self._first: dict[object, tuple[int, str]] = {}

    def program(self, program: Program) -> int:
        """Return the number of a program's drawing."""
        return self._number(self._sketch(program))

    def piece(self, piece: Piece) -> tuple[int, str]:
        """Return the number of a piece's drawing, and the name of the piece that it was made for.

        Pieces that are equal up to names, as those of a stack of layers are, share the drawing of the first.
        """
        sketch = self._sketch(piece)
        shape = _shape(sketch)
        if shape not in self._first:
            self._first[shape] = (self._number(sketch), piece.name)
        return self._first[shape]

    def draw(self) -> list[str]:
        """Return every drawing as SVG text, by its number.

        Raises:
            DrawingError: there is no `dot` program, or it failed.
        """
        with ThreadPoolExecutor(max(os.cpu_count() or 1, 1)) as threads:
            return list(threads.map(lambda sketch: inline_svg(sketch, self._timeout), self._sketches))

    def _sketch(self, subject: Program | Piece) -> Sketch:
        return folded(sketch_of(subject, source_links=self._source_links), self._fold)

    def _number(self, sketch: Sketch) -> int:
        return self._sketches.setdefault(sketch, len(self._sketches))


def _shape(sketch: Sketch) -> object:
    """Return what is the same for drawings that differ in names alone."""
    places = {box.key: place for place, box in enumerate(sketch.boxes)}
    arrows = tuple((places[arrow.tail], places[arrow.head], arrow.label, arrow.num_values) for arrow in sketch.arrows)
    return tuple(map(_member_shape, sketch.members)), arrows


def _member_shape(member: Member) -> object:
    if isinstance(member, Box):
        if member.role == "output":
            # A piece gives values alone, and arrows say which; its signature names them.
            return member.role
        return member.role, member.signature, member.num_nodes
    return member.role, member.num_repeats, tuple(map(_member_shape, member.members))
