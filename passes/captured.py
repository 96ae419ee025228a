"""A capture: Dynamo's graph of a model with symbolic axes, and what Dynamo knows of its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sympy
import torch
from torch import fx

from fxbucket.passes.ambient import Ambient
from fxbucket.passes.buckets import Range
from fxbucket.passes.errors import AxisError, nearest
from fxbucket.passes.symbolic import Expression, Number

PlaceholderRole = Literal["symbol", "parameter", "buffer", "input"]


@dataclass(frozen=True)
class Axis:
    """A run-time size that varies.

    Attributes:
        name: the user's short name, or the first expression.
        expressions: the Python expressions that read it, for example ``"x.shape[0]"``; all are always equal.
        expression: what the capture calls it: a symbol, an expression where the capture found that it depends on another
            axis, or an int where the capture fixed it.
        range: the inclusive sizes for which the capture is valid.
        hint: its value in the call that was captured.
        named: whether the user named it (else the capture found it, and ``name`` is torch's source in Python's spelling).
        sources: torch's texts for the places that hold it.
        equal: what the capture calls the axis's other expressions, where it did not find that they are equal.
    """

    name: str
    expressions: tuple[str, ...]
    expression: Expression
    range: Range
    hint: int | float
    named: bool = True
    sources: tuple[str, ...] = ()
    equal: tuple[Expression, ...] = ()

    @property
    def symbol(self) -> sympy.Symbol | None:
        """The axis's own symbol, or ``None`` where it is fixed or depends on another axis."""
        return self.expression if isinstance(self.expression, sympy.Symbol) else None

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """The axis's own symbols: one, or one for each expression that the capture did not find equal."""
        return tuple(expression for expression in (self.expression, *self.equal) if isinstance(expression, sympy.Symbol))

    @property
    def is_fixed(self) -> bool:
        """Whether the capture is valid for one value of the axis only."""
        return not isinstance(self.expression, sympy.Basic)


@dataclass(frozen=True)
class Guard:
    """A condition under which the capture is valid.

    Attributes:
        condition: a sympy relation over the capture's symbols.
        origin: the source line that asked for it, or an empty text.
    """

    condition: sympy.Basic
    origin: str = ""


@dataclass(frozen=True)
class Placeholder:
    """One argument of the captured graph.

    Attributes:
        index: its position in the call.
        name: the name of its node.
        source: torch's text for the place it is read from, for example ``L['x']``.
        role: what it holds.
    """

    index: int
    name: str
    source: str
    role: PlaceholderRole


@dataclass(frozen=True, eq=False)
class Capture:
    """Dynamo's graph of a model with symbolic axes, and what Dynamo knows of its arguments.

    Attributes:
        module: the graph; never changed after the capture.
        placeholders: its arguments in order.
        axes: every axis of the capture, those that the user named first.
        guards: the conditions on symbols under which it is valid.
        unseen: names of the user's axes that nothing in this graph depends on.
        unbacked: ``(symbol, range)`` of the values that only the data decides.
        ambient: the global switches under which it was captured.
        written: positions of the arguments that the graph writes to.
        is_fragment: whether the model's Python went on after this graph (a graph break).
        refusal: why this capture cannot be split and made concrete, or an empty text.
        unrecordable: why it must not be recorded as a CUDA graph, where its graph does not tell, or an empty text.
    """

    module: fx.GraphModule
    placeholders: tuple[Placeholder, ...]
    axes: tuple[Axis, ...]
    guards: tuple[Guard, ...] = ()
    unseen: tuple[str, ...] = ()
    unbacked: tuple[tuple[sympy.Symbol, Range], ...] = ()
    ambient: Ambient = field(default_factory=Ambient)
    written: tuple[int, ...] = ()
    is_fragment: bool = False
    refusal: str = ""
    unrecordable: str = ""

    @property
    def argument_values(self) -> list[Any]:
        """The example value of each argument, in the order of ``placeholders``."""
        return [value_of(node) for node in self.module.graph.find_nodes(op="placeholder")]

    @property
    def is_continuation(self) -> bool:
        """Whether this graph goes on where another one of the same call stopped."""
        return any(placeholder.source.startswith("L['___") for placeholder in self.placeholders)

    @property
    def grad_enabled(self) -> bool:
        """Whether gradients were recorded when it was captured."""
        return self.ambient.grad_enabled

    def axis(self, name: str) -> Axis:
        """Return the axis with this name, or that this expression reads.

        Raises:
            AxisError: the capture has no such axis.
        """
        for axis in self.axes:
            if name == axis.name or name in axis.expressions:
                return axis
        known = [spelling for axis in self.axes for spelling in (axis.name, *axis.expressions)]
        raise AxisError(f"axis {name!r} is not an axis of this capture; {nearest(name, known)}.")

    @property
    def hints(self) -> dict[sympy.Symbol, Number]:
        """The value that each symbol had in the call that was captured."""
        return {symbol: axis.hint for axis in self.axes for symbol in axis.symbols}

    @property
    def ranges(self) -> dict[sympy.Symbol, Range]:
        """The inclusive range of each symbol in which the capture is valid."""
        return {symbol: axis.range for axis in self.axes for symbol in axis.symbols}


_ROOT = re.compile(r"^L\[(['\"])(?P<name>\w+)\1\]")
_KWARG = re.compile(r"^kwargs\[(['\"])(?P<name>\w+)\1\]")


def python_spelling(source: str) -> str:
    """Return the Python expression for torch's text of a place: ``x.shape[0]`` for ``L['x'].size()[0]``."""
    text = _ROOT.sub(lambda match: match["name"], source)
    text = _KWARG.sub(lambda match: match["name"], text)
    return text.replace(".size()[", ".shape[").replace(".stride()[", ".stride()[")


def value_of(node: fx.Node) -> Any:
    """Return the example value that the capture or a pass left on a node, or ``None`` where there is none."""
    meta = node.meta
    return meta["example_value"] if "example_value" in meta else meta.get("val")


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value or a nest of containers, left to right."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
