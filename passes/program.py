"""The values that flow from pass to pass: a program, its pieces and the trail of steps.

Everything here is frozen. The FX graphs that the values hold are mutable objects by torch's design, so passes copy a
graph before they change it; no pass ever writes to a graph that it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sympy
from torch import fx

from fxbucket.passes.buckets import Bucket, Range
from fxbucket.passes.captured import Axis, Capture
from fxbucket.passes.errors import nearest
from fxbucket.passes.symbolic import Expression, Number


@dataclass(frozen=True)
class CutReason:
    """Why a piece is a piece.

    Attributes:
        rule: which boundary made the cut, for example ``at_op('aten::sigmoid')``.
        node: the node at which it was made; empty for what is left between cuts.
        detail: a sentence for people.
    """

    rule: str
    node: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return self.detail or self.rule


@dataclass(frozen=True)
class Ref:
    """A value of the program by its name: a placeholder of the capture, or an output of an earlier piece."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Piece:
    """One stretch of the graph between cuts.

    Attributes:
        index: its place in the program; pieces run in this order.
        name: a Python identifier, unique in the program.
        module: its graph: one placeholder an input, and a tuple of outputs.
        inputs: the names of the program's values that it takes, in the order of its placeholders.
        outputs: the names of the values that it gives, in the order of its output tuple.
        reason: why it was cut out, or what is left between cuts.
        is_boundary: whether a boundary cut it out; such a piece runs as it is, uncompiled.
        is_trivial: whether it holds nothing to compile (views, allocations and size arithmetic alone), or what compilers
            do not take (a float that the data decides, a write to memory that two of its inputs share); it runs as it is.
        axes: every axis of the capture, so that a piece alone writes its sizes by their names.
    """

    index: int
    name: str
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reason: CutReason
    is_boundary: bool = False
    is_trivial: bool = False
    axes: tuple[Axis, ...] = ()

    @property
    def is_compiled(self) -> bool:
        """Whether the piece goes to the compiler."""
        return not (self.is_boundary or self.is_trivial)

    @property
    def body(self) -> tuple[fx.Node, ...]:
        """The nodes of the piece but for placeholders and the output."""
        return tuple(node for node in self.module.graph.nodes if node.op not in ("placeholder", "output"))

    def __str__(self) -> str:
        from fxbucket.passes.text import piece_text

        return piece_text(self)

    def _repr_html_(self) -> str:
        from fxbucket.passes.text import notebook_text

        return notebook_text(str(self))


@dataclass(frozen=True)
class SymbolUse:
    """One place in the arguments that carries symbols.

    Attributes:
        placeholder: the position of the argument.
        field: which number of the argument it is; ``"item"`` for a float that torch passes as a tensor of no dimensions.
        dim: the dimension for sizes and strides, else -1.
        expression: the number as an expression over symbols.
    """

    placeholder: int
    field: Literal["value", "item", "size", "stride", "offset"]
    dim: int
    expression: Expression


@dataclass(frozen=True)
class Decision:
    """Whether a bucket may be compiled for this capture.

    Attributes:
        bucket: what was asked for.
        admitted: whether every range and guard of the capture holds for it.
        reason: which condition it breaks, or an empty text.
    """

    bucket: Bucket
    admitted: bool
    reason: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that a pass wants a person to know.

    Attributes:
        where: a piece, a node, an axis or a bucket.
        text: one sentence.
    """

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, eq=False)
class Step:
    """What one pass did.

    Attributes:
        name: the pass's name.
        arguments: the pass as it prints.
        before: the program that went in.
        after: the program that came out, without this step.
        seconds: how long the pass ran.
        findings: what it noticed.
    """

    name: str
    arguments: str
    before: Program
    after: Program
    seconds: float
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        changed = "changed" if self.before != self.after else "unchanged"
        notes = "".join(f"\n    {finding}" for finding in self.findings)
        return f"{self.arguments}: {len(self.before.pieces)} → {len(self.after.pieces)} pieces, {changed}{notes}"


@dataclass(frozen=True, eq=False)
class Program:
    """The immutable value that passes take and give.

    Two programs are equal when their graphs read the same (structure, arguments, metadata), and axes, buckets and
    bindings are equal; the trail does not count.

    Attributes:
        capture: where it came from.
        pieces: what it is cut into, in the order in which they run.
        outputs: what a call returns: a nest of tuples, constants and :class:`Ref`; ``None`` before Split.
        uses: where the arguments carry symbols; empty before Discover.
        decisions: which buckets may be compiled; empty before Admit.
        bucket: the bucket that the pieces were made concrete for; ``None`` before Concretize.
        binding: symbol → number for that bucket.
        hints: the values at which the symbols that are still open are tried, where not those of the capture.
        bounds: the ranges of symbols that the bucket leaves open but bounds, where they are narrower than the capture's.
        assumed: what else holds of the bucket's open symbols, beside the capture's guards.
        same: each repeated piece → the first piece that is equal to it up to names; empty before Deduplicate.
        findings: what the last pass noticed; the pipeline moves them into the trail.
        trail: every step that made the program.
    """

    capture: Capture
    pieces: tuple[Piece, ...] = ()
    outputs: Any = None
    uses: tuple[SymbolUse, ...] = ()
    decisions: tuple[Decision, ...] = ()
    bucket: Bucket | None = None
    binding: Mapping[sympy.Symbol, Number] = field(default_factory=dict)
    hints: Mapping[sympy.Symbol, Number] = field(default_factory=dict)
    bounds: Mapping[sympy.Symbol, Range] = field(default_factory=dict)
    assumed: tuple[sympy.Basic, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    trail: tuple[Step, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis of the capture."""
        return self.capture.axes

    @property
    def ranges(self) -> dict[sympy.Symbol, Range]:
        """The inclusive range of each symbol for which the program is valid."""
        return {**self.capture.ranges, **self.bounds}

    def range_of(self, axis: Axis) -> Range:
        """Return the inclusive sizes of an axis for which the program is valid."""
        return axis.range if axis.symbol is None else self.bounds.get(axis.symbol, axis.range)

    @property
    def conditions(self) -> tuple[sympy.Basic, ...]:
        """What holds of symbols wherever the program is valid: the capture's guards, and what the bucket assumes."""
        return (*(guard.condition for guard in self.capture.guards), *self.assumed)

    @property
    def is_split(self) -> bool:
        """Whether Split has run; a graph that only hands its arguments back has no piece even then."""
        return self.outputs is not None

    @property
    def open_symbols(self) -> tuple[sympy.Symbol, ...]:
        """The capture's symbols that have no number in this program."""
        return tuple(symbol for symbol in self.capture.hints if symbol not in self.binding)

    def piece(self, name: str) -> Piece:
        """Return the piece with this name.

        Raises:
            KeyError: there is no such piece; the message lists the names.
        """
        for piece in self.pieces:
            if piece.name == name:
                return piece
        raise KeyError(f"no piece {name!r}; {nearest(name, [piece.name for piece in self.pieces])}")

    def with_findings(self, *findings: Finding) -> Program:
        """Return the program with more findings for the trail."""
        return replace(self, findings=(*self.findings, *findings))

    def __str__(self) -> str:
        from fxbucket.passes.text import program_text

        return program_text(self)

    def _repr_html_(self) -> str:
        from fxbucket.passes.text import notebook_text

        return notebook_text(str(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        if self is other:
            return True
        mine = (
            self.axes,
            self.capture.guards,
            self.uses,
            self.decisions,
            self.bucket,
            dict(self.binding),
            dict(self.bounds),
            self.assumed,
            self.outputs,
        )
        theirs = (
            other.axes, other.capture.guards, other.uses, other.decisions, other.bucket, dict(other.binding),
            dict(other.bounds), other.assumed, other.outputs,
        )  # fmt: skip
        return mine == theirs and str(self) == str(other)

    def __hash__(self) -> int:
        return hash((self.axes, self.bucket, self.outputs if isinstance(self.outputs, tuple) else ()))


def last_uses(program: Program) -> dict[str, int]:
    """Return the place of the last piece that touches each value, but for values that the call returns."""
    returned = set(refs_in(program.outputs))
    pieces = enumerate(program.pieces)
    return {name: place for place, piece in pieces for name in (*piece.inputs, *piece.outputs) if name not in returned}


def refs_in(structure: object) -> Iterator[str]:
    """Yield the names of the values that a program's output structure refers to, left to right."""
    if isinstance(structure, Ref):
        yield structure.name
    elif isinstance(structure, Mapping):
        for item in structure.values():
            yield from refs_in(item)
    elif isinstance(structure, (tuple, list)):
        for item in structure:
            yield from refs_in(item)
    elif isinstance(structure, slice):
        yield from refs_in((structure.start, structure.stop, structure.step))
