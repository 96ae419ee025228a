"""Explanations and suggestions as tables: for a terminal, and for a notebook."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from fxbucket.explain import Explanation, GraphFacts
    from fxbucket.suggest import Suggestion

_NOTHING = "nothing is captured yet: call the model, or warmup(...) it."

# A notebook may be light or dark: text and lines take its own colour.
_CELL = "border: 1px solid color-mix(in srgb, currentColor 25%, transparent); padding: 2px 8px; text-align: left"


@dataclass(frozen=True)
class Table:
    """A title, the heads of columns, and rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(graph: GraphFacts) -> tuple[Table, ...]:
    """Return what is known of a captured graph: pieces, axes, guards, buckets, misses."""
    pieces = tuple((piece.name, piece.kind, str(piece.num_nodes), piece.reason) for piece in graph.pieces)
    axes = tuple((axis.name, axis.symbol, axis.range, ", ".join(axis.expressions)) for axis in graph.axes)
    buckets = tuple(
        (
            bucket.bucket,
            bucket.state,
            f"{bucket.seconds:.2f}",
            f"{bucket.calls}" + (f", {bucket.padded} of them padded" if bucket.padded else ""),
            "; ".join(text for text in (bucket.reason, bucket.recording, *bucket.conditions) if text),
        )
        for bucket in graph.buckets
    )
    found = [
        Table("pieces", ("piece", "kind", "nodes", "why"), pieces),
        Table("axes", ("axis", "symbol", "range", "read by"), axes),
    ]
    if graph.guards:
        found.append(Table("guards", ("the capture is valid while",), tuple((guard,) for guard in graph.guards)))
    found.append(Table("buckets", ("bucket", "state", "seconds", "calls", "conditions or reason"), buckets))
    notes: dict[tuple[str, str], list[str]] = {}
    for bucket in graph.buckets:
        for artifact in bucket.artifacts:
            if artifact.note:
                notes.setdefault((artifact.name, artifact.note), []).append(bucket.bucket)
    if notes:
        rows = tuple((name, "; ".join(buckets), note) for (name, note), buckets in notes.items())
        found.append(Table("not stored, or not made by a worker", ("piece", "buckets", "why"), rows))
    if graph.coverage:
        found.append(Table("ranges", ("what to know of them",), tuple((text,) for text in graph.coverage)))
    if graph.unpadded:
        found.append(Table("not padded", ("why",), tuple((text,) for text in graph.unpadded)))
    if graph.misses:
        misses = tuple((sizes, str(count)) for sizes, count in graph.misses.items())
        found.append(Table("misses", ("sizes", "calls"), misses))
    if graph.suggested:
        rows = tuple(
            (name, ", ".join(map(str, suggestion.sizes)), f"{suggestion.waste_share:.1%}")
            for name, suggestion in graph.suggested.items()
        )
        found.append(Table("sizes to pin, by the calls so far", ("axis", "sizes", "padding, if all calls are padded"), rows))
    return tuple(found)


def explanation_text(explanation: Explanation) -> str:
    """Return an explanation as tables for a terminal of 120 columns."""
    console = _console()
    if not explanation.graphs:
        console.print(_NOTHING)
    for number, graph in enumerate(explanation.graphs):
        console.print(_headline(number, graph))
        for one in tables_of(graph):
            console.print(_rich(one))
        if graph.eager_calls:
            console.print(_eager(graph))
    if explanation.recorded_bytes:
        console.print(_recorded(explanation))
    return _printed(console)


def explanation_html(explanation: Explanation) -> str:
    """Return an explanation as HTML tables for a notebook."""
    parts = [] if explanation.graphs else [f"<p>{_NOTHING}</p>"]
    for number, graph in enumerate(explanation.graphs):
        parts.append(f"<p><b>{html.escape(_headline(number, graph))}</b></p>")
        parts += [_html(table) for table in tables_of(graph)]
        if graph.eager_calls:
            parts.append(f"<p>{html.escape(_eager(graph))}</p>")
    if explanation.recorded_bytes:
        parts.append(f"<p>{_recorded(explanation)}</p>")
    return "\n".join(parts)


def _recorded(explanation: Explanation) -> str:
    return f"CUDA graphs hold {explanation.recorded_bytes / 2**20:.1f} MB: the pool that all of them share, and buffers."


def tables_of_suggestion(suggestion: Suggestion) -> tuple[Table, ...]:
    """Return what each suggested size serves, and what the other ladders cost."""
    steps = tuple(
        (
            str(step.size),
            _number(step.calls),
            f"{step.calls / suggestion.calls:.1%}",
            _number(step.waste),
            f"{step.waste / step.rows if step.rows else 0:.1%}",
        )
        for step in suggestion.steps
    )
    ladders = tuple(
        (
            ladder.name,
            _number(ladder.waste),
            f"{ladder.waste_share:.1%}",
            _number(ladder.cost),
            ", ".join(map(str, ladder.sizes)),
        )
        for ladder in (suggestion, *suggestion.ladders)
    )
    columns = ("size", "calls", "of all calls", "rows of padding", "of its rows")
    return (
        Table("sizes to pin", columns, steps),
        Table("ladders", ("ladder", "rows of padding", "of all rows", "cost", "sizes"), ladders),
    )


def suggestion_text(suggestion: Suggestion) -> str:
    """Return a suggestion as tables for a terminal of 120 columns."""
    console = _console()
    console.print(_suggestion_headline(suggestion))
    for one in tables_of_suggestion(suggestion):
        console.print(_rich(one))
    return _printed(console)


def suggestion_html(suggestion: Suggestion) -> str:
    """Return a suggestion as HTML tables for a notebook."""
    headline = f"<p><b>{html.escape(_suggestion_headline(suggestion))}</b></p>"
    return "\n".join([headline, *(_html(table) for table in tables_of_suggestion(suggestion))])


def _suggestion_headline(suggestion: Suggestion) -> str:
    sizes, calls = (f"{_number(count)} {what}{'' if count == 1 else 's'}" for count, what in (
        (len(suggestion.sizes), "size"), (suggestion.calls, "call"),
    ))  # fmt: skip
    return f"{sizes} for {calls}: {suggestion.waste_share:.1%} of all rows are padding"


def _number(value: float) -> str:
    """Return a count, or a weight that need not be whole."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _console() -> Console:
    from rich.console import Console

    # Brackets in names and reasons are no markup.
    return Console(file=io.StringIO(), width=120, color_system=None, markup=False)


def _printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    # Rich fills the line of a title up with spaces.
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())


def _rich(table: Table) -> RichTable:
    from rich import table as rich_table

    made = rich_table.Table(*table.columns, title=table.title, title_justify="left")
    for row in table.rows:
        made.add_row(*row)
    return made


def _headline(number: int, graph: GraphFacts) -> str:
    return f"graph {number}" + (f": runs as it is, {graph.refusal}" if graph.refusal else "")


def _eager(graph: GraphFacts) -> str:
    return f"calls of the captured graph as it is: {graph.eager_calls}"


def _html(table: Table) -> str:
    head = "".join(f'<th scope="col" style="{_CELL}">{html.escape(column)}</th>' for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<table style="border-collapse: collapse; margin: 0 0 1em"><caption style="text-align: left; color: inherit">'
        f"{html.escape(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )
