"""The report: one HTML file that needs nothing else, and opens from a disk."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import jinja2
import torch
from markupsafe import Markup

from fxbucket.passes.errors import OptionError
from fxbucket.visualize.charts import HEAT_LEVELS, call_plot, compile_map, seconds_text, time_map
from fxbucket.visualize.explained import CallRecord, Explained, GraphFacts, explained
from fxbucket.visualize.fold import Fold
from fxbucket.visualize.inline import css_variables
from fxbucket.visualize.labels import printable, without_folders
from fxbucket.visualize.report import report_of, unique
from fxbucket.visualize.svg import DEFAULT_TIMEOUT, write_text
from fxbucket.visualize.theme import DARK, LIGHT, ThemeName, theme_named

_SCRIPTS = ("page_choose.js", "page_drawing.js", "page.js")


def save_page(
    subject: object,
    path: str | os.PathLike[str],
    *,
    title: str = "fxbucket report",
    theme: ThemeName | None = None,
    fold: Fold = "auto",
    source_links: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Write the report of a compiled model, or of one program, as one HTML file.

    The file holds everything and asks no network for anything. It shows the steps of the pipeline, and for each step, piece
    and bucket the graph and its code; the compiler's code where that is kept; axes, guards and buckets, those that were
    refused with the reason; seconds of compilation; and calls over time where a profile was taken. Where Graphviz's `dot`
    is missing it says so in the place of drawings.

    Args:
        subject: what ``fxbucket.compile`` or ``fxbucket.backend`` returns, its ``explain()``, or a program with its trail.
        path: the file; it is replaced.
        title: the heading.
        theme: ``"light"`` or ``"dark"``; ``None`` begins with what the reader's system prefers. The page has a switch.
        fold: as for :func:`~fxbucket.visualize.save_svg`, for each drawing.
        source_links: link ops to their source lines; ``False`` leaves the folders of paths out everywhere, so that the
            file may be handed on.
        timeout: seconds that each layout may take.

    Raises:
        OptionError: there is no report of such a subject, or an option has no such value.
        DrawingError: the file cannot be written.
    """
    text = page_text(subject, title=title, theme=theme, fold=fold, source_links=source_links, timeout=timeout)
    write_text(path, text)


def page_text(
    subject: object,
    *,
    title: str = "fxbucket report",
    theme: ThemeName | None = None,
    fold: Fold = "auto",
    source_links: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> str:
    """Return the report of a compiled model, or of one program, as HTML; the options are those of :func:`save_page`."""
    if theme is not None:
        theme_named(theme)
    if fold not in (True, False, "auto"):
        raise OptionError(f"fold={fold!r} is unknown; give True, False or 'auto'.")
    if not timeout > 0:
        raise OptionError(f"timeout={timeout!r} must be a number of seconds above 0.")
    shown = explained(subject)
    report = report_of(shown, fold=fold, source_links=source_links, timeout=timeout)
    style = _file("page.css")
    script = "\n".join(map(_file, _SCRIPTS))
    colours = _colours()
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown if source_links else _shown_without_folders,
    )
    return environment.from_string(_file("page.html.jinja")).render(
        title=title,
        theme=theme or "",
        style=Markup(colours + style),
        script=Markup(script),
        policy=Markup(_policy(colours + style, script)),
        graphs=[_graph(number, graph, shown) for number, graph in enumerate(shown.graphs)],
        is_model=shown.is_model,
        has_profile=shown.calls is not None,
        facts=_facts(shown),
        versions=_versions(),
        structure=report.structure,
        payload=Markup(_packed({"texts": report.texts, "drawings": report.drawings})),
        drawing_error=report.drawing_error,
        seconds_text=seconds_text,
        heat_levels=HEAT_LEVELS,
    )


def _file(name: str) -> str:
    return files("fxbucket.visualize").joinpath(name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def _shown_without_folders(value: Any) -> Any:
    return without_folders(printable(value)) if type(value) is str else value


def _colours() -> str:
    """Return the CSS of the drawings' colours, in both themes."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in css_variables(theme).items()) for theme in (LIGHT, DARK)
    )
    return (
        f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
    )


def _policy(style: str, script: str) -> str:
    """Return a content security policy under which nothing but the page's own script and style counts."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    return "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'".format(
        *hashes
    )


def _packed(payload: object) -> str:
    """Return an object as JSON, compressed, in letters that no HTML parser minds; equal objects give equal letters."""
    return base64.b64encode(gzip.compress(json.dumps(payload, separators=(",", ":")).encode(), 9, mtime=0)).decode()


def _graph(number: int, graph: GraphFacts, shown: Explained) -> dict[str, Any]:
    """Return what the template writes of a graph."""
    labels = unique([bucket.bucket for bucket in graph.buckets])
    order = [*labels, "as captured"]
    calls: Sequence[CallRecord] = [call for call in shown.calls or () if call.graph == number]
    return {
        "facts": graph,
        "labels": labels,
        "compile_map": compile_map(graph, labels),
        "plot": call_plot(calls, order),
        "time_map": time_map(calls, order, [piece.name for piece in graph.pieces]),
    }


def _facts(shown: Explained) -> list[tuple[str, str]]:
    """Return the numbers below the heading."""
    graphs = shown.graphs
    buckets = [bucket for graph in graphs for bucket in graph.buckets]
    refused = sum(bucket.state == "refused" for bucket in buckets)
    found = [("graphs", str(len(graphs))), ("pieces", str(sum(len(graph.pieces) for graph in graphs)))]
    found += [("buckets", f"{len(buckets)}" + (f", {refused} refused" if refused else ""))] if buckets else []
    if shown.is_model:
        calls = sum(bucket.calls for bucket in buckets) + sum(graph.eager_calls for graph in graphs)
        found += [("compilation", seconds_text(sum(bucket.seconds for bucket in buckets))), ("calls", str(calls))]
    return found


def _versions() -> str:
    try:
        own = version("fxbucket")
    except PackageNotFoundError:
        own = ""
    return f"fxbucket {own} and torch {torch.__version__}".replace("  ", " ")
