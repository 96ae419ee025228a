"""RowSafety: is padding along an axis provably harmless?

A bucket compiled for larger sizes can serve a call whose arguments are padded up to them, if nothing in the padding ever
reaches a real element. This is proved op by op: each keeps the invariant that along every padded dim the real elements are
those that come first, and that they are what the call alone would compute. What cannot be proved is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import sympy
from torch import fx

from fxbucket.passes.captured import Capture, python_spelling
from fxbucket.passes.errors import AxisError, OptionError, nearest
from fxbucket.passes.lowering import Lowered, lower, values_in
from fxbucket.passes.opnames import graph_op_names, names_of_callable, op_names, spellings_of
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Program
from fxbucket.passes.row_facts import Rows, Scalar
from fxbucket.passes.row_walk import Leak as Leak
from fxbucket.passes.row_walk import Walk, line_of
from fxbucket.passes.symbolic import symbols_in
from fxbucket.passes.text import axis_namer


@dataclass(frozen=True)
class RowProof:
    """Whether padding along some symbols is harmless.

    Attributes:
        symbols: the padded symbols.
        leaks: where padding could reach an output or an effect, in the order of the graph; empty where it cannot.
    """

    symbols: frozenset[sympy.Symbol]
    leaks: tuple[Leak, ...] = ()

    @property
    def is_safe(self) -> bool:
        """Whether it is proved that padding never reaches a real element."""
        return not self.leaks

    def __str__(self) -> str:
        if self.is_safe:
            return "padding is harmless"
        return "padding could reach real rows:\n" + "\n".join(f"  {leak}" for leak in self.leaks)


Missing = Literal["error", "ignore"]


def _trusted(
    capture: Capture, lowered: Lowered, row_safe_ops: Sequence[Any], missing: Missing
) -> tuple[frozenset[fx.Node], frozenset[str]]:
    nodes = [node for node in capture.module.graph.nodes if node.op.startswith("call_")]
    lowered_names = frozenset().union(*(names_of_callable(call.target) for call in lowered.calls))
    trusted: set[fx.Node] = set()
    names: set[str] = set()
    for target in row_safe_ops:
        if not isinstance(target, str) and not callable(target):
            raise OptionError(f"row_safe_ops: {target!r} is no op; give 'ns::op', a Python path, an overload or a function.")
        wanted = spellings_of(target)
        found = [node for node in nodes if node.target is target or not wanted.isdisjoint(op_names(node))]
        if missing == "error" and not found and wanted.isdisjoint(lowered_names):
            spelling = target if isinstance(target, str) else str(getattr(target, "__qualname__", None) or target)
            possible = graph_op_names(nodes) | {name for name in lowered_names if not name.endswith(".*")}
            raise OptionError(f"row_safe_ops: {spelling!r} is no op of the graph; {nearest(spelling, possible)}.")
        trusted.update(found)
        names |= wanted & lowered_names
    return frozenset(trusted), frozenset(names)


def prove_rows(
    program: Program,
    symbols: Iterable[sympy.Symbol],
    *,
    row_safe_ops: Sequence[Any] = (),
    fills: Mapping[int, Scalar] | None = None,
    missing: Missing = "error",
    lowered: Lowered | None = None,
) -> RowProof:
    """Return whether padding along symbols can reach a real element of an output or of an effect.

    Args:
        program: a captured program; whether it is split makes no difference.
        symbols: the symbols of the axes that are padded.
        row_safe_ops: ops of which the caller promises that each row they give depends on the same row of their arguments
            alone: ``"ns::op"``, a Python path such as ``"torch.nn.functional.scaled_dot_product_attention"``, an overload
            or a function.
        fills: for the position of an argument what its padding holds; without one it may hold anything.
        missing: what an op of ``row_safe_ops`` is that the graph does not hold.
        lowered: the program's ATen ops, where they are known already.

    Raises:
        AxisError: the capture has no such symbol.
        OptionError: an op of ``row_safe_ops`` is not in the graph, and that was to be an error.
    """
    padded = frozenset(symbols)
    capture = program.capture
    unknown = padded - capture.hints.keys()
    if unknown:
        wrong, known = min(map(str, unknown)), map(str, capture.hints)
        raise AxisError(f"{wrong} is no symbol of this capture; {nearest(wrong, known)}.")
    lowered = lowered or lower(program)
    trusted, names = _trusted(capture, lowered, row_safe_ops, missing)
    refusal = _refusal(lowered, program)
    if refusal is not None:
        return RowProof(padded, (refusal,))
    walk = Walk(Rows(padded, axis_namer(capture.axes), {}), trusted, names)
    walk.enter(lowered.inputs, fills or {}, [placeholder.name for placeholder in capture.placeholders])
    walk.enter(lowered.constants, {}, ())
    for call in lowered.calls:
        walk.visit(call)
    reported = walk.reported | walk.reaching(lowered.outputs)
    for output in values_in(lowered.outputs):
        reported |= walk.merged.get(output.key, frozenset())
    for number in lowered.outputs:
        if isinstance(number, sympy.Basic) and walk.rows.depends(number) and number.is_integer is not True:
            reported |= walk.number(Leak("output", "", "", f"the number {walk.rows.name(number)} is the bucket's"))
    return RowProof(padded, tuple(leak for position, leak in enumerate(walk.leaks) if position in reported))


def _refusal(lowered: Lowered, program: Program) -> Leak | None:
    node = lowered.failed_at
    name, line = (node.name, line_of(node)) if node is not None else ("", "")
    if lowered.failure:
        return Leak(name, "", line, f"its ATen ops are not known: {lowered.failure}")
    if lowered.replaced:
        return Leak("", "", "", "its ATen ops were found for one size of an axis alone")
    if lowered.assumed:
        written = axis_namer(program.axes)(lowered.assumed[0])
        return Leak("", "", "", f"its ATen ops are these only where {written}, which the capture does not promise")
    return None


@dataclass(frozen=True)
class RowSafety(BasePass):
    """Tell in the trail whether padding along axes is harmless, and where it is not.

    Attributes:
        axes: names or expressions of the axes that are padded together.
        row_safe_ops: ops of which the user promises that each row depends on its own row alone.
        fills: what the padding of an argument holds, by the argument's name in the graph or its Python expression.
    """

    axes: tuple[str, ...]
    row_safe_ops: tuple[Any, ...] = ()
    fills: Mapping[str, Scalar] = field(default_factory=dict)
    name: ClassVar[str] = "row_safety"

    def run(self, program: Program) -> Program:
        symbols = frozenset().union(
            *(symbols_in((axis.expression, *axis.equal)) for axis in map(program.capture.axis, self.axes))
        )
        proof = prove_rows(program, symbols, row_safe_ops=self.row_safe_ops, fills=positions_of(program.capture, self.fills))
        along = ", ".join(self.axes)
        if proof.is_safe:
            return program.with_findings(Finding(along, f"padding along {along} is harmless"))
        return program.with_findings(*(Finding(leak.node or along, str(leak)) for leak in proof.leaks))


def positions_of(capture: Capture, fills: Mapping[str, Scalar]) -> dict[int, Scalar]:
    """Return the positions of the arguments that fills name.

    Raises:
        OptionError: there is no such argument.
    """
    spellings = {
        spelling: placeholder.index
        for placeholder in capture.placeholders
        for spelling in (placeholder.name, python_spelling(placeholder.source))
    }
    for name in fills:
        if name not in spellings:
            raise OptionError(f"fills: {name!r} is no argument of the graph; {nearest(name, spellings)}.")
    return {spellings[name]: fill for name, fill in fills.items()}
