"""How long a drawing takes as the graph grows: ``python tests/benchmarks/visualize_scale.py [nodes ...]``.

For each kind of graph it prints the seconds to read the program, to fold it, and to lay it out and save it, and how many
boxes are left. A drawing of 10,000 nodes should take less than 10 seconds.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import fx

from fxbucket.passes import Program, Split, every_n_nodes
from fxbucket.passes.captured import Capture, Placeholder
from fxbucket.visualize import save_svg
from fxbucket.visualize.draw import sketch_of
from fxbucket.visualize.fold import folded

UNARY = (torch.relu, torch.sigmoid, torch.tanh, torch.neg, torch.abs, torch.exp)
BINARY = (torch.add, torch.mul, torch.sub)
Reads = Callable[[random.Random, int], list[int]]
"""The values that the next node reads, for a graph that has so many."""


def layers(_: random.Random, count: int) -> list[int]:
    """Return what one of 20 nodes of a layer reads: a long chain, and the layer's input again at its end."""
    return [count - 1, count - 20] if count % 20 == 0 else [count - 1]


def chain(_: random.Random, count: int) -> list[int]:
    """Return the node before."""
    return [count - 1]


def near(choose: random.Random, count: int) -> list[int]:
    """Return one or two of the last 20 nodes."""
    return [max(count - 1 - choose.randrange(20), 0) for _ in range(choose.choice((1, 2)))]


def far(choose: random.Random, count: int) -> list[int]:
    """Return the node before and any other."""
    return [count - 1, choose.randrange(count)]


def program_of(reads: Reads, num_nodes: int) -> Program:
    """Return a program of plain FX nodes whose ops repeat every 20 nodes for layers, and are random for all others."""
    choose = random.Random(0)
    graph = fx.Graph()
    values = [graph.placeholder("x")]
    for position in range(num_nodes):
        sources = reads(choose, len(values))
        ops = UNARY if len(sources) == 1 else BINARY
        op = ops[position % 20 % len(ops)] if reads is layers else choose.choice(ops)
        values.append(graph.call_function(op, tuple(values[source] for source in sources)))
    for node in values:
        node.meta["example_value"] = torch.empty(8, 8, device="meta")
    graph.output((values[-1],))
    module = fx.GraphModule(torch.nn.Module(), graph)
    return Program(Capture(module, (Placeholder(0, "x", "L['x']", "input"),), ()))


def main() -> None:
    """Print one line a graph."""
    sizes = [int(size) for size in sys.argv[1:]] or [10, 100, 1_000, 10_000]
    print(f"{'graph':8} {'split':6} {'nodes':>6} {'read s':>7} {'fold s':>7} {'all s':>7} {'boxes':>6} {'kB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "drawing.svg")
        for reads in (layers, chain, near, far):
            for size in sizes:
                program = program_of(reads, size)
                for subject in (program, Split(every_n_nodes(25))(program)):
                    started = time.perf_counter()
                    sketch = sketch_of(subject)
                    read = time.perf_counter()
                    small = folded(sketch, "auto")
                    done = time.perf_counter()
                    save_svg(subject, path)
                    saved = time.perf_counter()
                    kind = "yes" if subject.pieces else "no"
                    times = f"{read - started:7.2f} {done - read:7.2f} {saved - done:7.2f}"
                    print(
                        f"{reads.__name__:8} {kind:6} {size:6} {times} {len(small.boxes):6} {path.stat().st_size // 1024:6}"
                    )


if __name__ == "__main__":
    main()
