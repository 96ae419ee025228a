"""Verify: metadata that a pass wrote by substitution equals metadata derived afresh by fake-tensor propagation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import sympy
import torch

from fxbucket.passes.captured import value_of
from fxbucket.passes.derive import derive
from fxbucket.passes.errors import PreconditionError, VerifyError
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Program
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, Number, expression_of, is_wrapper_subclass, substitute, symbols_in
from fxbucket.passes.tensors import is_autograd_leaf

_SHOWN = 8
"""How many differences an error lists."""


@dataclass(frozen=True)
class Difference:
    """One field of one value that two ways disagree on.

    Attributes:
        piece: the piece's name.
        node: the node's name.
        field: what differs: shape, stride, dtype and so on.
        written: what the pass wrote.
        derived: what propagation found.
    """

    piece: str
    node: str
    field: str
    written: object
    derived: object

    def __str__(self) -> str:
        return f"{self.piece}.{self.node}: {self.field} was written as {self.written}, but propagation gives {self.derived}"


def differences(written: Any, derived: Any, hints: Mapping[sympy.Symbol, Number]) -> Iterator[tuple[str, object, object]]:
    """Yield ``(field, written, derived)`` for each field that differs.

    Sizes that still depend on symbols are compared at their hints; a size that only the data decides is not compared.
    The stride of a dimension with fewer than two rows has no meaning and is not compared either.
    """
    if isinstance(written, torch.Tensor) and isinstance(derived, torch.Tensor):
        yield from _tensor_differences(written, derived, hints)
    elif isinstance(written, (tuple, list)) and isinstance(derived, (tuple, list)):
        if len(written) != len(derived):
            yield "length", len(written), len(derived)
        for index, (left, right) in enumerate(zip(written, derived, strict=False)):
            for field, one, other in differences(left, right, hints):
                yield f"[{index}].{field}", one, other
    elif isinstance(written, (int, float, *SYMBOLIC_TYPES)) and isinstance(derived, (int, float, *SYMBOLIC_TYPES)):
        one, other = _number(written, hints), _number(derived, hints)
        if one is not None and other is not None and one != other:
            yield "value", one, other


def _number(value: Any, hints: Mapping[sympy.Symbol, Number]) -> Number | None:
    found = substitute(expression_of(value), hints)
    return None if isinstance(found, sympy.Basic) else found


def _tensor_differences(
    written: torch.Tensor, derived: torch.Tensor, hints: Mapping[sympy.Symbol, Number]
) -> Iterator[tuple[str, object, object]]:
    for field in ("dtype", "device", "layout", "requires_grad"):
        one, other = getattr(written, field), getattr(derived, field)
        if one != other:
            yield field, one, other
    if is_autograd_leaf(written) != is_autograd_leaf(derived):
        yield "is_leaf", is_autograd_leaf(written), is_autograd_leaf(derived)
    shape, other_shape = ([_number(size, hints) for size in tensor.shape] for tensor in (written, derived))
    if len(shape) != len(other_shape) or any(
        one != other for one, other in zip(shape, other_shape, strict=True) if one is not None and other is not None
    ):
        yield "shape", tuple(shape), tuple(other_shape)
        return
    if written.layout is not torch.strided or is_wrapper_subclass(written):
        return
    if None in shape or 0 in shape:
        return
    strides, other_strides = ([_number(stride, hints) for stride in tensor.stride()] for tensor in (written, derived))
    if any(one != other for one, other, size in zip(strides, other_strides, shape, strict=True) if size != 1):
        yield "stride", tuple(strides), tuple(other_strides)
    offset, other_offset = _number(written.storage_offset(), hints), _number(derived.storage_offset(), hints)
    if offset != other_offset and offset is not None and other_offset is not None:
        yield "storage offset", offset, other_offset


@dataclass(frozen=True)
class Verify(BasePass):
    """Compare every node's written metadata with metadata derived afresh.

    Attributes:
        strict: raise :class:`VerifyError` on a difference; otherwise differences become findings.
    """

    strict: bool = True
    name: ClassVar[str] = "verify"

    def requires(self, program: Program) -> None:
        if not program.is_split:
            raise PreconditionError("verify: the program is not split; run Split first (Split() keeps one piece).")

    def run(self, program: Program) -> Program:
        found: list[Difference] = []
        findings: list[Finding] = []
        results = derive(program)
        hints = {**program.capture.hints, **program.hints, **program.binding}
        for piece, result in zip(program.pieces, results, strict=False):
            for node in piece.module.graph.nodes:
                values = result.at_start if node.op == "placeholder" else result.values
                if node.op == "output" or node.name not in values:
                    continue
                written = value_of(node)
                if written is None and isinstance(values[node.name], torch.Tensor) and symbols_in(values[node.name]):
                    findings.append(Finding(f"{piece.name}.{node.name}", "has no metadata to compare"))
                for field, one, other in differences(written, values[node.name], hints):
                    found.append(Difference(piece.name, node.name, field, one, other))
            if result.failure:
                findings.append(Finding(piece.name, f"could not be derived beyond {result.failure}"))
        if found and self.strict:
            listed = "\n  ".join(str(difference) for difference in found[:_SHOWN])
            more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise VerifyError(f"verify: {len(found)} values have other metadata than propagation derives:\n  {listed}{more}")
        findings += [Finding(f"{difference.piece}.{difference.node}", str(difference)) for difference in found]
        return program.with_findings(*findings)
