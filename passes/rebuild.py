"""A program's pieces with other values in the place of symbols: numbers, or symbols of a fresh environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.passes.buckets import Bucket
from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import PassError
from fxbucket.passes.form import input_order
from fxbucket.passes.metadata import MetadataMapper
from fxbucket.passes.program import Piece, Program, Ref
from fxbucket.passes.ranges import Bounds
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, Number, adopt_symbol, evaluate, fresh_environment, symbols_in


def for_bucket(
    program: Program,
    bucket: Bucket,
    binding: Mapping[sympy.Symbol, Number],
    hints: Mapping[sympy.Symbol, Number],
    bounds: Bounds,
) -> Program:
    """Return a split program with a bucket's numbers, and with what is open adopted by an environment of its own.

    Args:
        program: symbolic.
        bucket: what it becomes the program of.
        binding: the number of each symbol that the bucket settles.
        hints: a value for each other symbol.
        bounds: what the bucket says of the symbols that it leaves open.
    """
    capture = program.capture
    made = replace(program, bounds=bounds.ranges, assumed=bounds.assumptions)
    env, mode = fresh_environment()
    values: dict[sympy.Symbol, object] = dict(binding)
    for symbol, held in made.ranges.items():
        if symbol not in values:
            values[symbol] = adopt_symbol(env, symbol, hints[symbol], held)
    for condition in made.conditions:
        if symbols_in(condition) <= values.keys():
            # The compiler may rely on what holds anyway; asking makes it known in this environment.
            bool(evaluate(condition, values))
    for symbol, held in capture.unbacked:
        values[symbol] = adopt_symbol(env, symbol, None, held)
    pieces, outputs = rebuild(program, MetadataMapper(values, mode, env))
    left = {piece.name for piece in pieces}
    return replace(
        made,
        pieces=pieces,
        outputs=outputs,
        binding=binding,
        hints=hints,
        same={name: first for name, first in program.same.items() if {name, first} <= left},
        bucket=bucket,
    )


def check_bound(program: Program, what: str) -> None:
    """Raise :class:`PassError` where a node of a program still depends on a symbol that has a number."""
    bound = frozenset(program.binding)
    for piece in program.pieces:
        if piece.name in program.same:
            continue
        for node in piece.module.graph.nodes:
            left = {s for s in symbols_in((list(node.meta.values()), node.args, node.kwargs)) if s in bound}
            if left:
                raise PassError(f"{what}: {piece.name}.{node.name} still depends on {left}; please report it.")


def _is_constant(value: object) -> bool:
    """Whether a rebuilt value is a plain number, or a container of nothing but plain numbers."""
    if isinstance(value, torch.Size):
        return all(isinstance(size, int) for size in value)
    return isinstance(value, (int, float, bool))


def _is_symbolic(value: object) -> bool:
    """Whether a value is a symbolic number (even one that the capture settled), or holds one."""
    return isinstance(value, SYMBOLIC_TYPES) or bool(symbols_in(value))


def _is_pure(node: fx.Node) -> bool:
    """Whether a node that gives a number may be dropped once the number is known."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return not target._schema.is_mutable
    return not (isinstance(target, str) and target.endswith("_"))


class _Substitution:
    """Rebuilds graphs with values in the place of symbols; lives for one run of the pass."""

    def __init__(self, mapper: MetadataMapper) -> None:
        self._mapper = mapper

    def copy(
        self, source: fx.GraphModule, known: Mapping[str, Any], keep_signature: bool
    ) -> tuple[fx.GraphModule, list[str], Any]:
        """Return a graph with numbers in the place of symbols.

        Args:
            source: the graph; it is not changed.
            known: numbers for placeholders by name.
            keep_signature: keep placeholders and outputs that became numbers, as the body of a higher-order op must,
                since its op passes and takes them by position.

        Returns:
            The new graph, the names of the placeholders that are left, and the rebuilt output arguments.
        """
        graph = fx.Graph()
        local: dict[fx.Node, Any] = {}
        kept: list[str] = []
        nested: dict[str, fx.GraphModule] = {}
        outputs: Any = ()
        for node in source.graph.nodes:
            value = self._mapper.map(value_of(node))
            if node.op == "output":
                outputs = self._argument(node.args[0], local)
                continue
            is_number = node.name in known or (_is_symbolic(value_of(node)) and _is_constant(value))
            if is_number and (node.op == "placeholder" or _is_pure(node)):
                local[node] = known.get(node.name, value)
                if node.op != "placeholder" or not keep_signature:
                    continue
            inner = getattr(source, str(node.target), None) if node.op == "get_attr" else None
            if isinstance(inner, fx.GraphModule):
                nested[str(node.target)], _, _ = self.copy(inner, {}, keep_signature=True)
            args, kwargs = self._argument(node.args, local), self._argument(node.kwargs, local)
            made = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
            made.meta = self._mapper.meta(node.meta)
            local.setdefault(node, made)
            if node.op == "placeholder":
                kept.append(node.name)
        if not keep_signature:
            outputs = tuple(outputs)
        graph.output(outputs if keep_signature else tuple(item for item in outputs if isinstance(item, fx.Node)))
        module = fx.GraphModule(source, graph)
        for target, replacement in nested.items():
            setattr(module, target, replacement)
        module.__class__.__name__ = source.__class__.__name__
        return module, kept, outputs

    def _argument(self, argument: Any, local: Mapping[fx.Node, Any]) -> Any:
        if isinstance(argument, fx.Node):
            return local[argument]
        if isinstance(argument, SYMBOLIC_TYPES):
            return self._mapper.number(argument)
        if isinstance(argument, slice):
            parts = (self._argument(part, local) for part in (argument.start, argument.stop, argument.step))
            return slice(*parts)
        if isinstance(argument, torch.Size):
            return torch.Size([self._argument(item, local) for item in argument])
        if isinstance(argument, tuple) and hasattr(argument, "_fields"):
            return type(argument)(*(self._argument(item, local) for item in argument))
        if isinstance(argument, (tuple, list)):
            items = [self._argument(item, local) for item in argument]
            return items if isinstance(argument, list) else tuple(items)
        if isinstance(argument, dict):
            return {key: self._argument(item, local) for key, item in argument.items()}
        return argument


@dataclass(frozen=True, eq=False)
class _Rebuilt:
    """A piece with numbers in the place of symbols: its graph, which of the inputs are left, what it gives.

    ``order`` are the positions of all inputs that it had, in the order of their first use.
    """

    module: fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[Any, ...]
    order: tuple[int, ...]


def rebuild(program: Program, mapper: MetadataMapper) -> tuple[tuple[Piece, ...], Any]:
    """Return a program's pieces and output structure with a mapper's values in the place of symbols.

    Values that became numbers no longer cross a cut, and a piece that has nothing left to do is gone.
    """
    substitution = _Substitution(mapper)
    known: dict[str, Any] = {}
    for node in program.capture.module.graph.nodes:
        value = value_of(node)
        if node.op == "placeholder" and isinstance(value, SYMBOLIC_TYPES):
            number = mapper.number(value)
            if _is_constant(number):
                known[node.name] = number
    pieces: list[Piece] = []
    done: dict[str, _Rebuilt] = {}
    for piece in program.pieces:
        nodes = [node for node in piece.module.graph.nodes if node.op == "placeholder"]
        first = done.get(program.same.get(piece.name, ""))
        if first is not None:
            # Equal pieces become equal pieces, so the work was done for the first; arguments may come in another order.
            order = dict(zip(first.order, input_order(piece.module), strict=True))
            rebuilt = replace(first, inputs=tuple(order[position] for position in first.inputs))
        else:
            constants = {node.name: known[name] for node, name in zip(nodes, piece.inputs, strict=True) if name in known}
            module, kept, outputs = substitution.copy(piece.module, constants, keep_signature=False)
            left = set(kept)
            positions = tuple(position for position, node in enumerate(nodes) if node.name in left)
            rebuilt = _Rebuilt(module, positions, tuple(outputs), input_order(piece.module))
            done[piece.name] = rebuilt
        given = []
        for name, output in zip(piece.outputs, rebuilt.outputs, strict=True):
            if isinstance(output, fx.Node):
                given.append(name)
            else:
                known[name] = output
        inputs = tuple(piece.inputs[position] for position in rebuilt.inputs)
        made = replace(piece, index=len(pieces), module=rebuilt.module, inputs=inputs, outputs=tuple(given))
        if made.body:
            pieces.append(made)
    return tuple(pieces), _outputs(program.outputs, known)


def _outputs(structure: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(structure, Ref):
        return known.get(structure.name, structure)
    if isinstance(structure, (tuple, list)):
        return tuple(_outputs(item, known) for item in structure)
    return structure
