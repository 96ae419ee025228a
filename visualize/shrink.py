"""A sketch → a smaller one: straight chains of ops, and stretches of a graph, become one box each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Literal, TypeVar

import networkx as nx

from fxbucket.visualize.labels import shorten
from fxbucket.visualize.sketch import LEAF_ROLES, Box, Cluster, Mark, Member, Sketch, boxes_in, merge_arrows

_MIN_CHAIN = 3

_MAX_STEPS = 4
"""Names of ops that the box of a chain lists."""

_MAX_TOOLTIP = 2000

T = TypeVar("T")


def fold_chains(sketch: Sketch) -> Sketch:
    """Return the sketch with each straight chain of ops as one box."""
    graph = nx.DiGraph()
    graph.add_edges_from((arrow.tail, arrow.head) for arrow in sketch.arrows if not arrow.is_carried)
    carried = {key for arrow in sketch.arrows if arrow.is_carried for key in (arrow.tail, arrow.head)}
    mapping: dict[str, str] = {}

    def follows(box: Box, other: Box) -> bool:
        """Whether ``box`` is all that reads ``other``, and reads nothing else."""
        return (
            graph.has_edge(other.key, box.key)
            and graph.out_degree(other.key) == 1
            and graph.in_degree(box.key) == 1
            and (box.role, box.mark) == (other.role, other.mark)
            and box.role in ("op", "fold")
            and carried.isdisjoint((box.key, other.key))
        )

    def shorter(members: Sequence[Member]) -> Iterator[Member]:
        chain: list[Box] = []
        for member in members:
            if chain and not (isinstance(member, Box) and follows(member, chain[-1])):
                yield from chained(chain)
                chain = []
            if isinstance(member, Box):
                chain.append(member)
            else:
                yield replace(member, members=tuple(shorter(member.members)))
        yield from chained(chain)

    def chained(chain: Sequence[Box]) -> Iterator[Box]:
        if len(chain) < _MIN_CHAIN:
            yield from chain
            return
        titles = [box.title for box in chain]
        shown = titles if len(titles) <= _MAX_STEPS + 1 else [*titles[:_MAX_STEPS], "…", titles[-1]]
        mapping.update({box.key: chain[0].key for box in chain})
        yield _together(chain, f"{len(chain)} ops in a row", (" → ".join(shown),))

    members = tuple(shorter(sketch.members))
    return replace(sketch, members=members, arrows=merge_arrows(sketch.arrows, mapping))


def fold_stretches(sketch: Sketch, room: int) -> Sketch:
    """Return the sketch with stretches of pieces, or of the ops in each piece, as about ``room`` boxes."""
    num_boxes = len(sketch.boxes)
    mapping: dict[str, str] = {}

    def share(size: int) -> int:
        return max(room * size // num_boxes, 1)

    def shorter(members: Sequence[Member]) -> Iterator[Member]:
        for kind, group in groupby(members, _kind):
            stretch = tuple(group)
            size = sum(1 for _ in boxes_in(stretch))
            if kind == "ops":
                for some in _by_module(list(boxes_in(stretch)), share(size)):
                    yield as_box(some, [box.name or box.title for box in some])
            elif kind == "pieces" and len(stretch) > share(size):
                for pieces in _by_number(stretch, share(size)):
                    titles = [piece.title for piece in pieces]
                    yield as_box(list(boxes_in(pieces)), titles)
            else:
                for member in stretch:
                    yield replace(member, members=tuple(shorter(member.members))) if isinstance(member, Cluster) else member

    def as_box(boxes: Sequence[Box], names: Sequence[str]) -> Box:
        if len(boxes) == 1:
            return boxes[0]
        mapping.update({box.key: boxes[0].key for box in boxes})
        from_to = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        return _together(boxes, _common_path(boxes) or from_to, _contents(boxes))

    members = tuple(shorter(sketch.members))
    return replace(sketch, members=members, arrows=merge_arrows(sketch.arrows, mapping))


def _kind(member: Member) -> Literal["ops", "pieces", ""]:
    """Return what a member may be put together with; empty for what stays as it is."""
    if isinstance(member, Cluster):
        return "pieces" if member.num_repeats == 1 and member.role != "side" else ""
    is_argument = member.role in LEAF_ROLES and member.num_nodes > 0
    return "" if is_argument or member.role == "output" else "ops"


def _by_module(boxes: Sequence[Box], limit: int) -> list[Sequence[Box]]:
    """Return at most ``limit`` stretches, as deep in the modules as there is room for."""
    for depth in range(max(len(box.path) for box in boxes), 0, -1):
        groups: list[Sequence[Box]] = [list(group) for _, group in groupby(boxes, partial(_path_to, depth))]
        if len(groups) <= limit:
            return groups
    return _by_number(boxes, limit)


def _path_to(depth: int, box: Box) -> tuple[str, ...]:
    return box.path[:depth]


def _by_number(items: Sequence[T], limit: int) -> list[Sequence[T]]:
    size = -(-len(items) // limit)
    return [items[at : at + size] for at in range(0, len(items), size)]


def _common_path(boxes: Sequence[Box]) -> str:
    """Return the innermost module that all the boxes lie in, empty where there is none."""
    same = [level for level, paths in enumerate(zip(*(box.path for box in boxes), strict=False)) if len(set(paths)) == 1]
    return boxes[0].path[same[-1]] if same else ""


def _contents(boxes: Sequence[Box]) -> tuple[str, ...]:
    counts = Counter(box.title for box in boxes if box.role != "fold" and box.role not in LEAF_ROLES)
    most = ", ".join(f"{number} {title}" for title, number in counts.most_common(3))
    return tuple(line for line in (f"{sum(box.num_nodes for box in boxes)} nodes", most) if line)


def _together(boxes: Sequence[Box], title: str, lines: tuple[str, ...]) -> Box:
    """Return the box that stands for several; it has the first one's key."""
    first = boxes[0]
    marks = {box.mark for box in boxes}
    mark: Mark = first.mark if len(marks) == 1 else "changed"
    return Box(
        key=first.key,
        title=shorten(title, 48),
        role="fold",
        lines=tuple(shorten(line, 64) for line in lines),
        tooltip=shorten("\n".join(box.tooltip.partition("\n")[0] for box in boxes), _MAX_TOOLTIP),
        value=boxes[-1].value,
        place=first.place,
        signature="; ".join(box.signature for box in boxes),
        path=first.path,
        mark=mark,
        notes=(mark,) if mark else (),
        num_nodes=sum(box.num_nodes for box in boxes),
    )
