"""What a call costs beside its kernels: a stack of small layers against torch.compile and the seed pattern, layer by layer.

Each table comes from one process with fresh cache folders, in which all ways take turns; medians of the turns, torch on one
thread, no gradients. ``python -m tests.benchmarks.call_cost [--quick] [--write]``
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import fxbucket
from fxbucket.emit import Timing, bucket_function
from tests.benchmarks.document import IMAGES, provenance, save_bars, save_stacks, table, write_section
from tests.benchmarks.fresh import in_new_process
from tests.benchmarks.layers import GatedLayer
from tests.benchmarks.seed_pattern import seed_backend

WIDTH, HEADS, ROWS = 16, 2, 8
DEPTHS = (16, 32)
TURNS, CALLS = 80, 10
TOKENS = (16, 128, 512)
GROWTH = (1, 4, 16, 64, 256)
WAYS = (
    "fxbucket", "fxbucket, not cut", "the seed pattern", "torch.compile(dynamic=False)", "torch.compile(dynamic=True)",
    "eager",
)  # fmt: skip
BARS = {"the seed pattern": 0.72, "torch.compile(dynamic=False)": 0.98, "torch.compile(dynamic=True)": 1.10}

# An op as serving engines register theirs: straight with the dispatcher, which costs half of what ``custom_op`` does.
torch.library.define("fxbucket_benchmark::small_attention", "(Tensor q, Tensor k, Tensor v) -> Tensor")


@torch.library.impl("fxbucket_benchmark::small_attention", "cpu")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v).contiguous()


@torch.library.register_fake("fxbucket_benchmark::small_attention")
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


attention = torch.ops.fxbucket_benchmark.small_attention


class Layer(GatedLayer):
    """A layer like Llama's: RMS norm, attention, RMS norm, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return ``(rows, width)``."""
        q, k, v = self.qkv(self.first(x)).view(x.shape[0], 3, HEADS, -1).permute(1, 2, 0, 3)
        x = x + self.out(attention(q, k, v).transpose(0, 1).reshape(x.shape[0], WIDTH))
        return self.fed_forward(x)


def stack(depth: int) -> nn.Module:
    """Return layers one after the other, with random weights."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(depth)))


def taking_turns(ways: Mapping[str, Callable[[], Any]], turns: int = TURNS, calls: int = CALLS) -> dict[str, float]:
    """Return the median time of a call in each way, in µs; each turn makes some calls of each way, in random order."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    order = random.Random(0)
    for turn in range(-max(turns // 10, 2), turns):
        # What ran before leaves caches as it likes.
        for way, call in order.sample(list(ways.items()), len(ways)):
            started = time.perf_counter()
            for _ in range(calls):
                call()
            if turn >= 0:
                taken[way].append((time.perf_counter() - started) / calls * 1e6)
    return {way: statistics.median(found) for way, found in taken.items()}


def compiled_stack(model: nn.Module, **options: Any) -> Any:
    """Return a stack compiled by fxbucket for the size that is measured."""
    given = {"splitting_ops": [attention], "workers": 1, **options}
    return fxbucket.compile(model, sizes={"input.shape[0]": [ROWS]}, **given)


def in_each_way(depth: int, turns: int) -> dict[str, float]:
    """Return what a call of a stack takes in each of :data:`WAYS`, in µs; runs in a process of its own."""
    torch.set_num_threads(1)
    model, x, first = stack(depth), torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    torch._dynamo.maybe_mark_dynamic(first, 0)  # noqa: TID251  # as a user of torch.compile marks
    with torch.no_grad():
        # A function of its own each, as torch.compile keeps captures by function.
        seed = torch.compile(lambda x: model(x), backend=seed_backend(attention))
        seed(first)
        made = (
            compiled_stack(model),
            compiled_stack(model, splitting_ops=[]),
            seed,
            torch.compile(lambda x: model(x), dynamic=False),
            torch.compile(lambda x: model(x), dynamic=True),
            model,
        )
        expected = model(x)
        for way in made:
            torch.testing.assert_close(way(x), expected, rtol=1e-3, atol=1e-3)
        return taking_turns({name: lambda way=way: way(x) for name, way in zip(WAYS, made, strict=True)}, turns)


LAYERS = (
    "guards on hooks",
    "Dynamo's other guards, and its loading of arguments",
    "fxbucket's frame",
    "look-up",
    "stitching",
    "wrappers around artifacts",
    "checks of sizes in artifacts",
    "attention, uncompiled",
    "the artifacts' own code",
)


def breakdown(depth: int, turns: int) -> dict[str, Any]:
    """Return where a call's time goes, by default and with everything kept; runs in a process of its own.

    What is found by leaving something out (wrappers, checks, guards on hooks) is found with all else as it is in a call.

    Returns:
        ``default`` and ``everything kept``: µs by :data:`LAYERS`; ``host``: µs a piece beyond the artifacts' own code.
    """
    torch.set_num_threads(1)
    model, x = stack(depth), torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        compiled = compiled_stack(model)
        kept = compiled_stack(model, debug=True, guards="keep")
        for way in (compiled, kept):
            for _ in range(3):
                way(x)
        engine = compiled._engine
        (dispatcher,) = engine.backend.dispatchers
        (entry,) = dispatcher.entries
        program, artifacts, fast = entry.program, entry.artifacts, entry.emitted.function
        given: list[Any] = []
        marks: list[list[float]] = []

        def emitted(some: Any, timing: Timing | None = None, debug: bool = False) -> Callable[..., Any]:
            made: Callable[..., Any] = bucket_function(program, some, (), print, [0], {}, timing, debug).function
            return made

        entry.serve(lambda *args: given.append(args) or fast(*args))
        compiled(x)
        args = given.pop()
        wrapped = emitted(artifacts, debug=True)
        # With the checks, and below the wrappers.
        checked = emitted([replace(a, direct=a.direct and replace(a.direct, definition=None)) for a in artifacts])
        stubs = emitted(
            [replace(a, call=_stub(len(p.outputs), x), direct=None) for p, a in zip(program.pieces, artifacts, strict=True)]
        )
        clock = time.perf_counter
        timed = emitted(artifacts, Timing(clock, lambda found: marks.append(list(found))))
        result = fast(*args)
        bodies = {
            "whole": lambda: fast(*args),
            "checked": lambda: checked(*args),
            "wrapped": lambda: wrapped(*args),
            "timed": lambda: timed(*args),
            "stubs": lambda: stubs(*args),
        }
        found = taking_turns(bodies, turns)
        boundaries = [number for number, a in enumerate(artifacts) if a.origin == "as it is"]
        attended = sum(
            statistics.median(one[number + 1] - one[number] for one in marks[len(marks) // 10 :]) * 1e6
            for number in boundaries
        )
        entry.serve(lambda *_: result)
        for held in kept._engine.backend.dispatchers:
            held.entries[0].serve(lambda *_: result)
        cold = torch.randn(1 << 21)
        before: dict[str, list[float]] = {}
        ways = {
            "kept": lambda: kept(x),
            "all": lambda: compiled(x),
            "torch": lambda: engine.function(x),
            "dispatch": lambda: dispatcher.emitted.function(*args),
            "nothing": lambda: entry.run(*args),
        }
        for _ in range(turns * 2):
            for name, call in ways.items():
                cold.add_(1.0)  # as after the kernels of a call, caches hold something else
                started = clock()
                call()
                before.setdefault(name, []).append((clock() - started) * 1e6)
        host = {name: statistics.median(some) for name, some in before.items()}
    count = len(artifacts)
    shared = {
        "look-up": host["dispatch"] - host["nothing"],
        "stitching": found["stubs"],
        "attention, uncompiled": attended,
        "the artifacts' own code": found["whole"] - found["stubs"] - attended,
        "Dynamo's other guards, and its loading of arguments": host["torch"] - host["dispatch"],
    }
    frame = host["all"] - host["torch"]
    default = shared | {"fxbucket's frame": frame}
    everything = default | {
        "guards on hooks": host["kept"] - host["all"],
        "wrappers around artifacts": found["wrapped"] - found["checked"],
        "checks of sizes in artifacts": found["checked"] - found["whole"],
    }
    ordered = [{name: max(some.get(name, 0.0), 0.0) for name in LAYERS} for some in (everything, default)]
    return {"everything kept": ordered[0], "default": ordered[1], "host": found["stubs"] / count, "pieces": count}


def _stub(num_outputs: int, output: torch.Tensor) -> Callable[..., Any]:
    """Return a function that gives at once as many outputs as a piece does."""
    outputs = (output,) * num_outputs
    return lambda *_: outputs


def llama_calls(turns: int) -> dict[str, list[float]]:
    """Return µs of a call of a small Llama by tokens: whole, cut at attention, ``dynamic=False``; in its own process."""
    from fxbucket.demo import llama

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = llama()
    batches = [torch.randint(0, model.config.vocab_size, (1, tokens)) for tokens in TOKENS]
    found: dict[str, list[float]] = {}
    with torch.no_grad():
        sizes = {"input_ids.shape[1]": TOKENS}
        attended = ["torch.nn.functional.scaled_dot_product_attention"]
        whole = fxbucket.compile(model, sizes=sizes, workers=1)
        cut = fxbucket.compile(model, sizes=sizes, splitting_ops=attended, workers=1)
        for ids in batches:
            expected = model(input_ids=ids).logits
            static = torch.compile(lambda ids: model(input_ids=ids).logits, dynamic=False)
            ways = {
                "whole": lambda ids=ids: whole(input_ids=ids).logits,
                "cut": lambda ids=ids: cut(input_ids=ids).logits,
                "static": lambda ids=ids, way=static: way(ids),
            }
            for way in ways.values():
                torch.testing.assert_close(way(), expected, rtol=1e-3, atol=1e-3)
            found[str(ids.shape[1])] = list(taking_turns(ways, turns).values())
    return found


def looked_up(turns: int) -> dict[str, float]:
    """Return µs of look-ups with 64 pinned sizes and 8 ranges on two axes; in a process of its own."""

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y

    pinned = [{"a": a, "b": b} for a in range(2, 10) for b in range(2, 10)]
    ranges = [{"a": (100 * n, 100 * n + 99), "b": (100 * n, 100 * n + 99)} for n in range(1, 9)]
    axes = {"a": "x.shape[0]", "b": "y.shape[0]"}
    compiled = fxbucket.compile(model, axes=axes, sizes=pinned, ranges=ranges, compiler="eager", compile_when="lazily")
    compiled(torch.randn(2), torch.randn(2))
    function, read = _with_stubs(compiled)
    calls = {"the last pinned size": (9, 9), "the first range": (150, 150), "the last range": (850, 850)}
    given = {name: read(torch.randn(a), torch.randn(b)) for name, (a, b) in calls.items()}
    ways = {name: lambda args=args: function(*args) for name, args in given.items()}
    empty = read(torch.randn(9), torch.randn(9))
    found = taking_turns({**ways, "": lambda: _nothing(*empty)}, turns, 200)
    return {name: found[name] - found[""] for name in ways}


def growth(count: int, turns: int) -> list[float]:
    """Return µs of a look-up and of all that precedes a bucket, with so many pinned sizes; in a process of its own."""
    compiled = fxbucket.compile(
        lambda x: x + 1, sizes={"x.shape[0]": list(range(2, 2 + count))}, compiler="eager", compile_when="lazily"
    )
    x = torch.randn(1 + count) if count > 1 else torch.randn(2)
    compiled(x)
    function, read = _with_stubs(compiled)
    args = read(x)
    found = taking_turns(
        {"look-up": lambda: function(*args), "all": lambda: compiled(x), "": lambda: _nothing(*args)}, turns, 200
    )
    return [found["look-up"] - found[""], found["all"]]


def _nothing(*args: Any) -> tuple[Any, ...]:
    return args


def _with_stubs(compiled: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Put :func:`_nothing` in the place of each bucket; returns the look-up, and what gives its arguments for tensors."""
    (dispatcher,) = compiled._engine.backend.dispatchers
    for entry in dispatcher.entries:
        entry.serve(_nothing)
    sources = [held.source for held in dispatcher.program.capture.placeholders]
    names = list(compiled._engine.frame.signature.parameters)

    def read(*tensors: torch.Tensor) -> list[Any]:
        return [eval(source, {"L": dict(zip(names, tensors, strict=True))}) for source in sources]

    return dispatcher.emitted.function, read


def main() -> None:
    """Measure, print, and with ``--write`` renew docs/benchmarks.md."""
    quick = "--quick" in sys.argv
    depths, turns = ((2, 4), 4) if quick else (DEPTHS, TURNS)
    rows, bars, ratios = [], {}, {}
    for depth in depths:
        found = in_new_process(in_each_way, depth, turns)
        mine = found["fxbucket"]
        for way in WAYS:
            bar = f"≤ {BARS[way]:.2f}" if way in BARS else ""
            if way != WAYS[0]:
                rows.append([str(depth), way, f"{mine / found[way]:.2f}", bar])
            if way in BARS:
                name = f"{depth} layers, against {way}"
                ratios[name], bars[name] = mine / found[way], BARS[way]
        print(*rows[1 - len(WAYS) :], sep="\n", flush=True)
    parts = in_new_process(breakdown, depths[-1], turns)
    print(parts, flush=True)
    llama = in_new_process(llama_calls, turns)
    real = []
    for tokens, (whole, cut, other) in llama.items():
        real.append([tokens, f"{whole / other:.2f}", f"{cut / other:.2f}"])
        name = f"Llama, {tokens} tokens, against dynamic=False"
        ratios[name], bars[name] = whole / other, 1.03
        print(real[-1], flush=True)
    lookup = in_new_process(looked_up, turns)
    grown = {count: in_new_process(growth, count, turns) for count in (GROWTH[:3] if quick else GROWTH)}
    shown = table(["layers", "way", "a call of fxbucket, cut, against it", "bar"], rows)
    llamas = table(["tokens of a Llama", "whole, against dynamic=False (bar: ≤ 1.03)", "cut at attention, against it"], real)
    most = sum(parts["everything kept"].values()) / 100
    shares = {way: {name: parts[way][name] / most for name in LAYERS} for way in ("everything kept", "default")}
    split = table(
        [f"where a call of {depths[-1]} layers goes, in % of a call with everything kept", *shares],
        [[name, *(f"{share[name]:.1f}" for share in shares.values())] for name in LAYERS],
    )
    host = (
        f"Host time a piece beyond the artifact's own code: {parts['host']:.2f} µs (bar: ≤ 2), of {parts['pieces']} pieces."
    )
    found = table(
        ["look-up, 64 pinned sizes and 8 ranges on two axes", "µs (bar: ≤ 1)"], [[n, f"{v:.2f}"] for n, v in lookup.items()]
    )
    sizes = table(
        ["pinned sizes", "look-up, against that of one size", "all that precedes a bucket, against that of one size"],
        [
            [str(count), *(f"{own / first:.2f}" for own, first in zip(pair, grown[1], strict=True))]
            for count, pair in grown.items()
        ],
    )
    print(shown, llamas, split, host, found, sizes, sep="\n\n")
    if "--write" in sys.argv:
        save_bars(IMAGES / "call_cost.svg", ratios, bars, "ratio of a call's time")
        save_stacks(IMAGES / "call_cost_breakdown.svg", shares, "% of a call with everything kept")
        pictures = (
            "![Each ratio beside its bar](images/call_cost.svg)",
            "![Where a call's time goes](images/call_cost_breakdown.svg)",
        )
        text = (provenance("call_cost"), shown, pictures[0], llamas, split, pictures[1], host, found, sizes)
        write_section("call_cost", "\n\n".join(text))


if __name__ == "__main__":
    main()
