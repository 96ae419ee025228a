"""``fxbucket suggest``: which sizes to pin, from a table of the sizes that were seen."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Literal

import typer


def suggest(
    histogram: Annotated[
        Path,
        typer.Argument(
            metavar="HISTOGRAM.csv", exists=True, dir_okay=False, help="A table with the columns size and count; # comments."
        ),
    ],
    budget: Annotated[int, typer.Option(min=1, help="How many sizes to pin at most.")] = 8,
    multiple_of: Annotated[int, typer.Option(min=1, help="Pinned sizes are multiples of it.")] = 1,
    must_include: Annotated[
        list[int] | None, typer.Option(metavar="SIZE", help="Pin this size whatever it costs. May be repeated.")
    ] = None,
    padding_cost: Annotated[float, typer.Option(min=0, help="What one row of padding costs.")] = 1.0,
    compile_cost: Annotated[float, typer.Option(min=0, help="What one more pinned size costs, in the same unit.")] = 0.0,
    svg: Annotated[Path | None, typer.Option(dir_okay=False, help="Draw it into this file.")] = None,
    theme: Annotated[Literal["light", "dark"], typer.Option(help="The colours of the picture.")] = "light",
    format: Annotated[Literal["text", "json"], typer.Option(help="Tables, or JSON.")] = "text",
) -> None:
    """Suggest the sizes to pin so that padding wastes the least.

    Powers of two and equal steps are shown beside them.
    """
    from fxbucket.suggest import suggest_sizes
    from fxbucket.visualize import save_suggestion

    found = suggest_sizes(
        histogram_of(histogram),
        budget,
        padding_cost=padding_cost,
        compile_cost=compile_cost,
        multiple_of=multiple_of,
        must_include=must_include or (),
    )
    if format == "json":
        import json

        typer.echo(json.dumps(found.data(), indent=1))
    else:
        typer.echo(str(found))
    if svg is not None:
        save_suggestion(found, svg, theme=theme)


def histogram_of(path: Path) -> dict[int, float]:
    """Return size → count from a CSV file with a head of at least these two columns; a size that comes again is added up.

    Empty lines and lines that begin with ``#`` are left out.

    Raises:
        OptionError: the file is no such table; the message names the line.
    """
    from fxbucket.passes.errors import OptionError

    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise OptionError(f"{path} is no text in UTF-8; save the table as CSV in UTF-8.") from None
    told = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    head = [name.strip() for name in _cells(told[0][1])] if told else []
    if not {"size", "count"} <= set(head):
        first = told[0][1] if told else ""
        raise OptionError(f"{path}: the first line must name the columns: size,count; it is {first[:60]!r}.")
    found: dict[int, float] = {}
    for number, line in told[1:]:
        cells = dict(zip(head, _cells(line), strict=False))
        try:
            size, text = int(cells["size"]), cells["count"].strip()
            count = int(text) if text.lstrip("+-").isdecimal() else float(text)
        except (KeyError, ValueError):
            raise OptionError(
                f"{path}, line {number}: {line[:60]!r} is no size with its count; write for example 512,20."
            ) from None
        found[size] = found.get(size, 0) + count
    return found


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], skipinitialspace=True))
    except csv.Error:
        return []
