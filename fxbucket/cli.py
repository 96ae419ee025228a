"""The command line: ``fxbucket demo``, ``render``, ``report``, ``explain``, ``suggest``, ``cache`` and ``doctor``.

Exit codes: 0 all is well, 1 something was run and is not as promised, 2 the command line itself is wrong, 3 something
that the command needs is not installed.

torch takes seconds to import, so each command imports what it needs, and ``--help`` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import fxbucket
from fxbucket import cache_commands, suggest_command

if TYPE_CHECKING:
    from fxbucket.model_spec import Example

BROKEN, WRONG_USAGE, MISSING = 1, 2, 3

app = typer.Typer(
    help="One trace, many static compilations, one table look-up a call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cache_commands.app, name="cache")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="module:factory or path/to/file.py:factory. The factory takes nothing and returns (model, args) or "
        "(model, args, kwargs): the arguments of an example call.",
    ),
]
Axes = Annotated[
    list[str] | None,
    typer.Option("--axes", metavar="NAME=EXPR", help="A size that varies: tokens=x.shape[0]. May be repeated."),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="AXIS=SIZE,...",
        help="Pinned sizes: tokens=256,512, or x.shape[0]=256. Axes are crossed; b=1,t=128 is one combination.",
    ),
]
Split = Annotated[
    list[str] | None, typer.Option("--split", metavar="OP", help="Cut at this op: aten::sigmoid. May be repeated.")
]
Compiler = Annotated[str, typer.Option(help="inductor, aot_eager, eager, or any backend of torch.compile.")]
Theme = Annotated[Literal["light", "dark"], typer.Option(help="The colours of pictures.")]
Full = Annotated[
    bool | None, typer.Option("--full/--folded", help="Draw every node, or what repeats once. Default: what can be read.")
]
Links = Annotated[
    bool, typer.Option("--source-links/--no-source-links", help="Link ops to their source lines, by paths of this machine.")
]


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
    compiler: Compiler = "inductor",
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of each competitor at each size.")] = 100,
    threads: Annotated[int, typer.Option(min=1, help="Torch's threads; one keeps times steady.")] = 1,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest absolute difference of the logits from eager.")] = 1e-5,
) -> None:
    """Compile a small Llama, compare it with eager, time it, and draw it.

    Ends with code 1 where a result is not eager's, or a size is not served by its own bucket.
    """
    from rich.console import Console

    from fxbucket.demo import Plan, run
    from fxbucket.visualize import save_svg

    sizes = tuple(size) if size else Plan.sizes
    plan = Plan(sizes=sizes, compiler=compiler, rounds=rounds, threads=threads, tolerance=tolerance)
    problems = run(plan, out, save_svg, Console())
    for problem in problems:
        _complain(f"not as promised: {problem}")
    if problems:
        raise typer.Exit(BROKEN)


@app.command()
def render(
    model: Model,
    axes: Axes = None,
    sizes: Sizes = None,
    split: Split = None,
    step: Annotated[
        str, typer.Option(help="captured, split, discover, admit, concretize or verify, or its number. Default: the last.")
    ] = "",
    bucket: Annotated[str, typer.Option(metavar="AXIS=SIZE,...", help="Make it concrete for these sizes.")] = "",
    piece: Annotated[str, typer.Option(help="Show one piece: its name or number.")] = "",
    against: Annotated[str, typer.Option(metavar="STEP", help="Show what differs from this step.")] = "",
    graph: Annotated[int, typer.Option(min=0, help="Which graph, where the model breaks into several.")] = 0,
    format: Annotated[
        Literal["svg", "dot", "text", "html", "json"] | None,
        typer.Option(help="Default: what --out ends in, else text."),
    ] = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="The file. Default: standard output.")] = None,
    theme: Theme = "light",
    full: Full = None,
    source_links: Links = True,
) -> None:
    """Print or draw a model at one step of the pipeline.

    The model is called once, uncompiled, with the arguments that the factory gives.
    """
    from fxbucket.command_values import bucket_of
    from fxbucket.model_spec import captured_program
    from fxbucket.render import View, format_for
    from fxbucket.render import render as write

    kind = format_for(format, out)
    fold: Any = "auto" if full is None else not full
    pinned = bucket_of(bucket) if bucket else None
    view = View(step, pinned, piece, against, theme, fold, source_links)
    program = captured_program(_example(model), graph, **_given(axes, sizes, split))
    write(program, view, kind, out)


@app.command()
def explain(
    model: Model,
    axes: Axes = None,
    sizes: Sizes = None,
    split: Split = None,
    compiler: Compiler = "inductor",
    format: Annotated[Literal["text", "json"], typer.Option(help="Tables, or JSON.")] = "text",
) -> None:
    """Print what was captured, cut, compiled and served.

    The model is compiled and called once with the arguments that the factory gives.
    """
    import json

    from fxbucket.model_spec import called

    compiled = called(_example(model), compiler=compiler, **_given(axes, sizes, split))
    explanation = compiled.explain()
    typer.echo(json.dumps(explanation.data(), indent=1, default=str) if format == "json" else str(explanation))


@app.command()
def report(
    model: Model,
    axes: Axes = None,
    sizes: Sizes = None,
    split: Split = None,
    compiler: Compiler = "inductor",
    out: Annotated[Path, typer.Option(dir_okay=False, help="The file; it is replaced.")] = Path("report.html"),
    calls: Annotated[int, typer.Option(min=0, help="Record so many more calls, for the plots of time.")] = 0,
    full: Full = None,
    source_links: Links = True,
) -> None:
    """Write one HTML file about a model, its pieces and buckets.

    The model is compiled and called once with the arguments that the factory gives. The file needs no network.
    """
    from fxbucket.model_spec import called, profile_calls
    from fxbucket.visualize import save_page

    example = _example(model)
    compiled = called(example, compiler=compiler, **_given(axes, sizes, split))
    if calls:
        profile_calls(compiled, example, calls)
    fold: Any = "auto" if full is None else not full
    save_page(compiled, out, title=Path(model).name, fold=fold, source_links=source_links)
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")


app.command()(suggest_command.suggest)


@app.command()
def doctor() -> None:
    """Show what is missing on this machine, and what to do.

    Ends with code 3 where something is missing without which models cannot be compiled.
    """
    from rich.console import Console

    from fxbucket.doctor import examine, table_of

    checks = examine()
    Console().print(table_of(checks))
    if any(check.state == "needed" for check in checks):
        raise typer.Exit(MISSING)


def _given(axes: list[str] | None, sizes: list[str] | None, split: list[str] | None) -> dict[str, Any]:
    from fxbucket.command_values import axes_of, sizes_of

    return {"axes": axes_of(axes or ()), "sizes": sizes_of(sizes or ()), "splitting_ops": split or []}


def _example(model: str) -> Example:
    from fxbucket.model_spec import load_example

    return load_example(model)


def _complain(text: str) -> None:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(text, style="red", markup=False, highlight=False)


def main() -> None:
    """Run the command line; an error that fxbucket raises on purpose is printed without a traceback."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app()
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        _complain(f"fxbucket: {error}")
        sys.exit(code)
    finally:
        warnings.formatwarning = usual


def _exit_code(error: Exception) -> int | None:
    """Return the code to end with; ``None`` for an error that nobody raised on purpose."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        error.msg = "torch is not installed: pip install torch"
        return MISSING
    # Where torch is too old, the package of the errors cannot be imported, and its module of errors is loaded already.
    errors = sys.modules.get("fxbucket.passes.errors")
    if errors is None or not isinstance(error, errors.FxbucketError):
        return None
    if isinstance(error, (errors.OptionError, errors.AxisError, errors.SizeError, errors.BoundaryError)):
        return WRONG_USAGE
    return MISSING if isinstance(error, ImportError) else BROKEN
