"""Which pieces of a concrete program are recorded together as one CUDA graph, and what runs between the recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from fxbucket.passes.aliasing import storage_of
from fxbucket.passes.captured import tensors_in, value_of
from fxbucket.passes.program import Piece, Program, last_uses, refs_in
from fxbucket.passes.recordable import reasons_to_run
from fxbucket.passes.symbolic import SYMBOLIC_TYPES


@dataclass(frozen=True)
class Stretch:
    """Consecutive pieces that are recorded as one graph, or one piece that runs at each call.

    Attributes:
        pieces: their places in the program.
        is_recorded: whether they are recorded.
        reason: why not.
        held: the values that a piece which runs gives to a recording later, so that they are copied to where it reads them;
            and those that it returns from memory which stays.
        views: those among them that are views of memory which stays, so that they lie at the same place at each call.
    """

    pieces: tuple[int, ...]
    is_recorded: bool
    reason: str = ""
    held: tuple[str, ...] = ()
    views: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordingPlan:
    """How a bucket is recorded.

    Attributes:
        stretches: in the order in which they run.
        dead: for each piece, the values that nothing needs after it.
        read: the names of the arguments that recordings read.
    """

    stretches: tuple[Stretch, ...]
    dead: tuple[tuple[str, ...], ...]
    read: frozenset[str]

    @property
    def num_recorded(self) -> int:
        """How many graphs there are to be recorded."""
        return sum(stretch.is_recorded for stretch in self.stretches)

    @property
    def left_out(self) -> dict[str, int]:
        """Why pieces that are no boundaries run at each call, and how many of them."""
        found: dict[str, int] = {}
        for stretch in self.stretches:
            if not stretch.is_recorded and stretch.reason not in ("it is a boundary", _NOTHING):
                found[stretch.reason] = found.get(stretch.reason, 0) + 1
        return found


_NOTHING = "it holds nothing to compile"


def plan_whole(program: Program) -> RecordingPlan:
    """Return the plan that records a whole program as one graph, boundaries too.

    Args:
        program: made concrete.
    """
    places = tuple(range(len(program.pieces)))
    return _plan(program, (Stretch(places, True),) if places else ())


def plan_pieces(program: Program, device: torch.device, avoided: Mapping[str, str] | None = None) -> RecordingPlan:
    """Return the plan that records what lies between boundaries, as far as it can be recorded.

    Args:
        program: made concrete.
        device: where the recordings run; what holds tensors elsewhere is left out.
        avoided: pieces that must not be recorded, by name, and why.
    """
    reasons: dict[int, str] = {}
    for piece in program.pieces:
        if found := (avoided or {}).get(piece.name) or "; ".join(reasons_to_run(piece, device)):
            reasons[piece.index] = found
    _drop_empty(program.pieces, reasons)
    values = _values(program)
    while unsafe := _unsafe(program, reasons, values):
        # What such a piece gives is no longer where recordings read it, so others may follow.
        reasons |= unsafe
        _drop_empty(program.pieces, reasons)
    return _plan(program, tuple(_stretches(program, reasons, values)))


def _drop_empty(pieces: Sequence[Piece], reasons: dict[int, str]) -> None:
    """Leave out runs of pieces that launch no kernel of their own: a recording of nothing costs a launch."""
    for run in _runs(pieces, reasons):
        if not any(pieces[place].is_compiled for place in run):
            reasons |= dict.fromkeys(run, _NOTHING)


def _runs(pieces: Sequence[Piece], reasons: Mapping[int, str]) -> Iterator[list[int]]:
    run: list[int] = []
    for piece in pieces:
        if piece.index not in reasons:
            run.append(piece.index)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _values(program: Program) -> dict[str, object]:
    """Return the example value of each value of the program, by its name, as the capture saw it.

    Not as pieces hold it: equal pieces share one graph, and so would values that share nothing.
    """
    return {node.name: value_of(node) for node in program.capture.module.graph.nodes if node.op != "output"}


def _memory(value: object) -> set[int]:
    return {storage_of(tensor) for tensor in tensors_in(value)}


def _staying(program: Program, reasons: Mapping[int, str], values: Mapping[str, object]) -> tuple[set[int], set[str]]:
    """Return the storages that lie at one place at every call, and the names of the values that recordings give."""
    arguments = {placeholder.name for placeholder in program.capture.placeholders}
    recorded = [piece for piece in program.pieces if piece.index not in reasons]
    names = {name for piece in recorded for name in (*piece.outputs, *(set(piece.inputs) & arguments))}
    return {memory for name in names for memory in _memory(values.get(name))}, names


def _unsafe(program: Program, reasons: Mapping[int, str], values: Mapping[str, object]) -> dict[int, str]:
    """Return the pieces that would read memory of which a copy could be told from the original, and why."""
    staying, names = _staying(program, reasons, values)
    giver = {name: piece for piece in program.pieces for name in piece.outputs}
    arguments = {placeholder.name for placeholder in program.capture.placeholders}
    fresh: dict[int, set[str]] = {}
    for name, value in values.items():
        if name in giver and giver[name].index in reasons:
            for place in _memory(value) - staying:
                fresh.setdefault(place, set()).add(name)
    given = {memory for name in arguments for memory in _memory(values.get(name))}
    unsafe: dict[int, str] = {}
    for piece in program.pieces:
        if piece.index in reasons:
            continue
        for name in piece.inputs:
            if name in names or name in arguments:
                continue
            value = values.get(name)
            if not isinstance(value, torch.Tensor):
                # A number that the data decides would still be a symbol here.
                if not isinstance(value, (int, float, bool, *SYMBOLIC_TYPES)):
                    unsafe[piece.index] = f"it takes {name}, which is no tensor, from what is not recorded"
                continue
            memory = _memory(value) - staying
            if any(len(fresh.get(place, ())) > 1 or place in given for place in memory):
                unsafe[piece.index] = f"it takes {name}, which shares memory with what is not recorded"
    return unsafe


def _stretches(program: Program, reasons: Mapping[int, str], values: Mapping[str, object]) -> Iterator[Stretch]:
    staying, _ = _staying(program, reasons, values)
    wanted = {name for piece in program.pieces if piece.index not in reasons for name in piece.inputs}
    returned = set(refs_in(program.outputs))
    started: list[int] = []
    for piece in program.pieces:
        if piece.index not in reasons:
            started.append(piece.index)
            continue
        if started:
            yield Stretch(tuple(started), True)
            started = []
        tensors = [name for name in piece.outputs if isinstance(values.get(name), torch.Tensor)]
        views = [name for name in tensors if not _memory(values[name]).isdisjoint(staying)]
        # A returned view of memory that stays must be known as such, or nobody would copy it for the caller.
        held = [name for name in tensors if name in wanted or (name in returned and name in views)]
        views = [name for name in views if name in held]
        yield Stretch((piece.index,), False, reasons[piece.index], tuple(held), tuple(views))
    if started:
        yield Stretch(tuple(started), True)


def _plan(program: Program, stretches: tuple[Stretch, ...]) -> RecordingPlan:
    dead: list[list[str]] = [[] for _ in program.pieces]
    for name, place in last_uses(program).items():
        dead[place].append(name)
    arguments = {placeholder.name for placeholder in program.capture.placeholders}
    recorded = {place for stretch in stretches if stretch.is_recorded for place in stretch.pieces}
    read = {name for place in recorded for name in program.pieces[place].inputs if name in arguments}
    return RecordingPlan(stretches, tuple(map(tuple, dead)), frozenset(read))
