"""A sketch → a smaller one: what repeats is drawn once, and what is still too large is shrunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fxbucket.passes.errors import OptionError
from fxbucket.visualize.labels import TIMES, shorten
from fxbucket.visualize.repeats import Link, Run, find_runs
from fxbucket.visualize.shrink import fold_chains, fold_stretches
from fxbucket.visualize.sketch import LEAF_ROLES, Arrow, Box, Cluster, Member, Sketch, boxes_in, merge_arrows

Fold = bool | Literal["auto"]
"""Whether to fold; ``"auto"`` does where the whole would be too large to read."""

MAX_BOXES = 120
"""Boxes that a person can take in: ``"auto"`` draws everything up to here, and a fold goes on until here."""

MAX_SPAN = 1500
"""Rows that all arrows may cross together: Graphviz's time grows with them, by far more than with the boxes.

Measured with Graphviz 2.43: 1600 rows take about 1 second, 2800 take 2 to 13, 6000 more than 30.
"""

_MIN_SAVED = 6
_ROOMS = (36, 18, 9)
"""Boxes that are tried for stretches of nodes, until the arrows between them leave room too."""


def folded(sketch: Sketch, fold: Fold) -> Sketch:
    """Return the sketch as small as ``fold`` asks for.

    Layers that repeat are drawn once with their count. While the drawing is too large after that, straight chains become
    one box, then what repeats inside layers is drawn once, then stretches of nodes (by piece, by module, at last by number)
    become one box each.

    Raises:
        OptionError: ``fold`` is neither a bool nor ``"auto"``.
    """
    if fold not in (True, False, "auto"):
        raise OptionError(f"fold={fold!r} is unknown; give True, False or 'auto'.")
    if fold is False or (fold == "auto" and not _is_large(sketch)):
        return sketch
    sketch = fold_repeats(sketch)
    for step in (fold_chains, fold_repeats):
        if _is_large(sketch):
            sketch = step(sketch)
    whole = sketch
    for room in _ROOMS:
        if _is_large(sketch):
            sketch = fold_repeats(fold_stretches(whole, room))
    return sketch


def _is_large(sketch: Sketch) -> bool:
    return len(sketch.boxes) > MAX_BOXES or _span(sketch) > MAX_SPAN


def _span(sketch: Sketch) -> int:
    """Return how many rows all arrows cross together, when every box lies below what it reads."""
    reads: dict[str, list[str]] = {}
    for arrow in sketch.arrows:
        if not arrow.is_carried:
            reads.setdefault(arrow.head, []).append(arrow.tail)
    row: dict[str, int] = {}
    for box in sketch.boxes:
        row[box.key] = 1 + max((row.get(tail, 0) for tail in reads.get(box.key, ())), default=0)
    return sum(row[head] - row.get(tail, 0) for head, tails in reads.items() for tail in tails)


def fold_repeats(sketch: Sketch) -> Sketch:
    """Return the sketch with each stretch that repeats drawn once, in a frame that says how often."""
    before, depth = sketch, 0
    while _has_depth(sketch.members, depth):
        sketch = _fold_repeats_at(sketch, depth)
        depth += 1
    return _without_unread_leaves(before, sketch)


def _has_depth(members: Sequence[Member], depth: int) -> bool:
    if depth == 0:
        return bool(members)
    return any(isinstance(member, Cluster) and _has_depth(member.members, depth - 1) for member in members)


def _fold_repeats_at(sketch: Sketch, depth: int) -> Sketch:
    """Fold the repeats among the members of each cluster that lies ``depth`` clusters deep."""
    reads: dict[str, list[Arrow]] = {}
    for arrow in sketch.arrows:
        reads.setdefault(arrow.head, []).append(arrow)
    values = {box.key: box.value for box in sketch.boxes}
    # What repeats inside a layer says more when it is drawn, so it is folded for want of room alone.
    inside_repeats = _is_large(sketch)
    occurrence: dict[str, tuple[Run, int]] = {}
    first: dict[str, str] = {}

    def at(members: tuple[Member, ...], left: int) -> tuple[Member, ...]:
        if left > 0:
            return tuple(
                replace(member, members=at(member.members, left - 1))
                if isinstance(member, Cluster) and (inside_repeats or member.num_repeats == 1)
                else member
                for member in members
            )
        kept: list[Member] = []
        position = 0
        for run in find_runs(*_units(members, reads, values), min_saved=_MIN_SAVED):
            kept += members[position : run.start]
            kept.append(_frame(members[run.start : run.end], run))
            position = run.end
            originals = [box.key for box in boxes_in(members[run.start : run.start + run.period])]
            for index, box in enumerate(boxes_in(members[run.start : run.end])):
                occurrence[box.key] = (run, index // len(originals))
                first[box.key] = originals[index % len(originals)]
        return (*kept, *members[position:])

    members = at(sketch.members, depth)
    arrows = merge_arrows([kept for arrow in sketch.arrows for kept in _of_first(arrow, occurrence)], first)
    return replace(sketch, members=members, arrows=arrows)


def _of_first(arrow: Arrow, occurrence: Mapping[str, tuple[Run, int]]) -> Iterator[Arrow]:
    """Yield an arrow that stays when a run's first occurrence stands for all of them; nothing for one that goes."""
    tail_run, tail = occurrence.get(arrow.tail, (None, 0))
    head_run, head = occurrence.get(arrow.head, (None, 0))
    if head_run is not None and tail_run is head_run and tail < head:
        yield replace(arrow, is_carried=True)
    elif head == 0:
        yield arrow


def _units(
    members: Sequence[Member], reads: Mapping[str, Sequence[Arrow]], values: Mapping[str, str]
) -> tuple[list[str], list[tuple[Link, ...]], list[int]]:
    """Return the label, the links and the number of boxes of each member."""
    inside = [list(boxes_in((member,))) for member in members]
    place = {box.key: (unit, slot) for unit, boxes in enumerate(inside) for slot, box in enumerate(boxes)}
    labels = []
    links = []
    for unit, (member, boxes) in enumerate(zip(members, inside, strict=True)):
        inner: list[tuple[int, int]] = []
        outer: list[Link] = []
        for slot, box in enumerate(boxes):
            for arrow in reads.get(box.key, ()):
                source, part = place.get(arrow.tail, (-1, -1))
                if source == unit:
                    inner.append((part, slot))
                else:
                    outer.append(Link(slot, source, part if source >= 0 else arrow.tail, values.get(arrow.tail, "")))
        labels.append(f"{_signature(member)} {inner}")
        links.append(tuple(outer))
    return labels, links, [len(boxes) for boxes in inside]


def _signature(member: Member) -> str:
    if isinstance(member, Box):
        return f"{member.role} {member.signature} {member.mark}"
    if member.role == "side":
        return member.key
    inside = "; ".join(_signature(inner) for inner in member.members)
    return f"{member.role} {member.num_repeats} [{inside}]"


def _frame(members: Sequence[Member], run: Run) -> Cluster:
    first = tuple(members[: run.period])
    rest = members[run.period :]
    names = [member.title if isinstance(member, Cluster) else member.name or member.title for member in rest]
    also = f"also {names[0]} … {names[-1]}" if len(names) > 1 else f"also {names[0]}"
    key = f"{first[0].key}.repeat"
    tooltip = f"{run.count} times one after the other; drawn once\nalso {', '.join(names)}"
    title, lines = f"{TIMES} {run.count}", (shorten(also, 60),)
    others = dict.fromkeys(text for box in boxes_in(rest) for text in (box.place, box.name, *box.path[-1:]) if text)
    return Cluster(key, title, "repeat", first, lines, shorten(tooltip, 2000), num_repeats=run.count, also=(*names, *others))


def _without_unread_leaves(before: Sketch, after: Sketch) -> Sketch:
    """Drop the arguments that fed only what is folded away."""
    fed = {arrow.tail for arrow in before.arrows} - {arrow.tail for arrow in after.arrows}
    members = tuple(
        member
        for member in after.members
        if not (isinstance(member, Box) and member.role in LEAF_ROLES and member.key in fed)
    )
    return replace(after, members=members)
