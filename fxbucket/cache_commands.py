"""``fxbucket cache``: what the store of artifacts holds, and less of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from fxbucket.store import EntryFacts, Store

DAMAGED = 1

app = typer.Typer(
    help="Show and prune the artifacts that are kept on disk.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--cache", file_okay=False, help="The folder. Default: $FXBUCKET_CACHE_DIR, or the user's folder for caches."
    ),
]
Format = Annotated[Literal["text", "json"], typer.Option(help="A table, or JSON.")]


@app.command()
def path(cache: Folder = None) -> None:
    """Print the folder; it need not exist."""
    typer.echo(_folder(cache))


@app.command("ls")
def list_entries(cache: Folder = None, format: Format = "text") -> None:
    """List the artifacts, the one that was used last first."""
    store = _store(cache)
    _show([] if store is None else store.entries(), format, _folder(cache))


@app.command()
def verify(cache: Folder = None, format: Format = "text") -> None:
    """Read every artifact, and list those that are damaged or that others may write to.

    Ends with code 1 where there are any. At its next use, such an artifact is compiled again and replaced.
    """
    store = _store(cache)
    found = [] if store is None else list(store.verify())
    faulty = [facts for facts in found if facts.fault]
    if format == "json" or faulty:
        _show(faulty, format, _folder(cache))
    if format == "text":
        typer.echo(f"{_counted(len(found))} read, {len(faulty)} of them cannot be used")
    if faulty:
        raise typer.Exit(DAMAGED)


@app.command()
def prune(
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="How much may stay: 500MB, 2GB, 1.5GiB, or a number of bytes.")
    ],
    cache: Folder = None,
    format: Format = "text",
) -> None:
    """Remove what cannot be used, then what was used longest ago, until no more than a size is left."""
    from fxbucket.command_values import size_of

    most = size_of(max_size, "--max-size")
    store = _store(cache)
    removed = [] if store is None else store.prune(most)
    if format == "json":
        _show(removed, format, _folder(cache))
        return
    left = 0 if store is None else sum(facts.size for facts in store.entries())
    typer.echo(f"{_counted(len(removed))} removed, {_size(sum(facts.size for facts in removed))}; {_size(left)} left")


@app.command()
def clear(cache: Folder = None) -> None:
    """Remove every artifact."""
    store = _store(cache)
    typer.echo(f"{_counted(0 if store is None else store.clear())} removed")


def _folder(cache: Path | None) -> Path:
    from fxbucket.store import default_folder

    return (cache or default_folder()).expanduser()


def _store(cache: Path | None) -> Store | None:
    """Return the store; ``None`` where there is none, which a command that looks need not make."""
    from fxbucket.store import Store

    folder = _folder(cache)
    return Store(folder) if folder.exists() else None


def _show(found: Iterable[EntryFacts], format: str, folder: Path) -> None:
    entries = sorted(found, key=lambda facts: facts.used, reverse=True)
    if format == "json":
        import json

        data = {
            "folder": str(folder),
            "size": sum(facts.size for facts in entries),
            "artifacts": [_plain(e) for e in entries],
        }
        typer.echo(json.dumps(data, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("key", "title", "size", "last used", "fault")
    for facts in entries:
        table.add_row(facts.key[:12], str(facts.about.get("title", "")), _size(facts.size), _when(facts.used), facts.fault)
    if not any(facts.fault for facts in entries):
        table.columns.pop()
    # Brackets in titles and paths are no markup.
    console = Console(markup=False, highlight=False)
    console.print(table)
    total = f"{_counted(len(entries))}, {_size(sum(facts.size for facts in entries))}"
    console.print(f"{total}, in {folder}", soft_wrap=True)


def _plain(facts: EntryFacts) -> dict[str, Any]:
    return {
        "key": facts.key, "path": str(facts.path), "size": facts.size, "used": facts.used, "about": dict(facts.about),
        "fault": facts.fault,
    }  # fmt: skip


def _counted(number: int) -> str:
    return "1 artifact" if number == 1 else f"{number} artifacts"


def _size(num_bytes: int) -> str:
    from rich.filesize import decimal

    return decimal(num_bytes)


def _when(used: float) -> str:
    import datetime

    return f"{datetime.datetime.fromtimestamp(used):%Y-%m-%d %H:%M}"
