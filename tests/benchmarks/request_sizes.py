"""Sizes of requests in tokens, as benchmarks use them: request_sizes.csv, and how it was made.

Nobody's requests are in it. It stands for what a served language model is asked: many short questions, fewer with a page of
context, some with a whole document, and those that were cut at the model's limit. 20,000 sizes are drawn from a mixture of
lognormal distributions, and sizes within 1.8 percent of one another are counted as one, at one that was drawn, so that the
table stays short. ``python -m tests.benchmarks.request_sizes`` writes it anew, always the same.
"""

from __future__ import annotations

import csv
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

TABLE = Path(__file__).with_name("request_sizes.csv")
LIMIT = 4096
"""The largest size; longer requests were cut to it."""

_NUM_CALLS = 20_000
_SEED = 2024
_KINDS = (
    ("short", 0.55, 110, 0.9),
    ("with context", 0.30, 620, 0.7),
    ("document", 0.15, 2100, 0.5),
)
"""Each kind of request: its share, the median of its size in tokens, and the standard deviation of the size's logarithm."""
_NEAR = 1.018


def request_sizes() -> dict[int, int]:
    """Return the table: size in tokens → how many calls had it, ascending."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {int(row["size"]): int(row["count"]) for row in rows}


def drawn() -> dict[int, int]:
    """Return what the table holds, drawn anew."""
    chance = random.Random(_SEED)
    kinds = chance.choices(_KINDS, [share for _, share, _, _ in _KINDS], k=_NUM_CALLS)
    sizes = sorted(
        min(max(round(chance.lognormvariate(math.log(median), sigma)), 1), LIMIT) for _, _, median, sigma in kinds
    )
    groups: dict[int, list[int]] = defaultdict(list)
    for size in sizes:
        # What was cut is of one size, however near others come to it.
        groups[-1 if size == LIMIT else int(math.log(size, _NEAR))].append(size)
    found: Counter[int] = Counter()
    for group in groups.values():
        found[group[len(group) // 2]] += len(group)
    return dict(sorted(found.items()))


def main() -> None:
    """Write the table."""
    with TABLE.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"# {_NUM_CALLS} calls drawn from lognormal distributions by tests/benchmarks/request_sizes.py\n")
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("size", "count"))
        rows.writerows(drawn().items())


if __name__ == "__main__":
    main()
