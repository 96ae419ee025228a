"""The command line: ``fxbucket demo`` and ``fxbucket doctor``.

Exit codes: 0 all is well, 1 something was run and is not as promised, 2 the command line itself is wrong, 3 something
that the command needs is not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import fxbucket
from fxbucket.demo import MissingPackageError, Plan, run
from fxbucket.doctor import examine
from fxbucket.passes.errors import FxbucketError, OptionError, UnsupportedTorchError
from fxbucket.visualize import save_svg

BROKEN, WRONG_USAGE, MISSING = 1, 2, 3

app = typer.Typer(
    help="One trace, many static compilations, one table look-up a call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fxbucket {fxbucket.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """One trace, many static compilations, one table look-up a call."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder for pictures and texts.")] = Path("out"),
    size: Annotated[
        list[int] | None, typer.Option(min=2, help="A pinned number of tokens; may be repeated. Default: 16, 64, 128.")
    ] = None,
    compiler: Annotated[str, typer.Option(help="Any backend of torch.compile.")] = Plan.compiler,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of each competitor at each size.")] = Plan.rounds,
    threads: Annotated[int, typer.Option(min=1, help="Torch's threads; one keeps times steady.")] = Plan.threads,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest absolute difference of the logits from eager.")
    ] = Plan.tolerance,
) -> None:
    """Compile a small Llama for a few sizes; compare it with eager, time it beside torch.compile, and draw it.

    Ends with code 1 where a result is not eager's, or a size is not served by its own bucket.
    """
    sizes = tuple(size) if size else Plan.sizes
    plan = Plan(sizes=sizes, compiler=compiler, rounds=rounds, threads=threads, tolerance=tolerance)
    problems = run(plan, out, save_svg, Console())
    errors = Console(stderr=True)
    for problem in problems:
        errors.print(f"not as promised: {problem}", style="red", markup=False, highlight=False)
    if problems:
        raise typer.Exit(BROKEN)


@app.command()
def doctor() -> None:
    """Show what fxbucket needs, what this machine has, and what to do about the rest.

    Ends with code 3 where something is missing without which models cannot be compiled.
    """
    words = {"ok": "[green]ok[/green]", "optional": "[yellow]missing[/yellow]", "needed": "[red]MISSING[/red]"}
    checks = examine()
    table = Table("", "what", box=box.SIMPLE)
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for check in checks:
        table.add_row(words[check.state], check.name, check.found, check.mend)
    Console().print(table)
    if any(check.state == "needed" for check in checks):
        raise typer.Exit(MISSING)


def main() -> None:
    """Run the command line; an error that fxbucket raises on purpose is printed without a traceback."""
    try:
        app()
    except FxbucketError as error:
        Console(stderr=True).print(f"fxbucket: {error}", style="red", markup=False, highlight=False)
        sys.exit(_exit_code(error))


def _exit_code(error: FxbucketError) -> int:
    if isinstance(error, OptionError):
        return WRONG_USAGE
    return MISSING if isinstance(error, (MissingPackageError, UnsupportedTorchError)) else BROKEN
