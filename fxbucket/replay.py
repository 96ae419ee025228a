"""The pieces of a bucket → CUDA graphs, and the function that replays them with what runs between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxbucket.artifact import Artifact
from fxbucket.emit import structure_text
from fxbucket.generated import free_prefix, function_from
from fxbucket.graph_compat import launcher_of
from fxbucket.graph_pool import BusyError, Capture, GraphPool
from fxbucket.passes.errors import FxbucketError
from fxbucket.passes.program import Program, Ref
from fxbucket.passes.stretches import RecordingPlan, Stretch
from fxbucket.static_memory import without_owning

_KEEP = object()


class RecordingError(FxbucketError, RuntimeError):
    """A stretch of pieces cannot be recorded; says which and why.

    Attributes:
        pieces: their names.
    """

    def __init__(self, pieces: Sequence[str], cause: Exception) -> None:
        what = f"{pieces[0]} to {pieces[-1]}" if len(pieces) > 1 else pieces[0]
        text = " ".join(str(cause).split())[:300]
        super().__init__(f"{what}: {type(cause).__name__}: {text}")
        self.pieces = tuple(pieces)


@dataclass(frozen=True, eq=False)
class Replay:
    """The recorded graphs of a bucket.

    Attributes:
        function: takes the arguments of the captured graph, replays, and returns the results; where these lie in memory of
            the recording, ``is_static`` says so.
        source: what was compiled, for people to read.
        is_static: the structure of the results, with whether each is memory that the next replay writes over.
        num_graphs: how many graphs a call replays.
    """

    function: Callable[..., Any]
    source: str
    is_static: Any
    num_graphs: int


@dataclass(frozen=True, eq=False)
class Recorded:
    """What came of a call that was to be recorded.

    Attributes:
        results: of the call itself, right whatever became of the recording; they may lie in memory of the recording.
        replay: the recording; ``None`` where there is none.
        failure: why it failed; ``None`` too where it had to be put off, for another thread compiled or recorded.
    """

    results: Any
    replay: Replay | None
    failure: RecordingError | None


def record(
    program: Program,
    artifacts: Sequence[Artifact],
    plan: RecordingPlan,
    given: Sequence[Any],
    recordings: GraphPool,
    device: torch.device,
) -> Recorded:
    """Record a bucket while a call of it is made.

    Args:
        program: made concrete.
        artifacts: what runs each piece, in order.
        plan: what is recorded.
        given: the call's arguments, each that a recording reads at the place where it will be at every replay.
        recordings: what the bucket shares with others.
        device: where the recordings run.
    """
    return _Recorder(program, artifacts, plan, recordings, device).run(given)


class _Recorder:
    def __init__(
        self,
        program: Program,
        artifacts: Sequence[Artifact],
        plan: RecordingPlan,
        recordings: GraphPool,
        device: torch.device,
    ) -> None:
        self._program = program
        self._artifacts = artifacts
        self._plan = plan
        self._recordings = recordings
        self._device = device
        self._parameters = [placeholder.name for placeholder in program.capture.placeholders]
        self._values: dict[str, Any] = {}
        # What stays where it is, as the generated function refers to it.
        self._static: dict[str, Any] = {}
        self._own = free_prefix([*self._parameters, *(name for piece in program.pieces for name in piece.outputs)])
        self._namespace: dict[str, Any] = {f"{self._own}same_place": _same_place, f"{self._own}hold": _hold}
        self._lines: list[str] = []
        self._owners: list[Any] = []
        self._failure: RecordingError | None = None
        self._goes_on = True

    def run(self, given: Sequence[Any]) -> Recorded:
        self._values = dict(zip(self._parameters, given, strict=True))
        self._static |= {name: self._fixed(self._values[name]) for name in self._plan.read}
        with self._recordings.capturing(self._device) as capture:
            for stretch in self._plan.stretches:
                if not stretch.is_recorded:
                    self._run_between(stretch)
                elif not self._goes_on or not self._record(stretch, capture):
                    # The call has begun and may have written to its arguments, so it is brought to its end.
                    self._values = self._after(stretch)
        outputs = self._program.outputs
        results = self._structure(outputs, lambda name: self._values[name])
        if not self._goes_on:
            return Recorded(results, None, self._failure)
        expression = structure_text(outputs, self._namespace, self._own, self._name)
        source = "\n".join([f"def replay({', '.join(self._parameters)}):", *self._lines, f"    return {expression}"]) + "\n"
        function = function_from(source, "replay", f"replay of {self._program.bucket}", self._namespace)
        is_static = self._structure(outputs, lambda name: isinstance(self._static.get(name), torch.Tensor), False)
        return Recorded(results, Replay(function, source, is_static, self._plan.num_recorded), None)

    def _after(self, stretch: Stretch) -> dict[str, Any]:
        """Return the values that there are after the pieces of a stretch ran."""
        values = dict(self._values)
        for place in stretch.pieces:
            piece, artifact = self._program.pieces[place], self._artifacts[place]
            results = artifact.call(*[values[name] for name in artifact.inputs])
            values |= dict(zip(piece.outputs, results, strict=True))
            del results
            # Their memory may be used again, by what is recorded next too.
            for name in self._plan.dead[place]:
                values.pop(name, None)
        return values

    def _record(self, stretch: Stretch, capture: Capture) -> bool:
        pieces = [self._program.pieces[place] for place in stretch.pieces]
        try:
            graph, values = capture(lambda: self._after(stretch))
        except BusyError:
            self._goes_on = False
            return False
        except Exception as error:  # torch and drivers say in many ways that something cannot be recorded
            self._recordings.settle(self._device)
            self._failure = RecordingError([piece.name for piece in pieces], error)
            self._goes_on = False
            return False
        graph.replay()
        self._values = values
        self._owners.append(graph)
        self._static |= {name: self._fixed(values[name]) for piece in pieces for name in piece.outputs if name in values}
        name = f"{self._own}replay_{stretch.pieces[0]}"
        self._namespace[name] = launcher_of(graph)
        self._lines.append(f"    {name}()")
        return True

    def _run_between(self, stretch: Stretch) -> None:
        (place,) = stretch.pieces
        piece, artifact = self._program.pieces[place], self._artifacts[place]
        runner = f"{self._own}run_{piece.name}"
        self._namespace[runner] = artifact.call
        targets = f"({', '.join(piece.outputs)},) = " if piece.outputs else ""
        self._lines.append(f"    {targets}{runner}({', '.join(map(self._name, artifact.inputs))})")
        self._values = self._after(stretch)
        for name in stretch.held if self._goes_on else ():
            value = self._values[name]
            if name not in stretch.views:
                try:
                    value, graph = self._recordings.held(value)
                except BusyError:
                    self._goes_on = False
                    return
                self._owners.append(graph)
                value.copy_(self._values[name])
                self._values[name] = value
            self._static[name] = self._fixed(value)
            check = "same_place" if name in stretch.views else "hold"
            self._lines.append(f"    {self._own}{check}({self._name(name)}, {name}, {name!r})")
        gone = [name for name in self._plan.dead[place] if name not in self._static and name not in self._parameters]
        if gone or stretch.held:
            self._lines.append(f"    del {', '.join([*gone, *stretch.held])}")

    def _fixed(self, value: Any) -> Any:
        return without_owning(value, self._owners) if isinstance(value, torch.Tensor) else value

    def _name(self, name: str) -> str:
        """Return what the generated function calls a value."""
        if name not in self._static:
            return name
        self._namespace[f"{self._own}static_{name}"] = self._static[name]
        return f"{self._own}static_{name}"

    def _structure(self, structure: Any, of: Callable[[str], Any], constant: Any = _KEEP) -> Any:
        """Return the structure of the results with what a function says of each name."""
        if isinstance(structure, (tuple, list)):
            return tuple(self._structure(item, of, constant) for item in structure)
        if isinstance(structure, Ref):
            return of(structure.name)
        return structure if constant is _KEEP else constant


def _hold(place: torch.Tensor, value: torch.Tensor, name: str) -> None:
    """Copy what ran between two recordings to where the second reads it."""
    if value.shape != place.shape:
        raise FxbucketError(
            f"{name}: what gives it returned sizes {tuple(value.shape)} where its fake gave {tuple(place.shape)}; "
            f"mend the op's fake (torch.library.register_fake)."
        )
    place.copy_(value)


def _same_place(place: torch.Tensor, value: torch.Tensor, name: str) -> None:
    if value.data_ptr() != place.data_ptr() or value.shape != place.shape or value.stride() != place.stride():
        raise FxbucketError(
            f"{name}: a view that runs between two recordings lies elsewhere than when it was recorded; "
            f"use cudagraphs='full', or cut elsewhere."
        )
