"""What ranks tell each other: a few ints before each call, texts where something is wrong; every wait is bounded.

The ints go through a gloo group of its own, so that no GPU is waited for and no collective of the model is in the way. Texts
go through the store of the process group, which still answers when a rank is gone, and so can tell which one it is.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fxbucket.distributed_compat import store_of_ranks
from fxbucket.passes.errors import MissingRankError, OptionError

NUM_INTS = 32
"""How many ints each rank tells at once; the number is fixed, so that ranks that say different things still meet."""

_GRACE = 5.0
"""Seconds in which ranks that lost each other tell that they are still there."""

_made: Counter[tuple[int, ...]] = Counter()


class RankExchange:
    """What the ranks of one compiled model tell each other.

    Attributes:
        rank: this process's number among all.
        ranks: those of the group, in its order.
    """

    def __init__(self, group: Any, seconds: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise OptionError(
                "agree: torch.distributed is not initialized; call torch.distributed.init_process_group() before the model, "
                "or leave agree='off'."
            )
        self.rank = dist.get_rank()
        self.ranks = tuple(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
        if self.rank not in self.ranks:
            raise OptionError(f"agree_group: rank {self.rank} is not in it; it holds {listed(self.ranks)}.")
        self._seconds = seconds
        number = _made[self.ranks]
        _made[self.ranks] += 1
        place = "-".join(map(str, self.ranks)) if len(self.ranks) <= 16 else f"{self.ranks[0]}-{hash(self.ranks)}"
        self._store = dist.PrefixStore(f"fxbucket/{place}/{number}", store_of_ranks())
        self._gloo: Any = None
        self._rounds = 0
        self._lost = ""

    @property
    def is_joined(self) -> bool:
        """Whether the ranks have met."""
        return self._gloo is not None

    def join(self) -> None:
        """Meet the other ranks, after :meth:`texts` found that all are there.

        Raises:
            MissingRankError: some did not come.
        """
        place = dist.PrefixStore("gloo", self._store)
        try:
            limit = datetime.timedelta(seconds=self._seconds)
            self._gloo = dist.ProcessGroupGloo(place, self.ranks.index(self.rank), len(self.ranks), limit)
        except RuntimeError as error:
            raise self._losing(error) from error

    def extremes(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the largest and the smallest of what the ranks gave, number by number; every rank gets the same.

        Raises:
            MissingRankError: a rank did not come in time, or is gone.
        """
        if self._lost:
            raise MissingRankError(self._lost)
        own = [*numbers, *[0] * (NUM_INTS - len(numbers))]
        told = torch.tensor([*own, *(-number for number in own)], dtype=torch.int64)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]  # torch's stubs know no conversion
        try:
            self._gloo.allreduce([told], options).wait()
        except RuntimeError as error:
            raise self._losing(error) from error
        found = told.tolist()
        return found[:NUM_INTS], [-number for number in found[NUM_INTS:]]

    def texts(self, own: str) -> dict[int, str]:
        """Return a text of every rank; all of them must ask.

        Raises:
            MissingRankError: some did not in time; names them.
        """
        self._rounds += 1
        found = self._tell(f"texts/{self._rounds}", own, self._seconds)
        missing = [rank for rank, text in found.items() if text is None]
        if missing:
            self._lost = f"{_did(missing)} not come within {self._seconds:g} seconds; does it run, and make this call?"
            raise MissingRankError(self._lost)
        return {rank: text for rank, text in found.items() if text is not None}

    def _tell(self, place: str, own: str, seconds: float) -> dict[int, str | None]:
        """Tell a text at a place of the store, and return what the ranks told there in time."""
        keys = {rank: f"{place}/{rank}" for rank in self.ranks}
        try:
            self._store.set(keys[self.rank], own)
            try:
                self._store.wait(list(keys.values()), datetime.timedelta(seconds=seconds))
            except dist.DistStoreError:
                pass
            else:
                return {rank: self._store.get(key).decode() for rank, key in keys.items()}
            return {rank: self._store.get(key).decode() if self._store.check([key]) else None for rank, key in keys.items()}
        except RuntimeError as error:  # of several kinds; whoever holds the store is gone, or closes it
            self._lost = (
                "the store of the process group cannot be reached, so the process that holds it (rank 0, or the launcher) "
                f"is gone: {_short(error)}"
            )
            raise MissingRankError(self._lost) from error

    def _losing(self, error: Exception) -> MissingRankError:
        """Return the error for ranks that lost each other, after asking who is still there."""
        found = self._tell("lost", "here", min(_GRACE, self._seconds))
        missing = [rank for rank, text in found.items() if text is None]
        late = f"{_did(missing)} not come within {self._seconds:g} seconds, or is gone" if missing else ""
        self._lost = f"{late or 'a rank came too late, or the ranks lost each other'}: {_short(error)}"
        return MissingRankError(self._lost)


def listed(ranks: Sequence[int]) -> str:
    """Return ranks as people read them: ``ranks 0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    more = f" and {len(parts) - 16} more runs" if len(parts) > 16 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts[:16])}{more}"


def _did(ranks: Sequence[int]) -> str:
    return f"{listed(ranks)} did"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
