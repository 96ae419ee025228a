"""Concretize: put a bucket's numbers in the place of symbols, in metadata and in arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import sympy
import torch
from torch import fx

from fxbucket.passes.admit import binding_for, broken_guard, hints_beside
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import PassError, PreconditionError, SizeError
from fxbucket.passes.form import input_order
from fxbucket.passes.metadata import MetadataMapper
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Piece, Program, Ref
from fxbucket.passes.symbolic import (
    SYMBOLIC_TYPES,
    Number,
    adopt_symbol,
    evaluate,
    fresh_environment,
    is_float_symbol,
    is_unbacked,
    symbols_in,
)


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


@dataclass(frozen=True)
class Concretize(BasePass):
    """Put numbers in the place of symbols, exactly, in every piece.

    Before: ``view(x, (tokens, 64))`` with ``x: f32[tokens*64]``. After, for 512: ``view(x, (512, 64))`` with
    ``x: f32[32768]``. Inputs and outputs that were sizes are gone: they are constants now.

    Attributes:
        sizes: axis name (or one of its expressions) → size, or a :class:`Bucket` of sizes.
        remaining: what a symbol without a number is: an error, or kept symbolic.
        hints: the values at which a compiler may try the symbols that are kept, where not those of the capture.
    """

    sizes: Mapping[str, Number] | Bucket
    remaining: Literal["error", "keep"] = "error"
    hints: Mapping[sympy.Symbol, Number] = field(default_factory=dict)
    name: ClassVar[str] = "concretize"

    def requires(self, program: Program) -> None:
        if not program.is_split:
            raise PreconditionError("concretize: the program is not split; run Split first (Split() keeps one piece).")
        if program.bucket is not None:
            raise PreconditionError(
                f"concretize: the program is concrete for {program.bucket} already; start from the split one."
            )

    def run(self, program: Program) -> Program:
        capture = program.capture
        bucket = self.sizes if isinstance(self.sizes, Bucket) else None
        sizes: Mapping[str, Number] = bucket.sizes if bucket is not None else self.sizes  # type: ignore[assignment]
        binding = binding_for(capture, sizes)
        for symbol, hint in {**capture.hints, **self.hints}.items():
            if is_float_symbol(symbol):
                # Compilers take a float as a constant, so each value of one is a compilation of its own.
                binding.setdefault(symbol, hint)
        broken = broken_guard(capture, binding)
        if broken:
            raise SizeError(f"concretize: {_sizes_text(sizes)} breaks a guard: {broken}.")
        open_axes = [axis for axis in capture.axes if any(symbol not in binding for symbol in axis.symbols)]
        if open_axes and self.remaining == "error":
            names = ", ".join(repr(axis.name) for axis in open_axes)
            raise SizeError(f"concretize: axis {names} has no size; name it too, or keep it symbolic with remaining='keep'.")

        env, mode = fresh_environment()
        values: dict[sympy.Symbol, object] = dict(binding)
        hints = hints_beside(capture, binding, self.hints)
        for symbol, bounds in capture.ranges.items():
            if symbol not in values:
                values[symbol] = adopt_symbol(env, symbol, hints[symbol], bounds)
        for guard in capture.guards:
            if symbols_in(guard.condition) <= values.keys():
                # The compiler may rely on what the capture relies on; asking makes it known in this environment.
                bool(evaluate(guard.condition, values))
        for symbol, bounds in capture.unbacked:
            values[symbol] = adopt_symbol(env, symbol, None, bounds)
        pieces, outputs = rebuild(program, MetadataMapper(values, mode, env))
        named = {name if name in capture.unseen else capture.axis(name).name: size for name, size in sizes.items()}
        left = {piece.name for piece in pieces}
        done = replace(
            program,
            pieces=pieces,
            outputs=outputs,
            binding=binding,
            hints=hints,
            same={name: first for name, first in program.same.items() if {name, first} <= left},
            bucket=bucket or Bucket.of(named),
        )
        kept = [Finding(axis.name, "kept symbolic") for axis in open_axes]
        return done.with_findings(*kept)

    def ensures(self, before: Program, after: Program) -> None:
        bound = frozenset(after.binding)
        for piece in after.pieces:
            if piece.name in after.same:
                continue
            for node in piece.module.graph.nodes:
                left = {s for s in symbols_in((list(node.meta.values()), node.args, node.kwargs)) if s in bound}
                if left:
                    raise PassError(f"concretize: {piece.name}.{node.name} still depends on {left}; please report it.")

    def __str__(self) -> str:
        sizes = self.sizes.sizes if isinstance(self.sizes, Bucket) else self.sizes
        return f"Concretize({_sizes_text(sizes)})"


def _sizes_text(sizes: Mapping[str, Number]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


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


def is_fully_concrete(program: Program) -> bool:
    """Whether no backed symbol is open; unbacked symbols do not count, since no size of a call decides them."""
    return all(is_unbacked(symbol) for symbol in program.open_symbols)
