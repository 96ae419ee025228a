"""How a call is padded: which arguments become larger, and what of the results is the call's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.copies import narrowed, overlaps_itself, strided_copy
from fxbucket.passes.aliasing import storage_of
from fxbucket.passes.captured import Capture, tensors_in, value_of
from fxbucket.passes.errors import FxbucketError
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, Number, evaluate, expression_of, is_wrapper_subclass, symbols_in

Fill = int | float | bool


class UnpaddableError(FxbucketError, ValueError):
    """A call cannot be padded; says why."""


@dataclass(frozen=True)
class PaddedArgument:
    """A tensor argument that is copied into a larger one.

    Attributes:
        position: its place in the call.
        shape: the larger one's sizes.
        strides: the larger one's strides, in elements.
        dims: the dims that grow.
        fill: what its padding holds.
        amounts: how much each dim grows behind its own rows, as ``torch.nn.functional.pad`` takes it; ``None`` where the
            larger tensor is not contiguous.
    """

    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dims: tuple[int, ...]
    fill: Fill
    amounts: tuple[int, ...] | None = None

    def padded(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a larger copy of the argument; autograd follows it."""
        if self.amounts is not None:
            return torch.nn.functional.pad(tensor, self.amounts, value=self.fill)
        if any(self.strides[dim] == 0 for dim in self.dims):
            # All rows are one row of memory, so there may as well be more of them.
            return tensor.as_strided(self.shape, self.strides)
        made = torch.empty_strided(self.shape, self.strides, dtype=tensor.dtype, device=tensor.device)
        with torch.no_grad():
            if len(self.dims) == 1:
                (dim,) = self.dims
                made.narrow(dim, tensor.shape[dim], self.shape[dim] - tensor.shape[dim]).fill_(self.fill)
            else:
                made.fill_(self.fill)
        real = narrowed(made, tensor.shape)
        real.copy_(tensor)
        return made


@dataclass(frozen=True)
class Own:
    """What of a result is the call's own.

    Attributes:
        shape: the sizes that the call's own result has.
        strides: its strides, in elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, result: torch.Tensor) -> torch.Tensor:
        """Return the call's own part of a result: a view where its strides are those of the call, else a copy."""
        view = narrowed(result, self.shape)
        strides = view.stride()
        if strides == self.strides or 0 in self.shape:
            return view
        if all(one == other for one, other, size in zip(strides, self.strides, self.shape, strict=True) if size > 1):
            return view
        return strided_copy(view, self.strides)


@dataclass(frozen=True)
class Given:
    """A result that is an argument of the call itself, at this position."""

    position: int


@dataclass(frozen=True)
class Plan:
    """How one combination of sizes is padded to one bucket.

    Attributes:
        tensors: the tensor arguments that grow.
        numbers: ``(position, number)`` of the int arguments that are sizes.
        results: the structure of the results: :class:`Own`, :class:`Given`, a number, or ``None`` for what stays as it is.
        written: positions of the padded arguments that the graph writes to.
    """

    tensors: tuple[PaddedArgument, ...]
    numbers: tuple[tuple[int, int], ...]
    results: Any
    written: tuple[int, ...]

    def arguments(self, args: Sequence[Any]) -> list[Any]:
        """Return a call's arguments, padded."""
        padded = list(args)
        for held in self.tensors:
            padded[held.position] = held.padded(args[held.position])
        for position, number in self.numbers:
            padded[position] = number
        return padded

    def finish(self, args: Sequence[Any], padded: Sequence[Any], results: Any) -> Any:
        """Write effects on padded arguments back to the call's own, and return the call's own results."""
        for position in self.written:
            with torch.no_grad():
                args[position].copy_(narrowed(padded[position], args[position].shape))
        return _own(results, self.results, args)


def _own(results: Any, plan: Any, args: Sequence[Any]) -> Any:
    if isinstance(plan, tuple):
        return tuple(_own(result, part, args) for result, part in zip(results, plan, strict=True))
    if isinstance(plan, Own):
        return plan.of(results)
    if isinstance(plan, Given):
        return args[plan.position]
    return results if plan is None else plan


def make_plan(
    capture: Capture, sizes: Mapping[sympy.Symbol, Number], binding: Mapping[sympy.Symbol, Number], fills: Mapping[int, Fill]
) -> Plan:
    """Return how a call is padded.

    Args:
        capture: the graph.
        sizes: the value of each symbol in the call.
        binding: the numbers of the bucket that is to serve it.
        fills: what the padding of arguments holds, by position; 0 elsewhere.

    Raises:
        UnpaddableError: it cannot be; says why.
    """
    target = {**sizes, **binding}
    changed = frozenset(symbol for symbol, size in sizes.items() if target[symbol] != size)
    nodes = [node for node in capture.module.graph.nodes if node.op == "placeholder"]
    tensors: list[PaddedArgument] = []
    numbers: list[tuple[int, int]] = []
    for position, node in enumerate(nodes):
        value = value_of(node)
        if not symbols_in(value) & changed:
            continue
        if isinstance(value, SYMBOLIC_TYPES):
            numbers.append((position, int(_at(value, target))))
        elif isinstance(value, torch.Tensor):
            name = capture.placeholders[position].name
            tensors += _padded_argument(position, name, value, sizes, target, fills.get(position, 0))
    grown = frozenset(held.position for held in tensors)
    written = tuple(position for position in capture.written if position in grown)
    if written and capture.grad_enabled and any(_needs_grad(node) for node in nodes):
        raise UnpaddableError("the graph writes to an argument that would be padded, and autograd follows the call")
    results = _results(capture, nodes, grown, sizes, target)
    return Plan(tuple(tensors), tuple(numbers), results, written)


def _padded_argument(
    position: int,
    name: str,
    value: torch.Tensor,
    sizes: Mapping[sympy.Symbol, Number],
    target: Mapping[sympy.Symbol, Number],
    fill: Fill,
) -> list[PaddedArgument]:
    if is_wrapper_subclass(value) or value.layout is not torch.strided or value.is_conj() or value.is_neg():
        raise UnpaddableError(f"argument {name} is a tensor of a kind that cannot be padded")
    now, shape = _all(value.shape, sizes), _all(value.shape, target)
    strides = _all(value.stride(), target)
    dims = tuple(dim for dim, (old, new) in enumerate(zip(now, shape, strict=True)) if old != new)
    if any(shape[dim] < now[dim] for dim in dims):
        raise UnpaddableError(f"argument {name} of sizes {now} would shrink to {shape}")
    flat = [dim for dim, stride in enumerate(strides) if stride == 0 and shape[dim] > 1]
    if not set(dims) <= set(flat) and overlaps_itself(shape, strides):
        raise UnpaddableError(f"argument {name} is expanded or a sliding window, so rows of it share memory")
    if not dims and strides != _all(value.stride(), sizes):
        # Only the strides depend on the size: a narrow part of something larger.
        return [PaddedArgument(position, shape, strides, (), fill)]
    if not dims:
        return []
    amounts = None
    is_narrow_float = value.dtype.is_floating_point and value.dtype.itemsize == 1  # torch pads none of these
    if 0 not in shape and strides == _contiguous(shape) and not is_narrow_float:
        amounts = tuple(part for old, new in reversed(list(zip(now, shape, strict=True))) for part in (0, new - old))
    return [PaddedArgument(position, shape, strides, dims, fill, amounts)]


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def _results(
    capture: Capture,
    nodes: Sequence[fx.Node],
    grown: frozenset[int],
    sizes: Mapping[sympy.Symbol, Number],
    target: Mapping[sympy.Symbol, Number],
) -> Any:
    (output,) = (node for node in capture.module.graph.nodes if node.op == "output")
    places = {node: position for position, node in enumerate(nodes)}
    storages = {storage_of(value_of(nodes[position])): position for position in grown}
    copied: list[int] = []

    def plan(item: Any) -> Any:
        if isinstance(item, (tuple, list)):
            return tuple(plan(part) for part in item)
        if not isinstance(item, fx.Node):
            return int(_at(item, sizes)) if isinstance(item, SYMBOLIC_TYPES) else None
        if item in places and isinstance(value_of(item), torch.Tensor):
            return Given(places[item])
        value = value_of(item)
        if isinstance(value, SYMBOLIC_TYPES):
            return _at(value, sizes)
        if not isinstance(value, torch.Tensor):
            return None
        memory = storage_of(value)
        if memory in storages:
            name = capture.placeholders[storages[memory]].name
            raise UnpaddableError(f"a result shares memory with argument {name}, which padding copies")
        own = Own(_all(value.shape, sizes), _all(value.stride(), sizes))
        at_target = _all(value.stride(), target)
        if any(one != other for one, other, size in zip(own.strides, at_target, own.shape, strict=True) if size > 1):
            copied.append(memory)
        return own

    made = plan(output.args[0])
    returned = [storage_of(tensor) for node in output.all_input_nodes for tensor in tensors_in(value_of(node))]
    if any(returned.count(memory) > 1 for memory in copied):
        raise UnpaddableError("two results share memory, which they would not when their padding is cut off")
    return made


def _needs_grad(node: fx.Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.requires_grad


def _at(value: Any, sizes: Mapping[sympy.Symbol, Number]) -> Number:
    expression = expression_of(value)
    missing = symbols_in(expression) - sizes.keys()
    if missing:
        raise UnpaddableError(f"a size depends on {', '.join(sorted(map(str, missing)))}, which no argument holds alone")
    return evaluate(expression, sizes)


def _all(numbers: Sequence[Any], sizes: Mapping[sympy.Symbol, Number]) -> tuple[int, ...]:
    return tuple(int(_at(number, sizes)) for number in numbers)
