"""A sketch → DOT text, the language of Graphviz."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import graphviz

from fxbucket.passes.program import Piece, Program
from fxbucket.visualize.draw import sketch_of
from fxbucket.visualize.fold import Fold, folded
from fxbucket.visualize.labels import TIMES, printable
from fxbucket.visualize.sketch import Arrow, Box, Cluster, Member, Sketch, boxes_in
from fxbucket.visualize.theme import CLUSTER_STYLES, FONTS, FORMS, Theme, ThemeName, theme_named

SPACE = "\u2002"
"""Half as wide as high; keeps a label off its arrow, where Graphviz would drop a plain space."""

_BREAK = re.compile(r"\r\n|[\r\n\u2028\u2029]")
_ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\\", "\\\\"))
_BRACKETS = re.compile(r"^\]+")
_LOOKS_LIKE_ENTITY = re.compile(r"&(?=#?\w+;)")
_WORD_JOINER = "\u2060"


def dot_text(
    subject: Program | Piece,
    *,
    theme: ThemeName = "light",
    fold: Fold = "auto",
    fold_parameters: bool = True,
    source_links: bool = True,
) -> str:
    """Return a program or a piece as DOT text; the same program gives the same text.

    Args:
        subject: a program before or after Split, or one piece.
        theme: ``"light"`` or ``"dark"``.
        fold: ``True`` draws parts that repeat once and straight chains as one box, ``False`` draws every node, and
            ``"auto"`` folds only where the whole would be too large to read.
        fold_parameters: write parameters and buffers into the ops that read them instead of drawing them.
        source_links: link each op to its source line; ``False`` names the file alone.

    Raises:
        OptionError: the subject cannot be drawn, or there is no such theme.
    """
    colours = theme_named(theme)
    sketch = sketch_of(subject, fold_parameters=fold_parameters, source_links=source_links)
    return dot_of(folded(sketch, fold), colours)


def dot_of(sketch: Sketch, theme: Theme) -> str:
    """Return the DOT text of a sketch."""
    graph = graphviz.Digraph(
        graph_attr={
            "label": _label(sketch.title, sketch.lines, theme, 16, 11) if sketch.title else "",
            "labelloc": "t",
            "bgcolor": theme.background,
            "fontname": FONTS,
            "fontcolor": theme.text,
            "pad": "0.3",
            "nodesep": "0.25",
            "ranksep": "0.25",
            "tooltip": " ",
        },
        node_attr={"fontname": FONTS, "fontcolor": theme.text, "margin": "0.13,0.07", "height": "0.3"},
        edge_attr={"fontname": FONTS, "fontcolor": theme.faint, "fontsize": "9", "color": theme.arrow, "arrowsize": "0.6"},
    )
    _write_members(graph, sketch.members, theme)
    for arrow in sketch.arrows:
        _write_arrow(graph, arrow, theme)
    return str(graph.source)


def _write_members(graph: graphviz.Digraph, members: Sequence[Member], theme: Theme) -> None:
    for member in members:
        if isinstance(member, Box):
            _write_box(graph, member, theme)
        else:
            with graph.subgraph(name=f"cluster_{member.key}") as inside:
                _write_cluster(inside, member, theme)


def _write_cluster(graph: graphviz.Digraph, cluster: Cluster, theme: Theme) -> None:
    paint = theme.clusters[cluster.role]
    graph.attr(
        label=_label(cluster.title, cluster.lines, theme, 13, 9, align="left"),
        labeljust="l",
        style=CLUSTER_STYLES[cluster.role],
        fillcolor=paint.fill,
        color=paint.border,
        margin="12",
        tooltip=_plain(cluster.tooltip or cluster.title),
        id=_plain(f"cluster.{cluster.key}"),
    )
    _write_members(graph, cluster.members, theme)
    if next(boxes_in(cluster.members), None) is None:
        # Graphviz draws no cluster that has no node.
        graph.node(f"{cluster.key}.empty", label="", shape="point", style="invis")


def _write_box(graph: graphviz.Digraph, box: Box, theme: Theme) -> None:
    paint = theme.boxes[box.role]
    form = FORMS[box.role]
    attributes = {"URL": _plain(box.url), "target": "_blank"} if box.url else {}
    label = _label(box.title, box.lines, theme, 11, 9, notes=box.notes, note_colour=theme.marks.get(box.mark, theme.faint))
    graph.node(
        box.key,
        label=label,
        shape=form.shape,
        style=form.style,
        peripheries=str(form.peripheries),
        fillcolor=paint.fill,
        color=theme.marks.get(box.mark, paint.border),
        penwidth="2.5" if box.mark else "1",
        tooltip=_plain(box.tooltip or box.title),
        id=_plain(box.key),
        **{"class": box.role},
        **attributes,
    )


def _write_arrow(graph: graphviz.Digraph, arrow: Arrow, theme: Theme) -> None:
    label = arrow.label
    attributes = {}
    if arrow.is_carried:
        label = f"next: {label}"
        attributes = {"style": "dashed", "constraint": "false", "color": theme.clusters["repeat"].border}
    elif arrow.num_values > 1:
        label = f"{arrow.num_values} {TIMES} {label}" if label else f"{arrow.num_values} values"
    if arrow.is_size:
        attributes |= {"style": "dotted", "color": theme.boxes["symbol"].border, "arrowsize": "0.5"}
    graph.edge(
        arrow.tail,
        arrow.head,
        label=f"<{SPACE}{_html(label)}{SPACE}>" if label else "",
        tooltip=_plain(arrow.tooltip or label),
        labeltooltip=_plain(arrow.tooltip or label),
        **attributes,
    )


def _label(
    title: str,
    lines: Sequence[str],
    theme: Theme,
    large: int,
    small: int,
    *,
    align: Literal["left", "center"] = "center",
    notes: Sequence[str] = (),
    note_colour: str = "",
) -> str:
    """Return an HTML-like label: a bold title and small lines below it, in points."""
    line_end = f'<BR ALIGN="{align.upper()}"/>'
    texts = [f'<FONT POINT-SIZE="{large}"><B>{_html(title)}</B></FONT>']
    texts += [f'<FONT POINT-SIZE="{small}" COLOR="{theme.faint}">{_html(line)}</FONT>' for line in lines]
    texts += [f'<FONT POINT-SIZE="{small}" COLOR="{note_colour}">{_html(note)}</FONT>' for note in notes]
    # Graphviz centres what follows the last break, whatever the break says.
    return f"<{line_end.join(texts)}{line_end if align == 'left' else ''}>"


def _html(text: str) -> str:
    """Return a text for an HTML-like label, on one line."""
    shown = _BREAK.sub("⏎", _printable(text).replace("\t", " "))
    for special, escaped in _ESCAPES:
        shown = shown.replace(special, escaped)
    # Graphviz hands its XML parser a label bit by bit, and loses a text of brackets alone: they might begin "]]>".
    shown = _BRACKETS.sub(lambda found: "&#93;" * len(found[0]), shown)
    # An empty element is a syntax error to Graphviz.
    return shown if shown.strip() else "␣"


def _plain(text: str) -> str:
    """Return a text for a quoted attribute (a tooltip, a link), which keeps its lines."""
    lines = _BREAK.sub("\n", _printable(text)).replace("&", "&amp;").replace("\\", "\\\\").replace("\n", "\\n")
    quoted: str = graphviz.nohtml(lines)
    return quoted


def _printable(text: str) -> str:
    # Graphviz 2 leaves an ampersand alone where it seems to begin an entity, so that `&lt;` would show as `<`.
    return _LOOKS_LIKE_ENTITY.sub(f"&{_WORD_JOINER}", printable(text))
