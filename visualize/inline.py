"""A drawing inside a page: SVG whose colours are the page's CSS variables, so that one drawing serves both themes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping

from fxbucket.visualize.labels import printable
from fxbucket.visualize.sketch import Cluster, Member, Sketch
from fxbucket.visualize.svg import svg_of
from fxbucket.visualize.theme import LIGHT, Paint, Theme

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


def _colours(theme: Theme) -> Iterator[tuple[str, str]]:
    """Yield ``(name, colour)`` of every colour of a theme, always in the same order."""
    yield "drawing", theme.background
    yield "drawing-text", theme.text
    yield "drawing-faint", theme.faint
    yield "drawing-arrow", theme.arrow
    for kind, paints in (("box", theme.boxes), ("cluster", theme.clusters)):
        for role, paint in paints.items():
            yield f"{kind}-{role}-fill", paint.fill
            yield f"{kind}-{role}-border", paint.border
    for mark, colour in theme.marks.items():
        yield f"mark-{mark}", colour


def css_variables(theme: Theme) -> dict[str, str]:
    """Return the colours of a theme by the name of their CSS variable."""
    return dict(_colours(theme))


# Graphviz takes no variables, so each colour is drawn as a number of its own.
_NUMBERS = {name: f"#0000{number:02x}" for number, (name, _) in enumerate(_colours(LIGHT))}
_NUMBERED = Theme(
    background=_NUMBERS["drawing"],
    text=_NUMBERS["drawing-text"],
    faint=_NUMBERS["drawing-faint"],
    arrow=_NUMBERS["drawing-arrow"],
    boxes={role: Paint(_NUMBERS[f"box-{role}-fill"], _NUMBERS[f"box-{role}-border"]) for role in LIGHT.boxes},
    clusters={role: Paint(_NUMBERS[f"cluster-{role}-fill"], _NUMBERS[f"cluster-{role}-border"]) for role in LIGHT.clusters},
    marks={mark: _NUMBERS[f"mark-{mark}"] for mark in LIGHT.marks},
)
_VARIABLES: Mapping[str, str] = {colour: f"var(--{name})" for name, colour in _NUMBERS.items()}


def inline_svg(sketch: Sketch, timeout: float) -> str:
    """Return a drawing as SVG text for a page.

    Groups have no ids, which might be those of the page, but ``data-key``; the link of a box to its source line is
    ``data-url``, and what a repeated part stands for besides is ``data-also``, for the search.

    Args:
        sketch: folded as it shall be.
        timeout: seconds that the layout may take.

    Raises:
        DrawingError: there is no `dot` program, it failed, or it took too long.
    """
    root = ET.fromstring(svg_of(sketch, _NUMBERED, False, timeout).encode())
    for name in ("role", "font-family", "style"):
        root.attrib.pop(name, None)
    also = {f"cluster.{cluster.key}": cluster.also for cluster in _clusters(sketch.members) if cluster.also}
    for element in root.iter():
        for name in ("fill", "stroke"):
            if name in element.attrib:
                element.set(name, _VARIABLES.get(element.attrib[name], element.attrib[name]))
        key = element.attrib.pop("id", None)
        if key is not None:
            element.set("data-key", key)
            if key in also:
                element.set("data-also", printable("\n".join(also[key])))
            _unlink(element)
    text = ET.tostring(root, encoding="unicode")
    return re.sub(r">\n+<", "><", text)


def _unlink(group: ET.Element) -> None:
    """Move the link of a box to the group: in a page a click on a box chooses it."""
    for position, link in enumerate(list(group)):
        if link.tag == f"{_SVG}a":
            group.set("data-url", link.get(_LINK, ""))
            group.remove(link)
            for offset, part in enumerate(link):
                group.insert(position + offset, part)


def _clusters(members: tuple[Member, ...]) -> Iterator[Cluster]:
    for member in members:
        if isinstance(member, Cluster):
            yield member
            yield from _clusters(member.members)
