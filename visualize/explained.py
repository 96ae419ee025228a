"""What a report is made of: an explanation of a compiled model, seen through its attributes alone, or one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from fxbucket.passes.errors import OptionError
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.text import condition_text


class PieceFacts(Protocol):
    """One piece of a captured graph."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def num_nodes(self) -> int: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102


class AxisFacts(Protocol):
    """One axis of a captured graph."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def expressions(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def symbol(self) -> str: ...  # noqa: D102
    @property
    def range(self) -> str: ...  # noqa: D102


class ArtifactFacts(Protocol):
    """One piece compiled for one bucket."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def origin(self) -> str: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def code(self) -> str: ...  # noqa: D102


class BucketFacts(Protocol):
    """One bucket of a captured graph."""

    @property
    def bucket(self) -> str: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102
    @property
    def conditions(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def calls(self) -> int: ...  # noqa: D102
    @property
    def program(self) -> Program | None: ...  # noqa: D102
    @property
    def artifacts(self) -> Sequence[ArtifactFacts]: ...  # noqa: D102


class GraphFacts(Protocol):
    """One captured graph."""

    @property
    def pieces(self) -> Sequence[PieceFacts]: ...  # noqa: D102
    @property
    def axes(self) -> Sequence[AxisFacts]: ...  # noqa: D102
    @property
    def guards(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def buckets(self) -> Sequence[BucketFacts]: ...  # noqa: D102
    @property
    def misses(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def eager_calls(self) -> int: ...  # noqa: D102
    @property
    def refusal(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def bucket_sources(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def program(self) -> Program: ...  # noqa: D102


class CallRecord(Protocol):
    """One recorded call of one captured graph; times in seconds."""

    @property
    def start(self) -> float: ...  # noqa: D102
    @property
    def graph(self) -> int: ...  # noqa: D102
    @property
    def bucket(self) -> str: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def pieces(self) -> Mapping[str, float]: ...  # noqa: D102


@dataclass(frozen=True)
class Explained:
    """What a report shows.

    Attributes:
        graphs: every captured graph, in order.
        calls: the calls that were recorded; ``None`` where no profile was taken.
        is_model: whether it is of a compiled model, and not of a program alone.
    """

    graphs: tuple[GraphFacts, ...]
    calls: tuple[CallRecord, ...] | None
    is_model: bool


def explained(subject: object) -> Explained:
    """Return what a report of the subject shows.

    Raises:
        OptionError: the subject is neither a program nor explains itself.
    """
    if isinstance(subject, Program):
        return Explained((_ProgramFacts(subject),), None, is_model=False)
    explain = getattr(subject, "explain", None)
    found: Any = explain() if callable(explain) and not isinstance(subject, type) else subject
    graphs = getattr(found, "graphs", None)
    if not isinstance(graphs, tuple) or not all(hasattr(graph, "program") for graph in graphs):
        raise OptionError(
            f"there is no report of a {type(subject).__name__}; give what fxbucket.compile or fxbucket.backend returns, its "
            f"explain(), or a Program (fxbucket.capture makes one)."
        )
    profile = getattr(found, "profile", None)
    return Explained(graphs, None if profile is None else tuple(profile.calls), is_model=True)


@dataclass(frozen=True)
class _Piece:
    name: str
    kind: str
    num_nodes: int
    reason: str


@dataclass(frozen=True)
class _Axis:
    name: str
    expressions: tuple[str, ...]
    symbol: str
    range: str


@dataclass(frozen=True)
class _Bucket:
    bucket: str
    state: str
    reason: str
    conditions: tuple[str, ...] = ()
    seconds: float = 0.0
    calls: int = 0
    program: Program | None = None
    artifacts: tuple[ArtifactFacts, ...] = ()


@dataclass(frozen=True)
class _ProgramFacts:
    """What a program alone says of itself; nothing of it was compiled or called."""

    program: Program
    misses: Mapping[str, int] = field(default_factory=dict)
    eager_calls: int = 0
    source: str = ""
    bucket_sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def refusal(self) -> str:
        return self.program.capture.refusal

    @property
    def pieces(self) -> tuple[PieceFacts, ...]:
        return tuple(_Piece(piece.name, kind_of(piece), len(piece.body), str(piece.reason)) for piece in self.program.pieces)

    @property
    def axes(self) -> tuple[AxisFacts, ...]:
        return tuple(_Axis(axis.name, axis.expressions, str(axis.expression), str(axis.range)) for axis in self.program.axes)

    @property
    def guards(self) -> tuple[str, ...]:
        return tuple(
            condition_text(guard.condition, self.program.axes) + (f"  ({guard.origin})" if guard.origin else "")
            for guard in self.program.capture.guards
        )

    @property
    def buckets(self) -> tuple[BucketFacts, ...]:
        found = (
            _Bucket(str(decision.bucket), "admitted" if decision.admitted else "refused", decision.reason)
            for decision in self.program.decisions
        )
        return cast("tuple[BucketFacts, ...]", tuple(found))


def kind_of(piece: Piece) -> str:
    """Return ``"boundary"``, ``"trivial"`` or ``"compiled"``."""
    return "boundary" if piece.is_boundary else "trivial" if piece.is_trivial else "compiled"
