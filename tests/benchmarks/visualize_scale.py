"""How long a drawing takes, and how large it is, from 10 to 10,000 nodes.

For each kind of graph, whole and cut into pieces of 25 nodes, it prints the seconds to read the program, to fold it, and
to do all of it with the layout and the file; how many boxes are left; and the size of the file. A drawing of 10,000 nodes
should take less than 10 seconds. ``python -m tests.benchmarks.visualize_scale [nodes ...] [--write]``
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

from fxbucket.passes import Program, Split, every_n_nodes
from fxbucket.passes.captured import Capture, Placeholder
from fxbucket.visualize import save_svg
from fxbucket.visualize.draw import sketch_of
from fxbucket.visualize.fold import folded
from tests.benchmarks.document import IMAGES, provenance, save_plot, table, write_section

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


KINDS = (layers, chain, near, far)
SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000)
REPEATS = 3
"""The least of these counts, since other work of the machine only ever adds."""


@dataclass(frozen=True)
class Row:
    """One drawing: which graph, seconds for reading, folding and all of it, boxes drawn, bytes written."""

    kind: str
    is_split: bool
    num_nodes: int
    read: float
    fold: float
    whole: float
    num_boxes: int
    num_bytes: int


def measure(sizes: Sequence[int]) -> Iterator[Row]:
    """Yield a row for each kind of graph at each size, whole and split."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "drawing.svg")
        for reads in KINDS:
            for size in sizes:
                program = program_of(reads, size)
                for subject in (program, Split(every_n_nodes(25))(program)):
                    times = []
                    for _ in range(REPEATS):
                        started = time.perf_counter()
                        sketch = sketch_of(subject)
                        read = time.perf_counter()
                        small = folded(sketch, "auto")
                        done = time.perf_counter()
                        save_svg(subject, path)
                        times.append((read - started, done - read, time.perf_counter() - done))
                    least = [min(column) for column in zip(*times, strict=True)]
                    boxes = len(small.boxes)
                    yield Row(reads.__name__, bool(subject.pieces), size, *least, boxes, path.stat().st_size)


def write(rows: Sequence[Row]) -> None:
    """Renew the section of docs/benchmarks.md and its plot."""
    whole = [row for row in rows if not row.is_split]
    lines = {kind.__name__: [row for row in whole if row.kind == kind.__name__] for kind in KINDS}
    panels = {
        "seconds": {name: [(row.num_nodes, row.whole) for row in of_kind] for name, of_kind in lines.items()},
        "kilobytes": {name: [(row.num_nodes, row.num_bytes / 1000) for row in of_kind] for name, of_kind in lines.items()},
    }
    save_plot(IMAGES / "visualize_scale.svg", panels, "nodes")
    shown = [
        (row.kind, "yes" if row.is_split else "no", f"{row.num_nodes:,}", f"{row.read:.3f}", f"{row.fold:.3f}",
         f"{row.whole:.2f}", row.num_boxes, round(row.num_bytes / 1000))
        for row in rows if row.num_nodes in (10, 100, 1_000, 10_000)
    ]  # fmt: skip
    columns = ("graph", "split", "nodes", "read, s", "fold, s", "all, s", "boxes", "kB")
    said = subprocess.run(["dot", "-V"], capture_output=True, text=True, check=True).stderr
    made = provenance("visualize_scale", Graphviz=said.split("version ")[-1].split()[0])
    picture = "![Seconds and kilobytes of a drawing against the number of nodes](images/visualize_scale.svg)"
    write_section("visualize_scale", f"{picture}\n\n{made}\n\n{table(columns, shown)}")


def main() -> None:
    """Print one line a drawing; with ``--write`` renew the document."""
    sizes = [int(size) for size in sys.argv[1:] if size != "--write"] or SIZES
    print(f"{'graph':8} {'split':6} {'nodes':>6} {'read s':>7} {'fold s':>7} {'all s':>7} {'boxes':>6} {'kB':>6}")
    rows = []
    for row in measure(sizes):
        rows.append(row)
        times = f"{row.read:7.3f} {row.fold:7.3f} {row.whole:7.3f}"
        split = "yes" if row.is_split else "no"
        print(f"{row.kind:8} {split:6} {row.num_nodes:6} {times} {row.num_boxes:6} {row.num_bytes // 1000:6}", flush=True)
    if "--write" in sys.argv:
        write(rows)


if __name__ == "__main__":
    main()
