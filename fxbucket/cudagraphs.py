"""A bucket on a GPU: recorded at its second call, and replayed at each call after that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fxbucket.artifact import Artifact
from fxbucket.copies import narrowed, overlaps_itself
from fxbucket.graph_compat import same_addresses
from fxbucket.graph_pool import GraphPool
from fxbucket.options import CudaGraphs, Options
from fxbucket.own_results import given_results, mark_results, own_results
from fxbucket.pad_plan import Plan
from fxbucket.passes.errors import FxbucketWarning
from fxbucket.passes.program import Program
from fxbucket.passes.stretches import RecordingPlan, plan_pieces, plan_whole
from fxbucket.replay import RecordingError, Replay, record
from fxbucket.stale import watched
from fxbucket.static_fill import Filling, once
from fxbucket.static_memory import StaticBuffers
from fxbucket.torch_compat import guards_tensors_of_modules

Function = Callable[..., Any]
_MOST_FAILURES = 2
"""How often a recording is tried: other work on the device may have disturbed the first."""
_MOST_FILLINGS = 4096
"""For how many sizes a recording remembers how they are padded; plans are kept with what they are known by."""


@dataclass(frozen=True, eq=False)
class Recordable:
    """A bucket that is to be recorded.

    Attributes:
        program: made concrete.
        artifacts: what runs each piece, in order.
        function: runs all of them, unrecorded.
        accepts: whether a call's arguments fulfil what the look-up does not check; ``None`` where that is nothing.
        marks: what to do with a returned value, by name.
        counter: its first item counts the calls; ``function`` counts those that run it.
        note: is given the arguments of calls, while recordings are being prepared.
    """

    program: Program
    artifacts: tuple[Artifact, ...]
    function: Function
    accepts: Function | None
    marks: Mapping[str, Callable[[Any], None]]
    counter: list[int]
    note: Callable[[Sequence[Any]], None]


@dataclass(eq=False)
class _Recording:
    """One recorded bucket and the memory that it reads."""

    replay: Replay
    static: list[Any]
    fixed: list[int]
    addresses: list[int | None]
    filling: Filling
    num_bytes: int
    layouts: list[tuple[Any, ...]]
    padded: dict[int, tuple[Plan, Filling]] = field(default_factory=dict)


class RecordedBucket:
    """Serves the calls of one bucket by replaying recordings of its pieces.

    The first call runs as ever, the second is recorded, later ones are replayed. Arguments whose address stays (parameters,
    buffers, and inputs that came from one place twice) are read where they are; others are copied into buffers that all
    buckets of the graph share.

    Args:
        bucket: what is recorded.
        mode: how.
        buffers: the buffers of the graph's arguments.
        recordings: what it shares with the model's other buckets.
        options: the model's options.
    """

    def __init__(
        self, bucket: Recordable, mode: CudaGraphs, buffers: StaticBuffers, recordings: GraphPool, options: Options
    ) -> None:
        self.note = ""
        self.num_recorded = 0
        self._bucket = bucket
        self._program = bucket.program
        self._mode = mode
        self._buffers = buffers
        self._recordings = recordings
        self._copies = options.cudagraph_outputs == "copy"
        self._debug = options.debug
        self._recording: _Recording | None = None
        self._seen: list[int] | None = None
        self._copied: set[int] = set()
        self._failures: dict[tuple[str, ...], int] = {}
        self._avoided: dict[str, str] = {}
        self._plan = self._planned()
        capture = bucket.program.capture
        self._roles = [placeholder.role for placeholder in capture.placeholders]
        self._names = [placeholder.name for placeholder in capture.placeholders]
        values = capture.argument_values
        self._tensors = [position for position, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self._given = given_results(bucket.program)
        self._is_unguarded = not guards_tensors_of_modules()

    @property
    def state(self) -> str:
        """Whether the bucket is recorded, as how many graphs, and why it is not."""
        if self.note:
            return f"not recorded: {self.note}"
        left_out = self._plan.left_out
        if not self._plan.num_recorded:
            return f"not recorded: {'; '.join(left_out) or 'nothing lies between its boundaries'}"
        if self._recording is None:
            return "to be recorded"
        graphs, megabytes = self._recording.replay.num_graphs, self._recording.num_bytes / 2**20
        text = "recorded" if self.num_recorded == 1 else f"recorded {self.num_recorded} times"
        text += f": {graphs} graph{'' if graphs == 1 else 's'}, {megabytes:.1f} MB more"
        runs = "; ".join(f"{count} pieces run: {reason}" for reason, count in left_out.items())
        return f"{text} ({runs})" if runs else text

    @property
    def is_recorded(self) -> bool:
        """Whether there is a recording now."""
        return self._recording is not None

    def forget(self) -> None:
        """Give the recording's memory back; the next call but one records anew."""
        self._recording, self._seen = None, None

    def prepare(self, args: Sequence[Any], copied: Iterable[int]) -> None:
        """Record the bucket before a call of its own comes.

        Args:
            args: arguments of the bucket's sizes; what they are written to is lost.
            copied: positions that calls will have elsewhere, each at another place.
        """
        calls, device = self._bucket.counter[0], self._buffers.device
        if self._is_served(args):
            self._copied.update(copied)
            with torch.random.fork_rng(devices=[device]):
                self._bucket.function(*args)
                self._seen = self._addresses(args)
                self(*args)
        self._bucket.counter[0] = calls

    def __call__(self, *args: Any) -> Any:
        """Serve one call."""
        if self._recordings.is_warming:
            self._bucket.note(args)
        if not self._is_served(args):
            return self._bucket.function(*args)
        with self._recordings.lock:
            recording = self._current(args)
            if recording is None:
                if self._seen is None:
                    self._seen = self._addresses(args)
                    return self._bucket.function(*args)
                return self._record(args)
            self._begin()
            recording.filling(args)
            return self._finish(args, recording.replay.function(*args), recording)

    def padded(self, args: Sequence[Any], plan: Plan) -> Any:
        """Serve a call that is padded straight into the buffers; ``NotImplemented`` where that cannot be (yet).

        Args:
            args: the call's own arguments.
            plan: how they become larger, and what of the results is the call's own.
        """
        # What is padded is at another place in each call, whatever the places seen so far say.
        self._copied.update(held.position for held in plan.tensors)
        if not self._is_served(args):
            return NotImplemented
        with self._recordings.lock:
            recording = self._recording
            if recording is None or not self._is_in_place(args, recording):
                return NotImplemented
            if not self._copied.isdisjoint(recording.fixed):
                self._recording = None
                return NotImplemented
            known = recording.padded.get(id(plan))
            if known is None:
                if len(recording.padded) >= _MOST_FILLINGS:
                    recording.padded.clear()
                known = recording.padded[id(plan)] = plan, Filling(recording.static, args, plan.tensors)
            self._begin()
            _, filling = known
            filling(args)
            larger = list(args)
            for position, number in plan.numbers:
                larger[position] = number
            for held in plan.tensors:
                # What no recording reads is given to what runs between them.
                if recording.static[held.position] is None:
                    larger[held.position] = held.padded(args[held.position])
            return self._finish(args, recording.replay.function(*larger), recording, plan, larger)

    def _is_served(self, args: Sequence[Any]) -> bool:
        """Whether a call may be recorded or replayed at all."""
        if self.note or not self._plan.num_recorded or torch.cuda.is_current_stream_capturing():
            return False
        return self._bucket.accepts is None or bool(self._bucket.accepts(*args))

    def _current(self, args: Sequence[Any]) -> _Recording | None:
        """Return the recording, unless something that it reads in place has moved."""
        recording = self._recording
        if recording is None or self._is_in_place(args, recording):
            return recording
        addresses = recording.addresses
        moved = [place for place in recording.fixed if args[place].data_ptr() != addresses[place]]
        # One that is the caller's own may move again, so it is copied from now on.
        self._copied.update(position for position in moved if self._roles[position] == "input")
        self._recording = None
        self._seen = self._addresses(args)
        return None

    def _is_in_place(self, args: Sequence[Any], recording: _Recording) -> bool:
        """Whether what the recording reads where it is lies there still, and as it did."""
        if not same_addresses(args, recording.addresses, recording.fixed):
            return False
        # Without guards on them, parameters may have got other strides over the same memory.
        return not self._is_unguarded or _layouts(args, recording.fixed) == recording.layouts

    def _begin(self) -> None:
        self._bucket.counter[0] += 1
        self._recordings.enter(self._buffers.device)
        self._recordings.used(self)

    def _addresses(self, args: Sequence[Any]) -> list[int]:
        return [args[position].data_ptr() for position in self._tensors]

    def _record(self, args: Sequence[Any]) -> Any:
        """Make one call, and record the bucket meanwhile."""
        seen = dict(zip(self._tensors, self._seen or self._addresses(args), strict=True))
        read = [position for position in self._tensors if self._names[position] in self._plan.read]
        fixed = [place for place in read if self._roles[place] != "input" or self._stays(place, args, seen)]
        static: list[Any] = [None] * len(args)
        given = list(args)
        for position in set(read) - set(fixed):
            like = args[position]
            given[position] = static[position] = self._buffers.buffer(position, like.shape, like.stride(), like.dtype)
            one = once(static[position])
            if overlaps_itself(one.shape, one.stride()):
                self._refuse(f"elements of argument {self._names[position]} share memory")
                return self._bucket.function(*args)
        filling = Filling(static, args)
        before = self._recordings.num_bytes
        self._begin()
        filling(args)
        device = self._buffers.device
        done = record(self._program, self._bucket.artifacts, self._plan, given, self._recordings, device)
        if done.failure is not None:
            self._failed(done.failure)
        elif done.replay is not None:
            self.num_recorded += 1
            addresses: list[int | None] = [None] * len(args)
            for position in fixed:
                addresses[position] = args[position].data_ptr()
            num_bytes = self._recordings.num_bytes - before
            layouts = _layouts(args, fixed)
            self._recording = _Recording(done.replay, static, fixed, addresses, filling, num_bytes, layouts)
        for position in self._program.capture.written:
            if static[position] is not None:
                args[position].copy_(static[position])
        # They are the recording's alone until it is known whose they are to be, so they are copied in any case.
        results = own_results(done.results, self._given, True, None, args)
        mark_results(results, self._program.outputs, self._bucket.marks)
        return results

    def _stays(self, position: int, args: Sequence[Any], seen: Mapping[int, int]) -> bool:
        """Whether an argument of the caller's own is read where it is."""
        # What a recording gave may be among the arguments of the next, and a replay would write over it.
        return self._copies and position not in self._copied and args[position].data_ptr() == seen[position]

    def _finish(
        self, args: Sequence[Any], results: Any, recording: _Recording, plan: Plan | None = None, larger: Sequence[Any] = ()
    ) -> Any:
        """Write back what the call wrote to copies of its arguments, and return its own results."""
        static = recording.static
        for position in self._program.capture.written:
            if static[position] is not None:
                args[position].copy_(narrowed(static[position], args[position].shape))
            elif plan is not None and position in plan.written:
                args[position].copy_(narrowed(larger[position], args[position].shape))
        is_static = recording.replay.is_static if self._copies else False
        results = own_results(results, self._given, is_static, None if plan is None else plan.results, args)
        if self._bucket.marks:
            mark_results(results, self._program.outputs, self._bucket.marks)
        if self._debug and not self._copies:
            results = watched(results, recording.replay.is_static, self._recordings)
        return results

    def _planned(self) -> RecordingPlan:
        if self._mode == "piecewise":
            return plan_pieces(self._program, self._buffers.device, self._avoided)
        return plan_whole(self._program)

    def _failed(self, failure: RecordingError) -> None:
        """Decide what becomes of a bucket that could not be recorded."""
        times = self._failures[failure.pieces] = self._failures.get(failure.pieces, 0) + 1
        if times < _MOST_FAILURES:
            return
        if self._mode == "full":
            self._refuse(f"recording failed: {failure}")
            return
        # Where the whole cannot be recorded, what lies between boundaries may be; and where one piece cannot, the others.
        if self._mode == "piecewise":
            self._avoided |= dict.fromkeys(failure.pieces, f"recording failed: {failure}")
        self._mode = "piecewise"
        self._plan = self._planned()

    def _refuse(self, reason: str) -> None:
        self.note = reason
        warnings.warn(f"bucket {self._program.bucket} is not recorded: {reason}", FxbucketWarning, stacklevel=2)


def _layouts(args: Sequence[Any], positions: Sequence[int]) -> list[tuple[Any, ...]]:
    return [(args[position].stride(), args[position].shape) for position in positions]
