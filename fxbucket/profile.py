"""Where the time of calls goes: recorded while a profile is taken, and only then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class CallRecord:
    """One call of one captured graph.

    Attributes:
        start: seconds since the profile began.
        graph: the number of the graph, in the order of capture.
        bucket: what served the call: a bucket's text, or ``"as captured"``.
        seconds: how long it took, without Dynamo's guards and the look-up.
        pieces: seconds of each piece, by name; empty for a graph that ran as captured.
    """

    start: float
    graph: int
    bucket: str
    seconds: float
    pieces: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """What was recorded.

    Attributes:
        calls: one record a call of a graph, in order.
    """

    calls: tuple[CallRecord, ...] = ()

    def seconds(self) -> dict[tuple[str, str], float]:
        """Return the seconds spent in each piece in each bucket, by ``(bucket, piece)``."""
        found: dict[tuple[str, str], float] = {}
        for call in self.calls:
            for piece, seconds in call.pieces.items():
                found[call.bucket, piece] = found.get((call.bucket, piece), 0.0) + seconds
        return found


class Recorder:
    """Collects the records of calls.

    On a device that works asynchronously each mark waits for the device, so that a piece's seconds are its own; the calls
    of a profile are slower for it.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._calls: list[CallRecord] = []
        accelerator = torch.accelerator.is_available()
        self.clock = _after_device if accelerator else time.perf_counter

    def record(self, graph: int, bucket: str, pieces: tuple[str, ...], marks: list[float]) -> None:
        """Add a call: ``marks`` holds the clock before the first piece and after each."""
        seconds: dict[str, float] = {}
        for number, piece in enumerate(pieces):
            seconds[piece] = marks[number + 1] - marks[number]
        self._calls.append(CallRecord(marks[0] - self._started, graph, bucket, marks[-1] - marks[0], seconds))

    def profile(self) -> Profile:
        """Return what was recorded so far."""
        return Profile(tuple(sorted(self._calls, key=lambda call: call.start)))


def _after_device() -> float:
    # Pieces run on the current stream. A wait for the whole device would fail while another thread records a CUDA graph.
    torch.accelerator.current_stream().synchronize()
    return time.perf_counter()
