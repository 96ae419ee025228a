"""How ranks that share one store start, cold and warm: measured with processes of this machine, beside what a formula says.

Each rank is a process of its own; all have imported torch before they begin together, and the store alone joins them. Times
run from there to the first result at each pinned size. ``python -m tests.benchmarks.scale [--write]``
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fxbucket
from fxbucket.store import Store
from tests.benchmarks.cold_start import WIDTH, attention, stack
from tests.benchmarks.document import IMAGES, ROOT, provenance, save_plot, table, write_section

RANKS = (1, 2, 4, 8)
SIZES = (16, 64)
LAYERS, REPEATS = 4, 2
PER_NODE, MANY, LARGE = 8, 1000, 200
PAUSE = 1.0
"""The longest time between two looks at what another process makes, in seconds."""
BANDWIDTH = 1e9
"""Bytes a second that a shared folder is assumed to give to all nodes together."""


@dataclass(frozen=True)
class Figures:
    """What one rank alone needs.

    Attributes:
        own: seconds of its own work, whatever the store holds: the capture, the passes and the first calls.
        first: seconds that the first compilation of a process takes more than another would: what it loads and prepares.
        made: seconds to make each artifact in a process that has made one: to compile it, to save it and to store it.
        load: seconds to load all artifacts.
        size: bytes of all artifacts.
    """

    own: float
    first: float
    made: tuple[float, ...]
    load: float
    size: int

    def warm(self, ranks: int, cores: int) -> float:
        """Return the seconds until the last of some ranks has its results, where the store holds everything."""
        return (self.own + self.load) * max(ranks / cores, 1)

    def warm_work(self, ranks: int) -> float:
        """Return the processor seconds of some ranks together, where the store holds everything."""
        return (self.own + self.load) * ranks

    def cold_work(self, ranks: int) -> float:
        """Return the same where the store is empty: each artifact is made once, and loaded by all others."""
        return self.own * ranks + self.first * min(ranks, len(self.made)) + sum(self.made) + self.load * (ranks - 1)

    def cold(self, ranks: int, cores: int) -> float:
        """Return the seconds until the last of some ranks has its results, where the store is empty."""
        side_by_side = min(ranks, cores)
        work = self.cold_work(ranks)
        # Nobody is done before the artifact that takes longest is, and those who wait look up to a pause too late.
        waits = PAUSE if ranks > 1 else 0.0
        return max(work / side_by_side, self.own + self.first + max(self.made)) + waits

    def of(self, artifacts: int) -> Figures:
        """Return the figures of a model with so many artifacts, each as these are on the average."""
        factor = artifacts / len(self.made)
        own, made, load, size = self.own * factor, self.made * round(factor), self.load * factor, round(self.size * factor)
        return Figures(own, self.first, made, load, size)


def rank(folder: str, store: str, number: int) -> dict[str, Any]:
    """Compile a stack beside other ranks and call it at each size; runs in a process of its own."""
    torch.set_num_threads(1)
    model, inputs = stack(LAYERS), [torch.randn(size, WIDTH) for size in SIZES]
    importlib.import_module("torch._inductor.compile_fx")  # what the first compilation imports is no part of it
    Path(folder, f"ready{number}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    started, busy = time.perf_counter(), sum(os.times()[:4])
    options: dict[str, Any] = {"sizes": {"input.shape[0]": SIZES}, "splitting_ops": [attention], "workers": 0}
    compiled = fxbucket.compile(model, **options, on_miss="error", cache=store)
    with torch.no_grad():
        for x in inputs:
            compiled(x)
    seconds, busy = time.perf_counter() - started, sum(os.times()[:4]) - busy
    (graph,) = compiled.explain().graphs
    artifacts = [artifact for bucket in graph.buckets for artifact in bucket.artifacts]
    kinds = ("compiled", "loaded")
    return {"seconds": seconds, "busy": busy} | {
        kind: [artifact.seconds for artifact in artifacts if artifact.origin == kind] for kind in kinds
    }


def together(ranks: int, store: Path) -> list[dict[str, Any]]:
    """Return what :func:`rank` gives in each of some processes that begin at once."""
    with tempfile.TemporaryDirectory() as folder:
        code = "import sys, json; from tests.benchmarks.scale import rank; print(json.dumps(rank(*json.loads(sys.argv[1]))))"
        running = []
        # The ranks of a node share torch's own folder too; what torch asks the compiler once is asked by whoever is first.
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor"))}
        for number in range(ranks):
            command = [sys.executable, "-W", "ignore", "-c", code, json.dumps([folder, str(store), number])]
            running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        try:
            while len(list(Path(folder).glob("ready*"))) < ranks:
                if any(process.poll() for process in running):
                    raise RuntimeError("a rank failed before it began")
                time.sleep(0.05)
            Path(folder, "go").touch()
            said = [process.communicate()[0] for process in running]
        finally:
            for process in running:
                process.kill()
    if any(process.returncode for process in running):
        raise RuntimeError("a rank failed")
    return [json.loads(text.splitlines()[-1]) for text in said]


def measured(ranks: int) -> dict[str, Any]:
    """Start ranks on an empty store, and again on what it then holds; check that each artifact was made once."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        cold, warm = together(ranks, store), together(ranks, store)
        entries = list(Store(store).verify())
    made = sum(len(found["compiled"]) for found in cold)
    if made != len(entries) or any(found["compiled"] for found in warm):
        raise RuntimeError(f"{made} compilations for {len(entries)} artifacts, or some when all were there")
    return {"cold": cold, "warm": warm, "size": sum(entry.size for entry in entries), "artifacts": len(entries)}


def work(runs: list[dict[str, Any]], kind: str) -> list[float]:
    """Return the processor seconds of all ranks together, with the compilers that they call, of each run in order."""
    return sorted(sum(found["busy"] for found in run[kind]) for run in runs)


def slowest(runs: list[dict[str, Any]], kind: str) -> list[float]:
    """Return the seconds of the slowest rank in each run, in order."""
    return sorted(max(found["seconds"] for found in run[kind]) for run in runs)


def figures_of(alone: list[dict[str, Any]]) -> Figures:
    """Return the figures that a formula starts from: of the fastest of the runs with one rank."""
    # Processor seconds: what other programs of the machine took meanwhile is no part of them.
    cold = min((run["cold"][0] for run in alone), key=lambda found: found["busy"])
    warm = min((run["warm"][0] for run in alone), key=lambda found: found["busy"])
    load = sum(warm["loaded"]) * warm["busy"] / warm["seconds"]
    own = warm["busy"] - load
    # What a cold start takes beside its own work and the compilers' seconds goes into saving and storing what they made.
    factor = (cold["busy"] - own) / sum(cold["compiled"])
    *others, longest = sorted(factor * seconds for seconds in cold["compiled"])
    usual = sum(others) / len(others)  # the largest piece is compiled first, and the others are like it here
    return Figures(own, longest - usual, (*others, usual), load, alone[0]["size"])


def at_scale(figures: Figures) -> list[list[str]]:
    """Return the lines of the table of many ranks, each rank with a core of its own."""
    nodes = MANY // PER_NODE
    seconds = {
        "warm, one shared folder": figures.warm(1, 1) + figures.size * nodes / BANDWIDTH,
        "cold, one shared folder": figures.cold(MANY, MANY) + figures.size * nodes / BANDWIDTH,
        "cold, a folder on each node": figures.cold(PER_NODE, PER_NODE),
        "cold, no store": figures.own + figures.first + sum(figures.made),
    }
    read = figures.size * nodes
    traffic = {
        "warm, one shared folder": (read, 0), "cold, one shared folder": (read, figures.size),
        "cold, a folder on each node": (0, 0), "cold, no store": (0, 0),
    }  # fmt: skip
    times = {"warm, one shared folder": 0, "cold, one shared folder": 1, "cold, a folder on each node": nodes}
    return [
        [
            how,
            f"{value:.1f}",
            f"{times.get(how, MANY) * len(figures.made):,}",
            *(f"{size / 1e6:,.1f}" for size in traffic[how]),
        ]
        for how, value in seconds.items()
    ]


def main() -> None:
    """Measure, print, and with ``--write`` renew the section of docs/scale.md."""
    cores = len(os.sched_getaffinity(0))
    runs = {ranks: [measured(ranks) for _ in range(REPEATS)] for ranks in ((1, 2) if "--quick" in sys.argv else RANKS)}
    figures = figures_of(runs[1])
    said = (
        f"One rank alone: {len(figures.made)} artifacts of {figures.size / 1e3 / len(figures.made):.0f} kB on the average, "
        f"made in {sum(figures.made):.1f} s and {figures.first:.1f} s more for the first of a process, "
        f"loaded in {figures.load:.2f} s; the rank's own work takes {figures.own:.2f} s. These are "
        f"processor seconds."
    )
    rows = []
    for ranks, found in runs.items():
        row: list[str] = [str(ranks)]
        for kind, formula in (("cold", figures.cold_work(ranks)), ("warm", figures.warm_work(ranks))):
            low, *_, high = work(found, kind)
            row += [f"{low:.1f} to {high:.1f}", f"{formula:.1f}"]
        for kind, formula in (("cold", figures.cold(ranks, cores)), ("warm", figures.warm(ranks, cores))):
            low, *_, high = slowest(found, kind)
            row += [f"{low:.1f} to {high:.1f}", f"{formula:.1f}"]
        made = {sum(len(one["compiled"]) for one in run["cold"]) for run in found}
        rows.append([*row, " or ".join(map(str, sorted(made)))])
    heads = [f"{kind}, {what}" for what in ("processor s of all", "s to the last") for kind in ("cold", "warm")]
    heads = [column for head in heads for column in (head, "by the formula")]
    shown = table(["ranks", *heads, "artifacts made by all"], rows)
    columns = [f"{MANY:,} ranks", "seconds", "compilations", "read from the folder, MB", "written, MB"]
    small, large = table(columns, at_scale(figures)), table(columns, at_scale(figures.of(LARGE)))
    print(said, shown, small, large, sep="\n\n")
    if "--write" in sys.argv:
        panels = {
            f"{kind}: processor seconds of all ranks": {
                "measured": [(ranks, work(found, kind)[0]) for ranks, found in runs.items()],
                "formula": [(ranks, formula(ranks)) for ranks in runs],
            }
            for kind, formula in (("cold", figures.cold_work), ("warm", figures.warm_work))
        }
        save_plot(IMAGES / "scale.svg", panels, "ranks")
        text = [
            f"{provenance('scale')} The formula has {cores} cores.", said, shown,
            "![Processor seconds of all ranks together, measured and by the formula](images/scale.svg)",
            "By the formula, for the model that was measured:", small,
            f"And for one of {LARGE} such artifacts:", large,
        ]  # fmt: skip
        write_section("scale", "\n\n".join(text), ROOT / "docs" / "scale.md")


if __name__ == "__main__":
    main()
