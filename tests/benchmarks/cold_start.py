"""How long the first result of a stack of layers takes: cold, with workers, warm, and against torch.compile a size.

Every figure is a process of its own with fresh cache folders, so that nothing of another run helps; times run from before
the model is compiled to after the first result at each pinned size. ``python -m tests.benchmarks.cold_start [--write]``
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fxbucket
from fxbucket.passes import Discover, Pipeline, Split, at_op
from tests.benchmarks.document import IMAGES, provenance, save_bars, save_plot, table, write_section
from tests.benchmarks.fresh import in_new_process
from tests.benchmarks.layers import GatedLayer

WIDTH, HEADS = 64, 4
SIZES = (16, 32, 64, 128)
LAYERS = 16
GROWTH = (1, 2, 4, 8, 16, 32, 64)


@torch.library.custom_op("fxbucket_benchmark::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend within one packed sequence: what a serving engine keeps out of the compiler."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).contiguous()


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


class Layer(GatedLayer):
    """A layer like Llama's: RMS norm, attention, RMS norm, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return ``(tokens, width)``."""
        q, k, v = self.qkv(self.first(x)).view(x.shape[0], 3, HEADS, -1).permute(1, 2, 0, 3)
        x = x + self.out(attention(q, k, v).transpose(0, 1).reshape(x.shape[0], WIDTH))
        return self.fed_forward(x)


def stack(num_layers: int) -> torch.nn.Module:
    """Return layers one after the other."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer() for _ in range(num_layers)))


def first_results(how: str, num_layers: int, sizes: list[int], workers: int) -> dict[str, Any]:
    """Compile a stack and call it at each size once; runs in a process of its own."""
    torch.set_num_threads(1)
    model = stack(num_layers)
    inputs = [torch.randn(size, WIDTH) for size in sizes]
    started = time.perf_counter()
    with torch.no_grad():
        if how == "fxbucket":
            options = {"sizes": {"input.shape[0]": sizes}, "splitting_ops": [attention], "workers": workers}
            compiled = fxbucket.compile(model, **options)
            for x in inputs:
                compiled(x)
        else:
            for x in inputs:
                compiled = torch.compile(model, dynamic=False)
                compiled(x)
        seconds = time.perf_counter() - started
        for x in inputs:
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    artifacts: list[Any] = []
    if how == "fxbucket":
        (graph,) = compiled.explain().graphs
        artifacts = [artifact for bucket in graph.buckets for artifact in bucket.artifacts]
    made = sum(artifact.origin in ("compiled", "worker") for artifact in artifacts)
    loaded = sum(artifact.origin == "loaded" for artifact in artifacts)
    return {"seconds": seconds, "compiled": made, "loaded": loaded}


def run(how: str, num_layers: int, sizes: tuple[int, ...] = SIZES, workers: int = 1, store: Path | None = None) -> Any:
    """Return what :func:`first_results` gives in a new process with an Inductor cache folder of its own."""
    return in_new_process(first_results, how, num_layers, list(sizes), workers, store=store)


def prepare_seconds(num_layers: int) -> tuple[float, float]:
    """Return the seconds of the capture and of the split of a stack."""
    model, x = stack(num_layers), torch.randn(SIZES[0], WIDTH)
    torch.compiler.reset()
    started = time.perf_counter()
    program = fxbucket.capture(model, x, dynamic=["input.shape[0]"])
    captured = time.perf_counter()
    Pipeline([Split(at_op("fxbucket_benchmark::attention")), Discover()])(program)
    return captured - started, time.perf_counter() - captured


def main() -> None:
    """Measure, print, and with ``--write`` renew docs/benchmarks.md."""
    quick = "--quick" in sys.argv
    layers, sizes = (4, SIZES[:2]) if quick else (LAYERS, SIZES)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        alone = run("fxbucket", layers, sizes, workers=1, store=store)
        print("one process", alone, flush=True)
        warm = run("fxbucket", layers, sizes, workers=1, store=store)
    print("warm", warm, flush=True)
    two = run("fxbucket", layers, sizes, workers=2)
    print("two workers", two, flush=True)
    each = run("torch.compile", layers, sizes)
    print("torch.compile a size, one process", each, flush=True)
    runs = {"seconds": sum(run("torch.compile", layers, (size,))["seconds"] for size in sizes)}
    print("torch.compile a size, each a process", runs, flush=True)
    counts = {number: run("fxbucket", number, sizes[:3])["compiled"] for number in (3, 8 if quick else 32)}
    print("artifacts by layers", counts, flush=True)
    few, many = counts.values()
    rows = [
        ["artifacts, 32 layers and 3 sizes, and those of 3 layers", f"{many}, {few}", "no more", f"{many / few:.2f}"],
        ["cold, against torch.compile a size, each a process", _seconds(alone, runs), "≤ 0.35", _ratio(alone, runs)],
        ["cold, against torch.compile a size, all in one process", _seconds(alone, each), "≤ 0.35", _ratio(alone, each)],
        ["cold, two workers against one process", _seconds(two, alone), "≤ 0.65", _ratio(two, alone)],
        [f"a second process ({warm['compiled']} compiled, {warm['loaded']} loaded) against the first", _seconds(warm, alone),
         "≤ 0.15", _ratio(warm, alone)],
    ]  # fmt: skip
    growth = []
    for number in GROWTH[:3] if quick else GROWTH:
        captured, split = prepare_seconds(number)
        whole = run("fxbucket", number, sizes[:1])
        growth.append((number, captured, split, whole["seconds"], whole["compiled"]))
        print("growth", growth[-1], flush=True)
    shown = table(["what", "seconds", "bar", "ratio or number"], rows)
    grown = table(
        ["layers", "capture, s", "split, s", "first result of one size, s", "artifacts compiled"],
        [[str(n), f"{c:.2f}", f"{s:.3f}", f"{w:.1f}", str(count)] for n, c, s, w, count in growth],
    )
    print(shown, grown, sep="\n\n")
    if "--write" in sys.argv:
        panels = {
            "seconds to the first result": {"one size": [(n, w) for n, _, _, w, _ in growth]},
            "seconds": {"capture": [(n, c) for n, c, *_ in growth], "split": [(n, s) for n, _, s, *_ in growth]},
        }
        save_plot(IMAGES / "cold_start.svg", panels, "layers")
        ratios = {row[0]: float(row[3]) for row in rows}
        bars = {row[0]: float(row[2].removeprefix("≤ ")) if row[2].startswith("≤") else 1.0 for row in rows}
        save_bars(IMAGES / "cold_start_bars.svg", ratios, bars, "ratio")
        against = "![Each ratio beside its bar](images/cold_start_bars.svg)"
        picture = "![Seconds against the number of layers](images/cold_start.svg)"
        write_section("cold_start", "\n\n".join((provenance("cold_start"), shown, against, picture, grown)))


def _seconds(one: dict[str, Any], other: dict[str, Any]) -> str:
    return f"{one['seconds']:.1f}, {other['seconds']:.1f}"


def _ratio(one: dict[str, Any], other: dict[str, Any]) -> str:
    return f"{one['seconds'] / other['seconds']:.2f}"


if __name__ == "__main__":
    main()
