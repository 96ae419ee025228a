"""What was captured, cut, compiled and served: plain data that prints as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from fxbucket.lookup import sizes_text
from fxbucket.passes.program import Program
from fxbucket.passes.text import condition_text
from fxbucket.profile import Profile
from fxbucket.suggest import Suggestion, suggest_sizes

if TYPE_CHECKING:
    from fxbucket.dispatch import Dispatcher
    from fxbucket.entry import Entry


@dataclass(frozen=True)
class PieceFacts:
    """One piece: its name, why it was cut, whether it is compiled, and how many nodes it holds."""

    name: str
    reason: str
    kind: str
    num_nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class AxisFacts:
    """One axis: its name, the expressions that read it, torch's symbol, and the range for which the capture is valid."""

    name: str
    expressions: tuple[str, ...]
    symbol: str
    range: str
    named: bool


@dataclass(frozen=True)
class ArtifactFacts:
    """One piece in one bucket: where what runs it came from, seconds of its compilation, and the generated code.

    ``note`` says why it was not stored or made by a worker, where something kept it from that.
    """

    name: str
    origin: str
    seconds: float
    code: str
    note: str = ""


@dataclass(frozen=True)
class BucketFacts:
    """One bucket: what became of it, why, its own conditions, seconds of compilation and calls served.

    ``padded`` counts those of the calls that were padded up to it; ``recording`` says whether it is recorded as a CUDA
    graph, or why not, where that was asked for.
    ``program`` and ``artifacts`` are there once it is compiled.
    """

    bucket: str
    state: str
    reason: str
    conditions: tuple[str, ...]
    seconds: float
    calls: int
    padded: int = 0
    recording: str = ""
    program: Program | None = field(default=None, repr=False, compare=False)
    artifacts: tuple[ArtifactFacts, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class GraphFacts:
    """One captured graph; ``program`` is cut and with its decisions, symbolic.

    ``coverage`` says where ranges overlap and which sizes between them no bucket serves; ``sizes_seen`` how often each size
    of an axis was called, by the axis's name; ``suggested`` is what :func:`fxbucket.suggest_sizes` says of these, where some
    call was not of a pinned size; ``unpadded`` why calls were not padded though that was asked for.
    """

    pieces: tuple[PieceFacts, ...]
    axes: tuple[AxisFacts, ...]
    guards: tuple[str, ...]
    buckets: tuple[BucketFacts, ...]
    coverage: tuple[str, ...]
    unpadded: tuple[str, ...]
    misses: Mapping[str, int]
    sizes_seen: Mapping[str, Mapping[int, int]]
    suggested: Mapping[str, Suggestion]
    eager_calls: int
    refusal: str
    source: str
    bucket_sources: Mapping[str, str]
    program: Program = field(repr=False, compare=False)


@dataclass(frozen=True)
class Explanation:
    """What a compiled model did so far; ``print`` shows tables.

    Attributes:
        graphs: one for each captured graph, in order.
        profile: what was recorded while ``compiled.profile()`` was open the last time; ``None`` where it never was.
        recorded_bytes: bytes of device memory that CUDA graphs hold: their pool, and the buffers of arguments.
    """

    graphs: tuple[GraphFacts, ...]
    profile: Profile | None = None
    recorded_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of compilation in all."""
        return sum(bucket.seconds for graph in self.graphs for bucket in graph.buckets)

    def calls(self) -> dict[str, int]:
        """Return how many calls each bucket served, over all graphs."""
        found: dict[str, int] = {}
        for graph in self.graphs:
            for bucket in graph.buckets:
                found[bucket.bucket] = found.get(bucket.bucket, 0) + bucket.calls
        return found

    def data(self) -> dict[str, Any]:
        """Return all of it as plain data, ready for JSON, but for programs and generated code."""
        found: dict[str, Any] = _plain(self)
        return found

    def __str__(self) -> str:
        from fxbucket.tables import explanation_text

        return explanation_text(self)

    def _repr_html_(self) -> str:
        from fxbucket.tables import explanation_html

        return explanation_html(self)


def _plain(value: Any) -> Any:
    if isinstance(value, Suggestion):
        return value.data()
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value) if item.name not in _NOT_PLAIN}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


_NOT_PLAIN = frozenset({"program", "code"})


def explain(dispatchers: Sequence[Dispatcher], profile: Profile | None = None, pool_bytes: int = 0) -> Explanation:
    """Return what these graphs did so far; ``pool_bytes`` is what their recordings share."""
    buffers = sum(dispatcher.graphs.num_bytes for dispatcher in dispatchers if dispatcher.graphs is not None)
    return Explanation(tuple(_graph(dispatcher) for dispatcher in dispatchers), profile, pool_bytes + buffers)


def _graph(dispatcher: Dispatcher) -> GraphFacts:
    program = dispatcher.program
    entries = [*dispatcher.entries, *dispatcher.dynamic]
    buckets = [_bucket(entry, program.axes) for entry in entries]
    buckets += [
        BucketFacts(str(decision.bucket), "refused", decision.reason, (), 0.0, 0)
        for decision in program.decisions
        if not decision.admitted
    ]
    misses, seen = _misses(dispatcher), _sizes_seen(dispatcher)
    return GraphFacts(
        pieces=tuple(
            PieceFacts(
                piece.name,
                str(piece.reason),
                "boundary" if piece.is_boundary else "trivial" if piece.is_trivial else "compiled",
                len(piece.body),
                piece.inputs,
                piece.outputs,
            )
            for piece in program.pieces
        ),
        axes=tuple(
            AxisFacts(axis.name, axis.expressions, str(axis.expression), str(axis.range), axis.named)
            for axis in program.axes
        ),
        guards=tuple(
            condition_text(guard.condition, program.axes) + (f"  ({guard.origin})" if guard.origin else "")
            for guard in program.capture.guards
        ),
        buckets=tuple(buckets),
        coverage=dispatcher.coverage,
        unpadded=dispatcher.unpadded,
        misses=misses,
        sizes_seen=seen,
        suggested=_suggested(seen, bool(misses)),
        eager_calls=dispatcher.eager_calls,
        refusal=program.capture.refusal,
        source=dispatcher.emitted.source,
        bucket_sources={str(entry.bucket): entry.emitted.source for entry in entries if entry.emitted is not None},
        program=program,
    )


def _misses(dispatcher: Dispatcher) -> dict[str, int]:
    """Return how often no bucket was for a combination of sizes, padded or not, by the axes' names."""
    found = dispatcher.missed.copy()
    for entry in dispatcher.entries:
        found += entry.padded
    return {sizes_text(dict(sizes)): count for sizes, count in found.items()}


def _sizes_seen(dispatcher: Dispatcher) -> dict[str, dict[int, int]]:
    """Return how often each size of an axis was called, by the axis's name."""
    lookup = dispatcher.lookup
    calls = [(dict(sizes), count) for sizes, count in dispatcher.missed.copy().items()]
    calls += [(lookup.by_name(lookup.named(sizes)), count) for sizes, count in lookup.seen.copy().items()]
    for entry in dispatcher.entries:
        calls += [(dict(sizes), count) for sizes, count in entry.padded.copy().items()]
        if not entry.bucket.ranges:
            calls.append((entry.bucket.sizes, entry.calls))
    found: dict[str, dict[int, int]] = {}
    for sizes, count in calls:
        for name, size in sizes.items():
            if isinstance(size, int) and count:
                known = found.setdefault(name, {})
                known[size] = known.get(size, 0) + count
    return found


def _suggested(seen: Mapping[str, Mapping[int, int]], is_missed: bool) -> dict[str, Suggestion]:
    """Return sizes to pin for each axis, from the calls so far; sizes 0 and 1 are captured on their own."""
    if not is_missed:
        return {}
    histograms = {name: {size: count for size, count in sizes.items() if size > 1} for name, sizes in seen.items()}
    return {name: suggest_sizes(sizes) for name, sizes in histograms.items() if sizes}


def _bucket(entry: Entry, axes: Sequence[object]) -> BucketFacts:
    state = "waiting" if entry.emitted is None else "as captured" if entry.note else "compiled"
    conditions = tuple(condition_text(condition, axes) for condition in entry.conditions)  # type: ignore[arg-type]
    artifacts = tuple(
        ArtifactFacts(artifact.piece, artifact.origin, artifact.seconds, artifact.code, artifact.note)
        for artifact in entry.artifacts
    )
    return BucketFacts(
        bucket=str(entry.bucket),
        state=state,
        reason=entry.note,
        conditions=conditions,
        seconds=entry.seconds,
        calls=entry.counter[0],
        padded=entry.padded.total(),
        recording=entry.recording(),
        program=entry.program,
        artifacts=artifacts,
    )
