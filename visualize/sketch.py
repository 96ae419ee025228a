"""What is drawn, before anybody decides how: boxes, arrows between them, and clusters of boxes.

A sketch knows nothing of DOT, colours or layout. :mod:`~fxbucket.visualize.draw` makes one from a program,
:mod:`~fxbucket.visualize.fold` makes it smaller, :mod:`~fxbucket.visualize.dot` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Role = Literal["input", "parameter", "symbol", "op", "boundary", "region", "output", "fold"]
"""What a box stands for; a region is a switch such as autocast or no_grad, a fold several nodes at once."""

ClusterRole = Literal["compiled", "boundary", "trivial", "repeat", "side"]
"""What a cluster stands for: a kind of piece, a part that occurs several times, or one side of a comparison."""

Mark = Literal["", "changed", "gone", "new"]
"""How a box differs from its partner in another program."""

MAX_LISTED = 20
"""Values that the tooltip of an arrow lists."""

LEAF_ROLES = frozenset({"input", "parameter", "symbol"})
"""Boxes that only give values."""


@dataclass(frozen=True)
class Box:
    """One node of the drawing.

    Attributes:
        key: unique in the sketch.
        title: the large text.
        role: what it stands for.
        lines: the small texts below the title.
        tooltip: everything that is worth knowing, several lines.
        url: where a click leads.
        value: what the node gives, as text.
        place: the name of its piece; empty where the program has none.
        name: the name of its node; empty for a fold.
        signature: the same for boxes that differ in names alone.
        path: the modules that the node was traced through, outermost first.
        mark: how it differs from another program's.
        notes: the same in words, in the colour of the mark.
        num_nodes: how many nodes it stands for; 0 for a further box of an argument that is drawn several times.
    """

    key: str
    title: str
    role: Role
    lines: tuple[str, ...] = ()
    tooltip: str = ""
    url: str = ""
    value: str = ""
    place: str = ""
    name: str = ""
    signature: str = ""
    path: tuple[str, ...] = ()
    mark: Mark = ""
    notes: tuple[str, ...] = ()
    num_nodes: int = 1


@dataclass(frozen=True)
class Arrow:
    """A value that goes from one box to another.

    Attributes:
        tail: the key of the box that gives it.
        head: the key of the box that takes it.
        label: its dtype and shape.
        tooltip: its name and everything about it.
        num_values: how many values go this way.
        is_size: whether it is a number and not a tensor.
        is_carried: whether it goes from one repetition to the next.
    """

    tail: str
    head: str
    label: str = ""
    tooltip: str = ""
    num_values: int = 1
    is_size: bool = False
    is_carried: bool = False


@dataclass(frozen=True)
class Cluster:
    """Boxes with a frame around them.

    Attributes:
        key: unique in the sketch.
        title: the large text.
        role: what it stands for.
        members: boxes and clusters, in the order in which they run.
        lines: the small texts below the title.
        tooltip: what is worth knowing besides.
        num_repeats: how many times what it holds occurs, one after the other.
        also: names and modules of what is not drawn because it repeats what is.
    """

    key: str
    title: str
    role: ClusterRole
    members: tuple[Member, ...]
    lines: tuple[str, ...] = ()
    tooltip: str = ""
    num_repeats: int = 1
    also: tuple[str, ...] = ()


Member = Box | Cluster


@dataclass(frozen=True)
class Sketch:
    """A whole drawing.

    Attributes:
        title: the text above it.
        lines: the small texts below the title.
        members: boxes and clusters, in the order in which they run.
        arrows: the values that go between boxes.
    """

    title: str
    lines: tuple[str, ...]
    members: tuple[Member, ...]
    arrows: tuple[Arrow, ...]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Every box, those inside clusters too, in order."""
        return tuple(boxes_in(self.members))


def boxes_in(members: Sequence[Member]) -> Iterator[Box]:
    """Yield every box of some members, those inside clusters too, in order."""
    for member in members:
        if isinstance(member, Box):
            yield member
        else:
            yield from boxes_in(member.members)


def merge_arrows(arrows: Sequence[Arrow], mapping: Mapping[str, str]) -> tuple[Arrow, ...]:
    """Return arrows between the boxes that stand for the old ones: one for each way that values go.

    Args:
        arrows: the arrows before.
        mapping: the key of each box that is gone → the key of the box that stands for it.
    """
    ways: dict[tuple[str, str, bool], list[Arrow]] = {}
    for arrow in arrows:
        tail, head = mapping.get(arrow.tail, arrow.tail), mapping.get(arrow.head, arrow.head)
        if tail != head or arrow.is_carried:
            ways.setdefault((tail, head, arrow.is_carried), []).append(arrow)
    return tuple(_merged(tail, head, together) for (tail, head, _), together in ways.items())


def _merged(tail: str, head: str, together: Sequence[Arrow]) -> Arrow:
    first = together[0]
    if len(together) == 1:
        return first if (first.tail, first.head) == (tail, head) else replace(first, tail=tail, head=head)
    # A value that several boxes read is one value, so what counts is where values come from.
    values = {arrow.tail: arrow for arrow in together}.values()
    labels = {arrow.label for arrow in values}
    tooltips = list(dict.fromkeys(arrow.tooltip for arrow in values))
    shown = tooltips if len(tooltips) <= MAX_LISTED else [*tooltips[:MAX_LISTED], f"… {len(tooltips) - MAX_LISTED} more"]
    return Arrow(
        tail,
        head,
        label=labels.pop() if len(labels) == 1 else "",
        tooltip="\n".join(shown),
        num_values=sum(arrow.num_values for arrow in values),
        is_size=all(arrow.is_size for arrow in values),
        is_carried=first.is_carried,
    )
