"""Colours and shapes: a light theme and a dark one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fxbucket.passes.errors import OptionError, nearest
from fxbucket.visualize.sketch import ClusterRole, Mark, Role

ThemeName = Literal["light", "dark"]

FONTS = "Helvetica,Arial,Liberation Sans,DejaVu Sans,sans-serif"
"""Metric-compatible first, so that text fits its box whichever of them a reader has."""


@dataclass(frozen=True)
class Paint:
    """The colours of one role."""

    fill: str
    border: str


@dataclass(frozen=True)
class Theme:
    """Every colour of a drawing.

    Attributes:
        background: behind everything.
        text: titles.
        faint: small texts.
        arrow: arrows.
        boxes: the colours of each role.
        clusters: the colours of each kind of cluster.
        marks: the border of a box that differs.
    """

    background: str
    text: str
    faint: str
    arrow: str
    boxes: Mapping[Role, Paint]
    clusters: Mapping[ClusterRole, Paint]
    marks: Mapping[Mark, str]


@dataclass(frozen=True)
class Form:
    """What a box looks like without its colours: Graphviz's shape, style and number of outlines."""

    shape: str
    style: str = "filled"
    peripheries: int = 1


# A role must be told apart without colour too.
FORMS: Mapping[Role, Form] = {
    "input": Form("ellipse"),
    "parameter": Form("cylinder"),
    "symbol": Form("hexagon"),
    "op": Form("box", "rounded,filled"),
    "boundary": Form("octagon"),
    "region": Form("box", "rounded,filled,dashed"),
    "output": Form("ellipse", peripheries=2),
    "fold": Form("box", peripheries=2),
}
"""How each role looks."""

CLUSTER_STYLES: Mapping[ClusterRole, str] = {
    "compiled": "rounded,filled",
    "boundary": "rounded,filled",
    "trivial": "rounded,filled,dashed",
    "repeat": "rounded,filled,bold",
    "side": "filled",
}

LIGHT = Theme(
    background="#ffffff",
    text="#1f2328",
    faint="#57606a",
    arrow="#8c959f",
    boxes={
        "input": Paint("#ddf4ff", "#0969da"),
        "parameter": Paint("#fbefff", "#8250df"),
        "symbol": Paint("#ffe8d9", "#bc4c00"),
        "op": Paint("#ffffff", "#6e7781"),
        "boundary": Paint("#fff0b3", "#9a6700"),
        "region": Paint("#eaeef2", "#8c959f"),
        "output": Paint("#dafbe1", "#1a7f37"),
        "fold": Paint("#eef1f4", "#57606a"),
    },
    clusters={
        "compiled": Paint("#f3f6f9", "#c3ccd5"),
        "boundary": Paint("#fffbec", "#d4a72c"),
        "trivial": Paint("#f8f9fa", "#c3ccd5"),
        "repeat": Paint("#eaf3fb", "#54aeff"),
        "side": Paint("#ffffff", "#d8dee4"),
    },
    marks={"changed": "#bf3989", "gone": "#cf222e", "new": "#1a7f37"},
)

DARK = Theme(
    background="#0d1117",
    text="#f0f6fc",
    faint="#a3adb8",
    arrow="#7d8590",
    boxes={
        "input": Paint("#0c2d4f", "#4493f8"),
        "parameter": Paint("#2d1b4b", "#ab7df8"),
        "symbol": Paint("#40210f", "#e0823d"),
        "op": Paint("#262c36", "#7d8590"),
        "boundary": Paint("#463503", "#d29922"),
        "region": Paint("#1c2128", "#656c76"),
        "output": Paint("#12381f", "#3fb950"),
        "fold": Paint("#2b323c", "#a3adb8"),
    },
    clusters={
        "compiled": Paint("#161b22", "#3d444d"),
        "boundary": Paint("#211b0d", "#9e6a03"),
        "trivial": Paint("#12161c", "#3d444d"),
        "repeat": Paint("#0f2133", "#1f6feb"),
        "side": Paint("#0d1117", "#3d444d"),
    },
    marks={"changed": "#f778ba", "gone": "#ff7b72", "new": "#56d364"},
)

_THEMES = {"light": LIGHT, "dark": DARK}


def theme_named(name: str) -> Theme:
    """Return a theme by its name.

    Raises:
        OptionError: there is no such theme.
    """
    if name not in _THEMES:
        raise OptionError(f"theme {name!r} is unknown; {nearest(str(name), _THEMES)}.")
    return _THEMES[name]
