"""What the rules of padding are asked and what they answer.

A tensor with *padded dims* (those whose size depends on a padded symbol) holds its real elements in the block that begins
at index 0 of each of them; everything else of it is *padding*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy
import torch

from fxbucket.passes.lowering import AtenCall, TensorValue
from fxbucket.passes.symbolic import Expression, symbols_in
from fxbucket.passes.text import Namer

Scalar: TypeAlias = int | float | bool
Factors: TypeAlias = tuple[Expression, ...]
"""The sizes of the dims that one dim holds, outermost first; the real elements of each are those that come first."""
Layout: TypeAlias = tuple[Factors, ...]
"""For each dim of a tensor, what it holds."""


@dataclass(frozen=True)
class Contents:
    """What is known of a tensor's elements; ``None`` where nothing is.

    Attributes:
        padding: every element of the padding is this number.
        everywhere: every element of the whole tensor is this number.
        below: every real element is an int of at least 0, and below this size.
    """

    padding: Scalar | None = None
    everywhere: Scalar | None = None
    below: Expression | None = None

    @staticmethod
    def all(value: object, dtype: torch.dtype) -> Contents:
        """Return what is known of a tensor of this dtype that holds one number."""
        scalar = as_scalar(value, dtype)
        is_index = isinstance(scalar, int) and not isinstance(scalar, bool) and scalar >= 0
        return Contents(scalar, scalar, scalar + 1 if is_index and scalar is not None else None)


UNKNOWN = Contents()


def as_scalar(value: object, dtype: torch.dtype) -> Scalar | None:
    """Return a number as a tensor of this dtype holds it; ``None`` for what is no number, and for NaN."""
    if not isinstance(value, (int, float)) or dtype.is_complex:
        return None
    try:
        held: Scalar = torch.tensor(value, dtype=dtype).item()
    except (RuntimeError, OverflowError, NotImplementedError, TypeError):
        return None
    return None if isinstance(held, float) and math.isnan(held) else held


@dataclass(frozen=True)
class Verdict:
    """What a rule says of one call.

    Attributes:
        reason: how padding could reach real elements, or an empty text where it cannot.
        contents: what is known of each output; outputs beyond its end are unknown.
        reasons: the same as ``reason`` for single outputs, by position among the output tensors.
        narrowed: positions of outputs that are views whose padding is not padding of the memory that they look at, so
            that a write to them would reach real elements.
        layout: what the dims of the first output hold, where one of them holds several.
        merges: the text for that, where this very call made one dim of several.
    """

    reason: str = ""
    contents: tuple[Contents, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)
    narrowed: frozenset[int] = frozenset()
    layout: Layout | None = None
    merges: str = ""


def unsafe(reason: str) -> Verdict:
    """Return the verdict that padding could reach real elements."""
    return Verdict(reason)


def safe(*contents: Contents, narrowed: bool = False) -> Verdict:
    """Return the verdict that it cannot."""
    return Verdict(contents=contents, narrowed=frozenset({0}) if narrowed else frozenset())


@dataclass(frozen=True, eq=False)
class Rows:
    """What is known while a graph is walked.

    Attributes:
        symbols: the padded symbols.
        name: writes a size by the names of its axes.
        known: what is known of tensors' elements, by their keys.
        layouts: the layouts of those tensors that have a dim which holds several, by their keys.
    """

    symbols: frozenset[sympy.Symbol]
    name: Namer
    known: dict[int, Contents]
    layouts: dict[int, Layout] = field(default_factory=dict)

    def layout(self, value: TensorValue) -> Layout:
        """Return what the dims of a tensor hold: mostly themselves."""
        return self.layouts.get(value.key) or tuple((size,) for size in value.shape)

    def depends(self, number: object) -> bool:
        """Whether a number, or any number in a nest of them, is another one for the bucket than for the call."""
        if isinstance(number, (tuple, list)):
            return any(self.depends(item) for item in number)
        return isinstance(number, sympy.Basic) and not self.symbols.isdisjoint(symbols_in(number))

    def padded(self, value: TensorValue) -> tuple[int, ...]:
        """Return the padded dims of a tensor."""
        return tuple(dim for dim, size in enumerate(value.shape) if self.depends(size))

    def padded_of(self, value: TensorValue, dims: Iterable[int]) -> tuple[int, ...]:
        """Return those of ``dims``, negative ones too, that are padded."""
        rank = max(len(value.shape), 1)
        wanted = {dim % rank for dim in dims}
        return tuple(dim for dim in self.padded(value) if dim in wanted)

    def of(self, value: TensorValue) -> Contents:
        """Return what is known of a tensor's elements."""
        return self.known.get(value.key, UNKNOWN)

    def padding(self, value: TensorValue) -> Scalar | None:
        """Return the number that a tensor's padding holds, if it is known to hold one."""
        contents = self.of(value)
        return contents.everywhere if contents.padding is None else contents.padding

    def axis(self, value: TensorValue, dims: Iterable[int]) -> str:
        """Return a text for padded dims: ``dim 0 (2*tokens)``."""
        return " and ".join(f"dim {dim} ({self.name(value.shape[dim])})" for dim in dims)


Judge = Callable[[AtenCall, Rows], Verdict]


@dataclass(frozen=True)
class Rule:
    """What is known of an op.

    Attributes:
        judge: tells whether a call is safe.
        sizes: the arguments that are sizes of what the op gives, or ends of what it reads, so that the bucket's number in
            them is right. In any other argument a number that depends on padded symbols is a wrong value.
    """

    judge: Judge
    sizes: frozenset[str] = frozenset()


class RuleBook(dict[str, Rule]):
    """Rules by the names of ops, without overloads."""

    def rule(self, *names: str, sizes: Iterable[str] = ()) -> Callable[[Judge], Judge]:
        """Register a function as the rule of these ops of aten."""

        def register(judge: Judge) -> Judge:
            for name in names:
                assert f"aten::{name}" not in self
                self[f"aten::{name}"] = Rule(judge, frozenset(sizes))
            return judge

        return register


def dims_of(call: AtenCall, value: TensorValue, argument: str = "dim") -> tuple[int, ...]:
    """Return the dims that an argument names; all of the tensor's where it names none."""
    given = call.arguments.get(argument)
    if given is None or given == ():
        return tuple(range(len(value.shape)))
    dims = given if isinstance(given, tuple) else (given,)
    return tuple(dim % max(len(value.shape), 1) for dim in dims)


def same_size(left: Expression, right: Expression) -> bool:
    """Whether two sizes are equal for all values of their symbols."""
    return left == right or sympy.expand(sympy.sympify(left) - sympy.sympify(right)) == 0


def is_nonnegative(number: object) -> bool:
    """Whether a number is surely not below 0."""
    if isinstance(number, sympy.Basic):
        return number.is_nonnegative is True
    return isinstance(number, int) and number >= 0


_INCREASING = frozenset({"Max", "Min", "floor", "ceiling", "ToFloat", "TruncToInt", "CeilToInt", "FloorToInt", "RoundToInt"})
_QUOTIENTS = frozenset({"FloorDiv", "CleanDiv", "IntTrueDiv", "FloatTrueDiv"})


def grows(size: Expression, symbols: frozenset[sympy.Symbol]) -> bool:
    """Whether a size surely never falls while any of these symbols grows.

    Where it might, what a bucket computes could be smaller than what the call needs.
    """
    if not isinstance(size, sympy.Basic) or symbols.isdisjoint(symbols_in(size)):
        return True
    if isinstance(size, sympy.Symbol):
        return True
    kind = type(size).__name__
    if isinstance(size, sympy.Add) or kind in _INCREASING:
        return all(grows(part, symbols) for part in size.args)
    if isinstance(size, sympy.Mul):
        growing = [part for part in size.args if not symbols.isdisjoint(symbols_in(part))]
        fixed = [part for part in size.args if symbols.isdisjoint(symbols_in(part))]
        if not all(part.is_nonnegative for part in fixed) or not all(grows(part, symbols) for part in growing):
            return False
        return len(growing) == 1 or all(part.is_nonnegative for part in growing)
    if isinstance(size, sympy.Pow):
        base, exponent = size.args
        return bool(isinstance(exponent, sympy.Integer) and exponent > 0 and base.is_nonnegative and grows(base, symbols))
    if kind in _QUOTIENTS:
        numerator, divisor = size.args
        return bool(symbols.isdisjoint(symbols_in(divisor)) and divisor.is_positive and grows(numerator, symbols))
    return False


def fitting(parts: Iterable[Contents]) -> Contents:
    """Return what is known of a tensor that holds the elements of several, padding beside padding."""
    found = list(parts)
    if not found:
        return UNKNOWN
    first = found[0]
    return Contents(
        first.padding if all(_same(part.padding, first.padding) for part in found) else None,
        first.everywhere if all(_same(part.everywhere, first.everywhere) for part in found) else None,
        first.below if all(_same_bound(part.below, first.below) for part in found) else None,
    )


def _same_bound(left: Expression | None, right: Expression | None) -> bool:
    return left is not None and right is not None and same_size(left, right)


def _same(left: Scalar | None, right: Scalar | None) -> bool:
    # 0.0 and -0.0 are equal, and not alike: their reciprocals differ.
    return left is not None and right is not None and left == right and math.copysign(1, left) == math.copysign(1, right)


def broadcast_dims(value: TensorValue, shape: tuple[Expression, ...]) -> Iterator[tuple[int, int]]:
    """Yield ``(dim of value, dim of shape)`` where a value is laid along a shape that it is broadcast to."""
    shift = len(shape) - len(value.shape)
    for dim in range(len(value.shape)):
        yield dim, dim + shift
