"""The demo: a small Llama, captured once, compiled for a few sizes, compared with eager and timed beside torch.compile."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import fxbucket
from fxbucket.passes.concretize import Concretize
from fxbucket.passes.errors import DrawingError, FxbucketError
from fxbucket.passes.pipeline import Pipeline
from fxbucket.passes.program import Program
from fxbucket.passes.text import axis_namer, piece_text
from fxbucket.passes.verify import Verify

AXIS = "tokens"
EXPRESSION = "input_ids.shape[1]"
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
VOCABULARY = 256
WARMUP_ROUNDS = 5

Draw = Callable[[Program, Path], None]
"""Writes a picture of a program; raises :class:`DrawingError` where that is not possible."""


class MissingPackageError(FxbucketError, ImportError):
    """The demo needs a package that fxbucket itself does not."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the demo does.

    Attributes:
        sizes: pinned numbers of tokens, each at least 2.
        compiler: a backend of ``torch.compile``, for fxbucket and for the comparison alike.
        rounds: timed calls of each competitor at each size.
        tolerance: largest absolute difference of the logits from eager.
        threads: torch's threads for everything; one keeps the times steady on a busy machine.
    """

    sizes: tuple[int, ...] = (16, 64, 128)
    compiler: str = "inductor"
    rounds: int = 100
    tolerance: float = 1e-5
    threads: int = 1

    @property
    def others(self) -> tuple[int, ...]:
        """Sizes that are not pinned: one between any two that are, and one beyond."""
        ordered = sorted(self.sizes)
        between = [(low + high) // 2 for low, high in itertools.pairwise(ordered)]
        return tuple(size for size in (*between, ordered[-1] * 3 // 2) if size not in self.sizes)

    def bucket_for(self, size: int) -> str:
        """Return the name of the bucket that should serve a size."""
        return f"{AXIS}={size}" if size in self.sizes else "dynamic"


@dataclass(frozen=True)
class Row:
    """What was seen at one size; times are medians in milliseconds."""

    size: int
    served_by: str
    difference: float
    eager: float
    dynamic: float
    fxbucket: float


def llama() -> torch.nn.Module:
    """Return a Llama of two layers with random weights.

    Raises:
        MissingPackageError: transformers is not installed.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise MissingPackageError(f"the demo's model comes from transformers ({error}): pip install transformers") from error
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config).eval()
    return model


def run(plan: Plan, out: Path, draw: Draw, console: Console) -> list[str]:
    """Run the demo, print what it finds, and leave pictures and texts in a folder.

    Args:
        plan: what to do.
        out: the folder; it is made where missing, and files of the same names are replaced.
        draw: makes the pictures.
        console: where the tables go.

    Returns:
        One sentence for each promise that was not kept; empty when all is well.
    """
    torch.manual_seed(0)
    model = llama()
    console.print(
        f"Llama with 2 layers, {sum(weight.numel() for weight in model.parameters()):,} parameters; torch "
        f"{torch.__version__}, threads: {plan.threads}, compiler: {plan.compiler}"
    )
    compiled = fxbucket.compile(
        model,
        axes={AXIS: EXPRESSION},
        sizes={AXIS: list(plan.sizes)},
        splitting_ops=[ATTENTION],
        compiler=plan.compiler,
    )
    dynamic = torch.compile(model, backend=plan.compiler, dynamic=True)
    with torch.no_grad(), _threads(plan.threads), _empty_disk_cache():
        _start_compiler(plan.compiler)
        started = time.perf_counter()
        compiled.warmup(input_ids=_tokens(plan.sizes[0]))
        seconds = time.perf_counter() - started
        with console.status("torch.compile(dynamic=True), for comparison"):
            started = time.perf_counter()
            dynamic(input_ids=_tokens(plan.others[0]))
            dynamic_seconds = time.perf_counter() - started
        with console.status("timing"):
            rows = _measure(model, dynamic, compiled, plan)
    console.print(_times_table(rows, plan))
    console.print(
        f"compiled from an empty cache: {len(plan.sizes)} pinned sizes and the dynamic fallback in {seconds:.1f} s; "
        f"torch.compile(dynamic=True) in {dynamic_seconds:.1f} s"
    )
    console.print(f"captured graphs: {len(compiled.programs)}")
    _write(compiled, plan, out, draw, console)
    return _problems(rows, len(compiled.programs), plan)


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _empty_disk_cache() -> Iterator[None]:
    """While the context is open, Inductor starts from an empty cache on disk, so that seconds of compilation compare."""
    variable = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(variable)
    # Inductor's worker processes may still write there when the demo ends.
    with tempfile.TemporaryDirectory(prefix="fxbucket-demo-", ignore_cleanup_errors=True) as folder:
        os.environ[variable] = folder
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before


def _start_compiler(compiler: str) -> None:
    """Compile something small, so that neither competitor pays for the compiler's imports and precompiled headers."""
    torch.compile(lambda x: x.sin() + 1, backend=compiler)(torch.ones(8))


def _tokens(size: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, size))


def _measure(model: Any, dynamic: Any, compiled: Any, plan: Plan) -> list[Row]:
    """Return what each size shows: who serves it, how far it is from eager, and the times."""
    calls = {size: _tokens(size) for size in (*plan.sizes, *plan.others)}
    agreement = []
    for tokens in calls.values():
        before = compiled.explain().calls()
        logits = compiled(input_ids=tokens).logits
        served = [name for name, count in compiled.explain().calls().items() if count > before.get(name, 0)]
        difference = (logits - model(input_ids=tokens).logits).abs().max().item()
        agreement.append((", ".join(served) or "nothing", difference))
    times = _medians((model, dynamic, compiled), list(calls.values()), plan.rounds)
    return [Row(size, *seen, *medians) for size, seen, medians in zip(calls, agreement, times, strict=True)]


def _medians(competitors: Sequence[Any], calls: Sequence[torch.Tensor], rounds: int) -> list[tuple[float, ...]]:
    """Return for each call the competitors' medians in ms.

    A round is one call of each competitor at each size, so that a slow moment of the machine meets all of them alike.
    """
    seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
    for count in range(-WARMUP_ROUNDS, rounds):
        for call, tokens in enumerate(calls):
            for number, competitor in enumerate(competitors):
                started = time.perf_counter()
                competitor(input_ids=tokens)
                if count >= 0:
                    seconds[call, number].append(time.perf_counter() - started)
    numbers = range(len(competitors))
    return [tuple(statistics.median(seconds[call, number]) * 1000 for number in numbers) for call in range(len(calls))]


def _times_table(rows: Sequence[Row], plan: Plan) -> Table:
    title = f"median of {plan.rounds} calls in ms; dynamic is torch.compile(dynamic=True)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in (AXIS, "served by", "max diff", "eager", "dynamic", "fxbucket", "vs eager", "vs dynamic"):
        table.add_column(column, justify="left" if column == "served by" else "right", no_wrap=True)
    for row in rows:
        wrong = row.difference > plan.tolerance
        table.add_row(
            str(row.size),
            row.served_by,
            f"[red]{row.difference:.1e}[/red]" if wrong else f"{row.difference:.1e}",
            f"{row.eager:.2f}",
            f"{row.dynamic:.2f}",
            f"{row.fxbucket:.2f}",
            f"{row.eager / row.fxbucket:.2f}x",
            f"{row.dynamic / row.fxbucket:.2f}x",
        )
    return table


def _problems(rows: Sequence[Row], captures: int, plan: Plan) -> list[str]:
    found = [
        f"{row.size} tokens: the logits differ from eager by {row.difference:.1e}, more than {plan.tolerance:.1e}"
        for row in rows
        if not row.difference <= plan.tolerance  # not a number counts as a difference
    ]
    found += [
        f"{row.size} tokens: served by {row.served_by}, not by {plan.bucket_for(row.size)}"
        for row in rows
        if row.served_by != plan.bucket_for(row.size)
    ]
    if captures != 1:
        found.append(f"the model was captured {captures} times, not once; explain.txt says why")
    return found


def _write(compiled: Any, plan: Plan, out: Path, draw: Draw, console: Console) -> None:
    """Leave every piece as text, the explanation, and pictures of the program before and after Concretize."""
    symbolic = compiled.programs[0]
    size = sorted(plan.sizes)[len(plan.sizes) // 2]
    concrete = Pipeline((Concretize({AXIS: size}), Verify()))(symbolic)
    pieces = out / "pieces"
    pieces.mkdir(parents=True, exist_ok=True)
    for program, label in ((symbolic, "symbolic"), (concrete, str(size))):
        name = axis_namer(program.axes)
        for piece in program.pieces:
            (pieces / f"{piece.name}_{label}.txt").write_text(piece_text(piece, name) + "\n", encoding="utf-8")
    explanation = compiled.explain()
    sources = [text for graph in explanation.graphs for text in (graph.source, *graph.bucket_sources.values())]
    (out / "explain.txt").write_text("\n\n".join([str(explanation), *sources]), encoding="utf-8")
    written = [
        ("pieces/*.txt", f"every piece: symbolic, and for {size} {AXIS}"),
        ("explain.txt", "pieces, buckets, calls and misses; the Python that runs each bucket"),
    ]
    try:
        for program, file, what in (
            (symbolic, "split.svg", "the graph, cut at attention"),
            (concrete, f"concrete_{size}.svg", f"the same for {size} {AXIS}: no symbol is left"),
        ):
            draw(program, out / file)
            written.append((file, what))
    except DrawingError as error:
        console.print(f"skipped the pictures split.svg and concrete_{size}.svg: {error}", style="yellow")
    table = Table("file", "what it shows", title=f"left in {out}", title_justify="left", box=box.SIMPLE)
    for file, what in sorted(written):
        table.add_row(file, what)
    console.print(table)
