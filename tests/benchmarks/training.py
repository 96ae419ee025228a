"""Tokens a second of training steps on packed sequences of varying length: eager, torch.compile both ways, fxbucket.

Each way is a process of its own with fresh cache folders and trains the same small Llama on the same packs, in the same
order: each length once, while what compiles does so, then all of them again, which is what is timed. fxbucket pads in the
collator, up to a ladder of sizes; tokens of padding count for nothing. ``python -m tests.benchmarks.training [--write]``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import fxbucket
from fxbucket.torch_compat import registered_backend
from tests.benchmarks.document import IMAGES, provenance, save_plot, table, write_section

WAYS = ("eager", "dynamic=True", "dynamic=False", "fxbucket")
LADDER = (192, 320, 448)
NUM_LENGTHS, ROUNDS, NUM_LAYERS = 8, 5, 3
VOCABULARY = 256
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"


def packs(num_lengths: int) -> list[dict[str, torch.Tensor]]:
    """Return packs of distinct lengths: sequences that count upwards from a random token, until the pack is full."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randperm(LADDER[-1] - 128, generator=generator)[:num_lengths] + 129).tolist()
    found = []
    for length in lengths:
        ids: list[int] = []
        labels: list[int] = []
        positions: list[int] = []
        while len(ids) < length:
            size = min(int(torch.randint(16, 97, (), generator=generator)), length - len(ids))
            start = int(torch.randint(0, VOCABULARY, (), generator=generator))
            tokens = [(start + place) % VOCABULARY for place in range(size)]
            ids += tokens
            labels += [-100, *tokens[1:]]
            positions += range(size)
        named = {"input_ids": ids, "labels": labels, "position_ids": positions}
        found.append({name: torch.tensor([values]) for name, values in named.items()})
    return found


def padded(pack: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a pack as long as the next size of the ladder: the padding is one more sequence, with labels of -100."""
    length = pack["input_ids"].shape[1]
    count = next(size for size in LADDER if size >= length) - length
    more = {"input_ids": torch.zeros(count), "labels": torch.full((count,), -100), "position_ids": torch.arange(count)}
    return {name: torch.cat([values, more[name].long()[None]], dim=1) for name, values in pack.items()}


def model_of(num_layers: int) -> transformers.LlamaForCausalLM:
    """Return a small Llama, the same each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LADDER[-1],
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


class Counted:
    """Inductor, with the number of graphs that it was given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: Any, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """Compile a graph."""
        self.count += 1
        return registered_backend("inductor")(module, inputs, **options)


def train(way: str, num_lengths: int, rounds: int, num_layers: int) -> dict[str, Any]:
    """Train one way, to be called in a process of its own; returns losses, seconds and compilations of each step."""
    torch.set_num_threads(1)
    # A pack of another length is another compilation, however many there are: what is counted here.
    torch.compiler.config.recompile_limit = 4 * num_lengths  # type: ignore[attr-defined]
    model = model_of(num_layers)
    batches, counted, compiled = packs(num_lengths), Counted(), None
    call: Any = model
    if way == "fxbucket":
        axes = {"tokens": ["input_ids.shape[1]", "labels.shape[1]", "position_ids.shape[1]"]}
        options = {"axes": axes, "sizes": {"tokens": LADDER}, "on_miss": "error", "splitting_ops": [ATTENTION]}
        call = compiled = fxbucket.compile(model, **options)
        batches = [padded(batch) for batch in batches]
    elif way != "eager":
        call = torch.compile(model, backend=counted, dynamic=way == "dynamic=True")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds, counts = [], [], []
    for _ in range(rounds):
        for batch in batches:
            started = time.perf_counter()
            loss = call(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - started)
            graphs = compiled.explain().graphs if compiled is not None else ()
            buckets = sum(bucket.state == "compiled" for graph in graphs for bucket in graph.buckets)
            counts.append(buckets if compiled is not None else counted.count)
    return {"losses": losses, "seconds": seconds, "counts": counts}


def run(*given: Any) -> dict[str, Any]:
    """Return what :func:`train` gives in a new process with cache folders of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
            "FXBUCKET_CACHE_DIR": str(Path(folder, "store")),
        }
        code = "import sys, json; from tests.benchmarks.training import train; "
        code += "print(json.dumps(train(*json.loads(sys.argv[1]))))"
        command = [sys.executable, "-W", "ignore", "-c", code, json.dumps(given)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(way: str, result: dict[str, Any], eager: dict[str, Any], lengths: Sequence[int]) -> list[str]:
    """Return a way's line of the table."""
    seconds, first = result["seconds"], len(lengths)
    later = seconds[first:]
    tokens = sum(lengths) * (len(later) // first)
    away = max(abs(one - other) for one, other in zip(result["losses"], eager["losses"], strict=True))
    return [
        way,
        f"{tokens / sum(later):,.0f}",
        f"{max(later) * 1000:.0f}",
        f"{seconds[0]:.1f}",
        f"{sum(seconds[:first]):.1f}",
        str(result["counts"][0]),
        str(result["counts"][-1] - result["counts"][0]),
        f"{away:.1e}",
    ]


COLUMNS = (
    "way", "tokens a second", "slowest of these steps, ms", "first step, s", "each length once, s",
    "compiled in the first step", "compiled later", "farthest loss from eager's",
)  # fmt: skip


def main() -> None:
    """Measure, print, and with ``--write`` renew docs/benchmarks.md."""
    size = (4, 3, 2) if "--quick" in sys.argv else (NUM_LENGTHS, ROUNDS, NUM_LAYERS)
    lengths = [batch["input_ids"].shape[1] for batch in packs(size[0])]
    results = {}
    for way in WAYS:
        results[way] = run(way, *size)
        print(*row(way, results[way], results["eager"], lengths), sep="  ", flush=True)
    rows = [row(way, result, results["eager"], lengths) for way, result in results.items()]
    ladder = sum(next(size for size in LADDER if size >= length) for length in lengths)
    facts = (
        f"{len(lengths)} lengths from {min(lengths)} to {max(lengths)} tokens; a ladder of {', '.join(map(str, LADDER))}, "
        f"with which {1 - sum(lengths) / ladder:.0%} of all tokens are padding; {size[2]} layers, "
        f"{len(lengths) * size[1]} steps."
    )
    shown = table(COLUMNS, rows)
    print(facts, shown, sep="\n\n")
    for way, result in results.items():
        torch.testing.assert_close(
            result["losses"], results["eager"]["losses"], rtol=1e-2, atol=1e-2, msg=f"losses of {way}"
        )
    if "--write" in sys.argv:
        curves = {way: list(enumerate(result["losses"], 1)) for way, result in results.items() if way != "dynamic=False"}
        save_plot(IMAGES / "training.svg", {"loss": curves}, "step")
        picture = "![The loss of each step, three ways: the curves lie on one another](images/training.svg)"
        used = provenance("training", transformers=transformers.__version__)
        write_section("training", "\n\n".join((used, facts, shown, picture)))


if __name__ == "__main__":
    main()
