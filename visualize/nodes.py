"""The nodes of one graph → boxes, and arrows between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from fxbucket.passes.boundaries import module_stack
from fxbucket.passes.captured import value_of
from fxbucket.passes.regions import is_region_node
from fxbucket.passes.source_line import source_line
from fxbucket.passes.symbolic import SYMBOLIC_TYPES
from fxbucket.passes.text import Namer, graph_text, node_text, value_text
from fxbucket.visualize.labels import (
    edge_text,
    literals_text,
    op_title,
    shorten,
    signature_text,
    without_addresses,
)
from fxbucket.visualize.sketch import Arrow, Box, Role

_MAX_CODE = 2000
"""Characters of a nested graph's code that a tooltip shows."""


@dataclass(frozen=True)
class Origin:
    """Where a value comes from.

    Attributes:
        key: the box that gives it; empty where it is folded into the boxes that take it.
        name: its name.
        text: its dtype and shape.
        whole: everything about it.
        title: how a box that it is folded into calls it.
        detail: what that box's tooltip says of it besides.
        is_size: whether the value is a number and not a tensor.
    """

    key: str
    name: str
    text: str
    whole: str
    title: str = ""
    detail: str = ""
    is_size: bool = False


class Drawer:
    """Collects the boxes and arrows of one sketch."""

    def __init__(self, name: Namer, fold_parameters: bool, source_links: bool) -> None:
        self._name = name
        self._fold_parameters = fold_parameters
        self._source_links = source_links
        self.arrows: list[Arrow] = []

    def argument(self, node: fx.Node, title: str, role: Role, is_returned: bool) -> tuple[Box | None, Origin]:
        """Return the box of an argument, ``None`` where it is folded, and the origin of its value."""
        value = value_of(node)
        if role == "parameter" and self._fold_parameters and not is_returned:
            return None, self._origin("", node.name, value, title, self._where(node))
        origin = self._origin(node.name, node.name, value, title)
        # Everything else writes a size by its axis, so its own box does too.
        shown = self._name(value) if role == "symbol" else title
        lines = [title if role == "symbol" else "", origin.text]
        tooltip = [f"{role} {title}", f"{node.name}: {origin.whole}", self._where(node)]
        box = Box(
            key=node.name,
            title=shorten(shown, 40),
            role=role,
            lines=tuple(shorten(line, 48) for line in lines if line and line != shown),
            tooltip="\n".join(part for part in tooltip if part),
            url=self._url(node),
            value=origin.whole,
            name=node.name,
            signature=f"{role} {origin.whole}",
        )
        return box, origin

    def body(
        self, module: fx.GraphModule, values: Mapping[str, Origin], place: str, role: Role
    ) -> tuple[list[Box], dict[fx.Node, Origin]]:
        """Return the boxes of a graph but for its arguments and its output, and where each node's value comes from.

        Args:
            module: the graph.
            values: the origin of each placeholder's value by the placeholder's name.
            place: the piece's name, or an empty text.
            role: what its ops are.
        """
        boxes: list[Box] = []
        origins: dict[fx.Node, Origin] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                # A pass may have made the value concrete since it was drawn: what this graph says of it counts here.
                given = values[node.name]
                origins[node] = self._origin(given.key, given.name, value_of(node), given.title, given.detail)
            elif node.op == "get_attr":
                box, origins[node] = self._attribute(module, node, place)
                boxes += [box] if box is not None else []
            elif node.op != "output":
                box, origins[node] = self._op(node, origins, place, role)
                boxes.append(box)
        return boxes, origins

    def output(self, key: str, returned: Iterable[Origin], code: str) -> Box:
        """Return the box of what is returned, with an arrow for each value of it."""
        for origin in returned:
            self._arrow(origin, key)
        text = without_addresses(code)
        return Box(key, "output", "output", (shorten(text, 60),), f"returns {text}", name=key, signature=f"output {text}")

    def _where(self, node: fx.Node) -> str:
        """Return the module and the source line that a node comes from, a line each."""
        stack = module_stack(node)
        lines: Iterable[str] = ()
        if stack:
            _, (path, kind) = stack[-1]
            lines = (f"in {path} ({kind.rpartition('.')[2]})" if path else f"in {kind.rpartition('.')[2]}",)
        found = source_line(node)
        if found is not None and not self._source_links:
            found = found.without_folder()
        return "\n".join((*lines, *((str(found),) if found is not None else ())))

    def _url(self, node: fx.Node) -> str:
        found = source_line(node) if self._source_links else None
        return found.url if found is not None else ""

    def _origin(self, key: str, name: str, value: object, title: str = "", detail: str = "") -> Origin:
        text, whole = edge_text(value, self._name), value_text(value, self._name)
        return Origin(key, name, text, whole, title, detail, isinstance(value, (*SYMBOLIC_TYPES, int, torch.Size)))

    def _arrow(self, origin: Origin, head: str) -> None:
        tooltip = f"{origin.name}: {origin.whole}" if origin.whole else origin.name
        self.arrows.append(Arrow(origin.key, head, shorten(origin.text, 48), tooltip, is_size=origin.is_size))

    def _attribute(self, module: fx.GraphModule, node: fx.Node, place: str) -> tuple[Box | None, Origin]:
        title = str(node.target)
        is_folded = self._fold_parameters and all(user.op != "output" for user in node.users)
        key = "" if is_folded else _key(place, node.name)
        held = _held(module, title)
        if isinstance(held, fx.GraphModule):
            text = f"graph of {len(held.graph.nodes)} nodes"
            detail = f"where {title}:\n{shorten(graph_text(held, self._name), _MAX_CODE)}"
            origin = Origin(key, node.name, text, text, title, detail)
        else:
            value = value_of(node)
            origin = self._origin(key, node.name, held if value is None else value, title)
        if is_folded:
            return None, origin
        tooltip = [f"attribute {title}", origin.whole, self._where(node), origin.detail]
        box = Box(
            key=key,
            title=shorten(title, 40),
            role="parameter",
            lines=(origin.text,) if origin.text else (),
            tooltip="\n".join(part for part in tooltip if part),
            url=self._url(node),
            value=origin.whole,
            place=place,
            name=node.name,
            signature=f"parameter {origin.whole}",
        )
        return box, origin

    def _op(self, node: fx.Node, origins: Mapping[fx.Node, Origin], place: str, role: Role) -> tuple[Box, Origin]:
        key = _key(place, node.name)
        path = [path for _, (path, _) in module_stack(node) if path]
        folded = []
        for source in node.all_input_nodes:
            if origins[source].key:
                self._arrow(origins[source], key)
            else:
                folded.append(origins[source])
        origin = self._origin(key, node.name, value_of(node))
        literals = without_addresses(literals_text(node, self._name))
        held = [f"{_below(path, given.title)} {given.text}".strip() for given in folded]
        lines = [shorten(node.name, 40), shorten(literals, 40), *_packed(held, 44)]
        code = without_addresses(node_text(node, self._name))
        tooltip = [code, origin.whole, self._where(node), *(f"{given.title}: {given.whole}" for given in folded)]
        tooltip += [given.detail for given in folded if given.detail.startswith("where ")]
        box = Box(
            key=key,
            title=shorten(op_title(node), 40),
            role="region" if is_region_node(node) else role,
            lines=tuple(line for line in lines if line and line != op_title(node)),
            tooltip="\n".join(part for part in tooltip if part),
            url=self._url(node),
            value=origin.whole,
            place=place,
            name=node.name,
            signature="|".join((role, signature_text(node, self._name), origin.whole, *(given.whole for given in folded))),
            path=tuple(path),
        )
        return box, origin


def _held(module: fx.GraphModule, target: str) -> object:
    found: object = module
    for part in target.split("."):
        found = getattr(found, part, None)
    return found


def _below(path: Sequence[str], title: str) -> str:
    """Return a parameter's name without the path of the module that reads it."""
    inside = f"{path[-1]}." if path else ""
    return title.removeprefix(inside) if inside and title != inside else title


def _packed(texts: Iterable[str], limit: int) -> list[str]:
    """Return texts side by side on as few lines of ``limit`` characters as they fit on."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) + 3 <= limit:
            lines[-1] += f" · {text}"
        else:
            lines.append(shorten(text, limit))
    return lines


def _key(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
