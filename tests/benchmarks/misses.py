"""What sizes that nobody pinned cost: one stream of requests, served by each answer to a miss and by torch.compile.

Sizes are drawn from request_sizes.csv, and pinned sizes are what ``fxbucket.suggest_sizes`` says of that table. Every way is
a process of its own with fresh cache folders; the stream is served once cold, and then warm.
``python -m tests.benchmarks.misses [--quick] [--write]``
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

import fxbucket
from tests.benchmarks.document import IMAGES, provenance, save_plot, table, write_section
from tests.benchmarks.fresh import in_new_process
from tests.benchmarks.layers import GatedLayer
from tests.benchmarks.request_sizes import request_sizes

WIDTH, HEADS, LAYERS = 128, 4, 3
NUM_CALLS, NUM_WARM, BUDGET = 40, 3, 8
WAYS = (
    "fxbucket, pinned sizes",
    "fxbucket, ranges",
    "fxbucket, padding",
    "torch.compile(dynamic=True)",
    "torch.compile(dynamic=False)",
    "eager",
)


@torch.library.custom_op("fxbucket_benchmark::attention_of_first", mutates_args=())
def attention_of_first(qkv: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
    """Attend within the first tokens, each to those before it: ``(tokens, 3 * width)`` gives ``(tokens, width)``.

    Rows behind ``num_tokens`` are not read, whatever is in them, and become 0: that is what makes it row-safe.
    """
    first = qkv[: int(num_tokens)]
    q, k, v = first.unflatten(1, (3, HEADS, -1)).permute(1, 2, 0, 3)
    out = qkv.new_zeros(qkv.shape[0], WIDTH)
    attended = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
    out[: len(first)] = attended[0].transpose(0, 1).flatten(1)
    return out


@attention_of_first.register_fake
def _(qkv: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
    return qkv.new_empty(qkv.shape[0], WIDTH)


class Layer(GatedLayer):
    """A layer like Llama's: RMS norm, attention, RMS norm, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
        """Take and return ``(tokens, width)``."""
        x = x + self.out(attention_of_first(self.qkv(self.first(x)), num_tokens))
        return self.fed_forward(x)


class Model(nn.Module):
    """Layers one after the other."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))

    def forward(self, x: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
        """Take and return ``(tokens, width)``; rows behind ``num_tokens`` mean nothing."""
        for layer in self.layers:
            x = layer(x, num_tokens)
        return x


def stream(num_calls: int) -> list[int]:
    """Return the sizes of so many requests, always the same."""
    sizes = request_sizes()
    return random.Random(0).choices(list(sizes), list(sizes.values()), k=num_calls)


def ranges_up_to(ladder: Sequence[int]) -> list[tuple[int, int]]:
    """Return one range for each size of a ladder: from behind the size before, the first from 2, up to it."""
    return [(last + 1, size) for last, size in pairwise((1, *ladder))]


def compiled_as(way: str, model: nn.Module, ladder: Sequence[int]) -> Any:
    """Return the model, compiled in one of :data:`WAYS`."""
    if way == "eager":
        return model
    if not way.startswith("fxbucket"):
        return torch.compile(model, dynamic=way == "torch.compile(dynamic=True)")
    pinned = {"tokens": ladder}
    options: dict[str, Any] = {
        "fxbucket, pinned sizes": {"sizes": pinned},
        "fxbucket, ranges": {"ranges": {"tokens": ranges_up_to(ladder)}},
        "fxbucket, padding": {"sizes": pinned, "on_miss": "pad", "row_safe_ops": [attention_of_first]},
    }[way]
    return fxbucket.compile(model, axes={"tokens": "x.shape[0]"}, splitting_ops=[attention_of_first], **options)


def serve(way: str, num_layers: int, sizes: Sequence[int], ladder: Sequence[int], num_warm: int) -> dict[str, Any]:
    """Serve a stream once cold and then warm; runs in a process of its own.

    Returns:
        ``seconds`` of each call in order, how many graphs were ``captured`` and artifacts ``compiled``.
    """
    from torch._dynamo import config, utils  # noqa: TID251  # as a user of torch.compile sets and counts

    # Behind the limit a size would run without a compiler.
    config.recompile_limit = config.accumulated_recompile_limit = 10_000
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(num_layers)
    calls = [(torch.randn(size, WIDTH), torch.tensor(size)) for size in sizes]
    seconds: list[float] = []
    passes: list[list[torch.Tensor]] = []
    with torch.no_grad():
        started = time.perf_counter()
        compiled = compiled_as(way, model, ladder)
        for _ in range(1 + num_warm):
            passes.append([])
            for call in calls:
                passes[-1].append(compiled(*call))
                ended = time.perf_counter()
                seconds.append(ended - started)
                started = ended
        for call, *results in zip(calls, *passes, strict=True):
            expected = model(*call)
            for result in results:
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    if not way.startswith("fxbucket"):
        captured = utils.counters["stats"]["unique_graphs"]
        expected_graphs = {"eager": 0, "torch.compile(dynamic=False)": len(set(sizes))}
        assert captured == expected_graphs.get(way, captured), f"{captured} graphs"
        return {"seconds": seconds, "captured": captured, "compiled": captured}
    graphs = compiled.explain().graphs
    assert not any(graph.eager_calls or graph.unpadded for graph in graphs)
    if way == "fxbucket, padding":
        served = {bucket.bucket: bucket.calls for graph in graphs for bucket in graph.buckets}
        assert served == {f"tokens={size}": count * (1 + num_warm) for size, count in padded_calls(sizes, ladder).items()}
    artifacts = [artifact for graph in graphs for bucket in graph.buckets for artifact in bucket.artifacts]
    made = sum(artifact.origin in ("compiled", "worker") for artifact in artifacts)
    return {"seconds": seconds, "captured": len(graphs), "compiled": made}


def padded_calls(sizes: Sequence[int], ladder: Sequence[int]) -> dict[int, int]:
    """Return how many calls each size of a ladder serves, if each is padded up to the next."""
    served = [min(pinned for pinned in ladder if pinned >= size) for size in sizes]
    return {pinned: served.count(pinned) for pinned in ladder}


def padding_share(sizes: Sequence[int], ladder: Sequence[int]) -> float:
    """Return the share of all rows, padding included, that is padding, if each call is padded up to the next size."""
    return 1 - sum(sizes) / sum(pinned * count for pinned, count in padded_calls(sizes, ladder).items())


def main() -> None:
    """Measure, print, and with ``--write`` renew docs/benchmarks.md."""
    quick = "--quick" in sys.argv
    layers, num_calls, num_warm, budget = (1, 6, 1, 2) if quick else (LAYERS, NUM_CALLS, NUM_WARM, BUDGET)
    sizes, ladder = stream(num_calls), list(fxbucket.suggest_sizes(request_sizes(), budget=budget).sizes)
    rows: list[list[str]] = []
    since_start: dict[str, list[tuple[float, float]]] = {}
    warm: dict[str, list[tuple[float, float]]] = {}
    for way in WAYS:
        found = in_new_process(serve, way, layers, sizes, ladder, num_warm)
        seconds = found["seconds"]
        first, *others = (seconds[start : start + num_calls] for start in range(0, len(seconds), num_calls))
        again = [statistics.median(each) for each in zip(*others, strict=True)]
        since_start[way], warm[way] = ([*enumerate(accumulate(some), 1)] for some in (seconds, again))
        wasted = padding_share(sizes, ladder) if way == "fxbucket, padding" else 0.0
        times = [f"{sum(first):.1f}", f"{sum(first) - sum(again):.1f}", f"{sum(again):.2f}", f"{sum(seconds):.1f}"]
        rows.append([way, *times, f"{wasted:.1%}", str(found["captured"]), str(found["compiled"])])
        print(*rows[-1], sep=", ", flush=True)
    columns = [
        "way", "first pass, s", "of it compilation, s", "a warm pass, s", f"all {num_calls * (1 + num_warm)} calls, s",
        "rows that are padding", "graphs captured", "artifacts compiled",
    ]  # fmt: skip
    shown = table(columns, rows)
    said = f"{num_calls} calls of {len(set(sizes))} sizes, {sum(sizes):,} rows; the ladder is {', '.join(map(str, ladder))}."
    print(said, shown, sep="\n\n")
    if "--write" in sys.argv:
        scales = {"seconds since the start": ("linear", "log"), "seconds, warm": ("linear", "linear")}
        save_plot(IMAGES / "misses.svg", dict(zip(scales, (since_start, warm), strict=True)), "calls", scales)
        picture = "![Seconds against the number of calls, from the start and warm](images/misses.svg)"
        write_section("misses", "\n\n".join((provenance("misses"), said, shown, picture)))


if __name__ == "__main__":
    main()
