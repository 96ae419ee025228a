"""Which stretch of a sequence repeats: the search behind the folding of a stack of layers.

Nothing here knows of boxes. A sequence has units; each has a label (equal for units that look the same) and links (what
it reads). Two stretches are one repeated when their units have equal labels and equal links: each reads from the same
place in its own repetition, from the same place in the one before, or from one and the same unit outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass(frozen=True)
class Link:
    """One value that a unit reads.

    Attributes:
        slot: which part of the unit reads it.
        source: the unit that gives it, or -1 where no unit of the sequence does.
        part: which part of the source gives it; for a source outside, the key of what gives it.
        label: what the value is, the same for values that differ in name alone.
    """

    slot: int
    source: int
    part: object
    label: str


@dataclass(frozen=True)
class Run:
    """A stretch that occurs several times, one after the other.

    Attributes:
        start: the first unit of the first occurrence.
        period: how many units one occurrence has.
        count: how many times it occurs.
    """

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The first unit after the last occurrence."""
        return self.start + self.period * self.count


_MAX_CANDIDATES = 24
"""Runs by label whose links are looked at before the best of them are taken."""

_MAX_DEPTH = 8
"""How often the search goes on between the runs that it has found; it bounds the time that a strange graph takes."""


def find_runs(
    labels: Sequence[str], links: Sequence[Sequence[Link]], weights: Sequence[int], min_saved: int
) -> tuple[Run, ...]:
    """Return runs that do not overlap, in order, the largest taken first.

    Args:
        labels: one for each unit.
        links: what each unit reads, in a fixed order.
        weights: how many boxes each unit has.
        min_saved: how many boxes a run must save to be worth its frame.
    """
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(label, len(numbers)) for label in labels]
    tensor = torch.tensor(codes, dtype=torch.int64)
    sums = [0, *accumulate(weights)]
    crossing = _crossing(links)

    def by_size(run: Run) -> tuple[int, int, int]:
        return (sums[run.start + run.period] - sums[run.end], run.period, run.start)

    def search(start: int, end: int, depth: int) -> Iterator[Run]:
        if depth == _MAX_DEPTH or sums[end] - sums[start] <= min_saved:
            return
        candidates = sorted(_by_label(tensor, start, end), key=by_size)[:_MAX_CANDIDATES]
        checked = [_checked(_best_phase(run, end, crossing, codes), links) for run in candidates]
        taken: list[Run] = []
        for run in sorted((run for run in checked if run is not None), key=by_size):
            is_free = all(run.end <= other.start or other.end <= run.start for other in taken)
            if is_free and sums[run.end] - sums[run.start + run.period] >= min_saved:
                taken.append(run)
        position = start
        for run in sorted(taken, key=lambda run: run.start):
            yield from search(position, run.start, depth + 1)
            yield run
            position = run.end
        if taken:
            yield from search(position, end, depth + 1)

    return tuple(search(0, len(labels), 0))


def _by_label(codes: torch.Tensor, start: int, end: int) -> Iterator[Run]:
    """Yield, for each period, the longest run of equal labels."""
    for period in range(1, (end - start) // 2 + 1):
        equal = codes[start : end - period] == codes[start + period : end]
        if int(equal.sum()) < period:
            continue
        edges = torch.nn.functional.pad(equal.to(torch.int8), (1, 1)).diff()
        firsts, lasts = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
        lengths = lasts - firsts
        longest = int(lengths.argmax())
        length = int(lengths[longest])
        if length >= period:
            yield Run(start + int(firsts[longest]), period, length // period + 1)


def _crossing(links: Sequence[Sequence[Link]]) -> list[int]:
    """Return how many values are alive across each place between two units."""
    last_read: dict[tuple[int, object], int] = {}
    for unit, reads in enumerate(links):
        last_read.update({(link.source, link.part): unit for link in reads if link.source >= 0})
    changes = [0] * (len(links) + 1)
    for (source, _), reader in last_read.items():
        changes[source + 1] += 1
        changes[reader + 1] -= 1
    return list(accumulate(changes))


def _best_phase(run: Run, end: int, crossing: Sequence[int], codes: Sequence[int]) -> Run:
    """Return the run moved to where the fewest values cross from one occurrence to the next."""
    spare = 0
    while run.end + spare < end and codes[run.end + spare] == codes[run.end + spare - run.period]:
        spare += 1
    # The border between the first two occurrences shows it best: values that live through the whole run cross every border.
    shift = min(range(spare % run.period + 1), key=lambda by: (crossing[run.start + run.period + by], by))
    return Run(run.start + shift, run.period, run.count)


def _checked(run: Run, links: Sequence[Sequence[Link]]) -> Run | None:
    """Return the longest part of a run whose links repeat too; ``None`` where they nowhere do."""
    best: Run | None = None
    part = Run(run.start, run.period, 1)
    for start in range(run.start + run.period, run.end, run.period):
        units = range(start - run.period, start)
        if all(_same_links(links[unit], links[unit + run.period], part) for unit in units):
            part = Run(part.start, run.period, part.count + 1)
        else:
            part = Run(start, run.period, 1)
        if part.count > (best.count if best is not None else 1):
            best = part
    return best


def _same_links(mine: Sequence[Link], theirs: Sequence[Link], run: Run) -> bool:
    """Whether two units, one in the last occurrence of a run so far and one in what follows it, read the same."""
    if len(mine) != len(theirs):
        return False
    for ours, other in zip(mine, theirs, strict=True):
        if ours.slot != other.slot or ours.label != other.label:
            return False
        is_leaf = ours.source < 0 and other.source < 0
        is_same_place = ours.part == other.part and 0 <= ours.source == other.source - run.period
        is_invariant = ours.part == other.part and ours.source == other.source
        # The first occurrence reads what comes before the run where the others read the occurrence before them.
        comes_in = run.count == 1 and ours.source < run.start <= other.source < run.end
        if not (is_leaf or is_same_place or is_invariant or comes_in):
            return False
    return True
