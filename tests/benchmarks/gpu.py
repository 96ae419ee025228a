"""Calls on a GPU at pinned sizes and between them: recorded whole and in pieces, against torch.compile both ways.

All ways run in one process, in turns. ``python -m tests.benchmarks.gpu [--save FILE]`` measures, on a machine with a GPU;
``--from FILE --write`` renews docs/benchmarks.md with what another machine saved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fxbucket
from fxbucket.kernels import Slot, prepare
from tests.benchmarks.document import IMAGES, provenance, save_plot, table, write_section
from tests.benchmarks.layers import GatedLayer

SIZES = (1, 8, 64, 256, 1024, 4096)
BETWEEN = (5, 40, 200, 700, 3000)
WIDTH, HEADS, NUM_LAYERS = 2048, 16, 4
ROUNDS, CALLS, INPUTS = 9, 12, 4
NUM_RANDOM = 1000
MEMORY_SIZES = (512, 1024, 1536, 2048, 2560, 3072, 3584, 4096)
TUNED = (8,)

Call = Callable[[torch.Tensor], torch.Tensor]


@torch.library.custom_op("fxbucket_gpu::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return causal attention over heads of packed tokens, which no compiler looks into."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q)


class Layer(GatedLayer):
    """A layer of a Llama, but for rotary positions."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 8 * WIDTH // 3 // 256 * 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for ``[tokens, width]``."""
        q, k, v = self.qkv(self.first(x)).view(x.shape[0], 3, HEADS, -1).permute(1, 2, 0, 3)
        mixed = torch.ops.fxbucket_gpu.attention(q[None], k[None], v[None])[0]
        x = x + self.out(mixed.transpose(0, 1).reshape(x.shape[0], WIDTH))
        return self.fed_forward(x)


def model_of() -> nn.Module:
    """Return the model, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(NUM_LAYERS)]).cuda().bfloat16().eval()


def inputs_of(tokens: int) -> list[torch.Tensor]:
    """Return inputs of one size at several addresses, as calls of a server have them."""
    return [torch.randn(tokens, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(INPUTS)]


def compiled_of(model: nn.Module, sizes: tuple[int, ...], **options: Any) -> Any:
    """Return the model compiled by fxbucket, cut at attention."""
    given = {"axes": {"tokens": "input.shape[0]"}, "sizes": {"tokens": list(sizes)}, "on_miss": "pad"}
    ops = ["fxbucket_gpu::attention"]
    return fxbucket.compile(model, splitting_ops=ops, row_safe_ops=ops, **{**given, **options})


def medians(calls: dict[str, Call], inputs: dict[str, list[torch.Tensor]]) -> dict[str, float]:
    """Return the median of the milliseconds of a call, by events, of several ways that take turns."""
    for name, call in calls.items():
        for _ in range(3):
            for x in inputs[name]:
                call(x)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for number in range(CALLS):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                x = inputs[name][number % INPUTS]
                torch.cuda.synchronize()
                begin.record()
                call(x)
                end.record()
                end.synchronize()
                found[name].append(begin.elapsed_time(end))
    return {name: statistics.median(times) for name, times in found.items()}


def reduce_overhead(model: nn.Module) -> Call:
    """Return torch.compile's own CUDA graphs at one size, as its documentation has them used."""
    compiled = torch.compile(model, dynamic=False, mode="reduce-overhead")

    def call(x: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        result: torch.Tensor = compiled(x)
        return result

    return call


def quick() -> None:
    """Print the ratios of two sizes, for a look at a change."""
    model, sizes = model_of(), (8, 256)
    ways = {mode: compiled_of(model, sizes, cudagraphs=mode) for mode in ("full", "piecewise")}
    for tokens in sizes:
        calls = {**ways, "reduce-overhead": reduce_overhead(nn.Sequential(*model))}
        times = medians(calls, dict.fromkeys(calls, inputs_of(tokens)))
        print(tokens, {name: f"{time / times['reduce-overhead']:.2f}" for name, time in times.items()}, flush=True)


def measure() -> dict[str, Any]:
    """Measure everything; returns plain data."""
    started = time.perf_counter()
    model = model_of()
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver(),
    }  # fmt: skip
    ways: dict[str, Call] = {
        "full": compiled_of(model, SIZES, cudagraphs="full"),
        "piecewise": compiled_of(model, SIZES, cudagraphs="piecewise"),
        "off": compiled_of(model, SIZES),
        "dynamic=True": torch.compile(model, dynamic=True),
    }
    tuned = compiled_of(
        model, TUNED, cudagraphs="full", pinned_inductor_options={"max_autotune": True, "coordinate_descent_tuning": True}
    )
    rows: dict[str, dict[str, float]] = {}
    for tokens in SIZES:
        calls = dict(ways)
        if tokens in TUNED:
            calls["full, tuned"] = tuned
        # A function of its own a size, as `dynamic=False` is used.
        calls["reduce-overhead"] = reduce_overhead(nn.Sequential(*model))
        x = inputs_of(tokens)
        rows[str(tokens)] = medians(calls, dict.fromkeys(calls, x))
        print(tokens, {name: round(value, 4) for name, value in rows[str(tokens)].items()}, flush=True)
    kernels = {name: kernel_milliseconds(ways[name], inputs_of(64)) for name in ("full", "dynamic=True")}
    between: dict[str, dict[str, float]] = {}
    for tokens in BETWEEN:
        larger = min(size for size in SIZES if size >= tokens)
        calls = {name: ways[way] for way in ("full", "piecewise") for name in (way, f"{way} at {larger}")}
        x = {name: inputs_of(larger if " at " in name else tokens) for name in calls}
        times = medians(calls, x)
        between[str(tokens)] = {way: times[way] / times[f"{way} at {larger}"] for way in ("full", "piecewise")}
        print(tokens, between[str(tokens)], flush=True)
    found |= {
        "pinned": rows,
        "kernels at 64": kernels,
        "between": between,
        "launches": launches(),
        "recompilations": recompilations(ways["full"]),
    }
    states = [bucket.recording for graph in ways["full"].explain().graphs for bucket in graph.buckets]  # type: ignore[attr-defined]
    found |= {"memory": {mode: memory(mode) for mode in ("full", "piecewise")}, "states": states}
    return {**found, "seconds": time.perf_counter() - started}


def launches() -> int:
    """Return how many kernels copying and padding 8 inputs of several dtypes launches."""
    dtypes = (torch.bfloat16, torch.float32, torch.int64, torch.bool)
    sources = [torch.ones(60, 7 + number, device="cuda", dtype=dtypes[number % 4]) for number in range(8)]
    slots = [
        Slot(torch.empty(64, *source.shape[1:], device="cuda", dtype=source.dtype), tuple(source.shape), source.stride())
        for source in sources
    ]
    filler = prepare(slots)
    filler(sources)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        filler(sources)
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.self_device_time_total > 0)


def recompilations(compiled: Any) -> int:
    """Return how many graphs were captured and buckets compiled in calls of random sizes."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(2, SIZES[-1] + 1, (NUM_RANDOM,), generator=generator).tolist()
    x = torch.randn(SIZES[-1], WIDTH, device="cuda", dtype=torch.bfloat16)
    before = compilations(compiled)
    for size in sizes:
        compiled(x[:size])
    torch.cuda.synchronize()
    return compilations(compiled) - before


def compilations(compiled: Any) -> int:
    """Return how many graphs were captured and buckets compiled so far."""
    graphs = compiled.explain().graphs
    return sum(1 + sum(bucket.state == "compiled" for bucket in graph.buckets) for graph in graphs)


def memory(mode: str) -> float:
    """Return the bytes that recordings of 8 buckets hold, against those of the largest alone."""
    held = []
    for sizes in (MEMORY_SIZES[-1:], MEMORY_SIZES):
        compiled = compiled_of(model_of(), sizes, cudagraphs=mode)
        compiled.warmup(torch.randn(sizes[-1], WIDTH, device="cuda", dtype=torch.bfloat16))
        explanation = compiled.explain()
        states = [bucket.recording for graph in explanation.graphs for bucket in graph.buckets if bucket.recording]
        if not all(state.startswith("recorded") for state in states):
            raise RuntimeError(f"not all of {sizes} were recorded: {states}")
        held.append(explanation.recorded_bytes)
    return held[1] / held[0]


def kernel_milliseconds(call: Call, inputs: list[torch.Tensor]) -> float:
    """Return the milliseconds for which kernels run in one call; the rest of a call is the host's, and gaps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for x in inputs:
            call(x)
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1000 / len(inputs)


def driver() -> str:
    """Return the version of the GPU's driver."""
    import subprocess

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0].strip() or "not told"


def text_of(found: dict[str, Any]) -> str:
    """Return the section's tables."""
    rows = found["pinned"]
    names = ["full", "piecewise", "off", "reduce-overhead", "dynamic=True"]
    times = [[tokens, *(f"{row[name]:.3f}" for name in names)] for tokens, row in rows.items()]

    def ratio(row: dict[str, float], way: str, against: str) -> str:
        return f"{row[way] / row[against]:.2f}" if way in row else "not measured"

    ratios = [
        [
            tokens,
            ratio(row, "full", "reduce-overhead"),
            ratio(row, "piecewise", "reduce-overhead"),
            ratio(row, "full", "dynamic=True"),
            ratio(row, "full, tuned", "dynamic=True"),
        ]
        for tokens, row in rows.items()
    ]
    between = [[tokens, *(f"{row[way]:.2f}" for way in ("full", "piecewise"))] for tokens, row in found["between"].items()]
    kernels = found["kernels at 64"]
    single = [
        *(
            [f"{name} at 64 tokens: ms of kernels in {rows['64'][name]:.3f} ms of a call", f"{value:.3f}"]
            for name, value in kernels.items()
        ),
        ["kernels launched to copy and pad 8 inputs", found["launches"]],
        [f"compilations in {NUM_RANDOM} calls of random sizes", found["recompilations"]],
        *(
            [f"memory of 8 buckets against the largest alone, {mode}", f"{value:.2f}"]
            for mode, value in found["memory"].items()
        ),
    ]
    return "\n\n".join(
        (
            "Median milliseconds of a call, by events:",
            table(["tokens", *names], times),
            "Ratios:",
            table(
                [
                    "tokens", "full / reduce-overhead", "piecewise / reduce-overhead", "full / dynamic=True",
                    "full, tuned / dynamic=True",
                ],
                ratios,
            ),
            "Between pinned sizes, padded, against the next pinned size:",
            table(["tokens", "full", "piecewise"], between),
            table(["measure", "value"], single),
        )
    )  # fmt: skip


def main() -> None:
    """Measure or take what was saved, print, and with ``--write`` renew docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("--save", type=Path, help="leave what was measured in this file")
    parser.add_argument("--from", dest="source", type=Path, help="take what another machine saved")
    parser.add_argument("--write", action="store_true", help="renew docs/benchmarks.md and its plot")
    parser.add_argument("--quick", action="store_true", help="print the ratios of two sizes alone")
    given = parser.parse_args()
    if given.quick:
        with torch.no_grad():
            quick()
        return
    if given.source is not None:
        found = json.loads(given.source.read_text(encoding="utf-8"))
    elif not torch.cuda.is_available():
        print("no GPU is here, so nothing was measured")
        return
    else:
        with torch.no_grad():
            found = {**measure(), "made": provenance("gpu")}
    if given.save is not None:
        given.save.write_text(json.dumps(found), encoding="utf-8")
    shown = text_of(found)
    print(shown)
    if given.write:
        command = found["made"].replace(" gpu --write", ".gpu --save gpu.json") + " Written by `--from gpu.json --write`."
        made = f"{command} {found['device']}, driver {found['driver']}, CUDA {found['cuda']}."
        lines = {
            name: [(int(tokens), row[name]) for tokens, row in found["pinned"].items()]
            for name in ("full", "piecewise", "reduce-overhead", "dynamic=True")
        }
        save_plot(IMAGES / "gpu.svg", {"milliseconds a call": lines}, "tokens")
        picture = "![Milliseconds a call by tokens, four ways](images/gpu.svg)"
        write_section("gpu", "\n\n".join((made, shown, picture)))


if __name__ == "__main__":
    main()
