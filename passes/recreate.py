"""A form → the piece again: a graph module and its inputs' metadata, in an environment of their own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.passes.errors import PreconditionError
from fxbucket.passes.form import Encoded, Form
from fxbucket.passes.symbolic import (
    FakeTensorMode,
    ShapeEnv,
    adopt_symbol,
    conditions_in,
    evaluate,
    fresh_environment,
    symbols_in,
)
from fxbucket.passes.tensors import TensorFacts, build_plain, build_tensor, flat_storage


@dataclass(frozen=True, eq=False)
class Recreated:
    """A piece made from its form.

    Attributes:
        module: its graph; one placeholder an input of the form, in the form's order.
        inputs: the metadata of each input: fake tensors, numbers, symbolic numbers.
        mode: the fake-tensor mode in which they live.
        env: its environment of symbols.
    """

    module: fx.GraphModule
    inputs: tuple[Any, ...]
    mode: FakeTensorMode
    env: ShapeEnv

    def conditions(self, form: Form) -> tuple[sympy.Basic, ...]:
        """Return what a compilation of this piece came to rely on, beyond what the capture does."""
        held = set(form.conditions)
        readable = frozenset(symbol for symbol, _, hint in form.symbols if hint is not None)
        return tuple(condition for condition in conditions_in(self.env, readable) if condition not in held)


def recreate(form: Form) -> Recreated:
    """Make a piece from its form; each call gives a new one.

    Raises:
        PreconditionError: the form is not portable; its piece is the only one there is.
    """
    env, mode = fresh_environment()
    values: dict[sympy.Symbol, object] = {
        symbol: adopt_symbol(env, symbol, hint, bounds) for symbol, bounds, hint in form.symbols
    }
    for condition in form.conditions:
        if symbols_in(condition) <= values.keys():
            # The compiler may rely on what the capture relies on; asking makes it known in this environment.
            bool(evaluate(condition, values))
    decoder = _Decoder(form, values, mode, env)
    module = decoder.graph(form.nodes, form.names)
    inputs = tuple(
        node.meta.get("example_value", node.meta.get("val")) for node in module.graph.nodes if node.op == "placeholder"
    )
    return Recreated(module, inputs, mode, env)


class _Decoder:
    """Builds graphs and values from encoded ones; lives for one piece."""

    def __init__(self, form: Form, values: Mapping[sympy.Symbol, object], mode: FakeTensorMode, env: ShapeEnv) -> None:
        self._form = form
        self._values = values
        self._mode = mode
        self._env = env
        self._storages: dict[int, torch.Tensor] = {}

    def graph(self, encoded: Sequence[Encoded], names: Sequence[str]) -> fx.GraphModule:
        """Return a graph module for encoded nodes."""
        graph = fx.Graph()
        attributes: dict[str, Any] = {}
        nodes: list[fx.Node] = []
        for name, (op, target, args, kwargs, key, value, meta) in zip(names, encoded, strict=True):
            found: Any
            if op == "get_attr":
                found = f"held_{len(attributes)}"
                attributes[found] = self._attribute(target)
            else:
                found = name if op in ("placeholder", "output") else self.value(target, nodes)
            node = graph.create_node(op, found, self.value(args, nodes), self.value(kwargs, nodes), name)
            node.meta = {field: self.value(item, nodes) for field, item in meta}
            if key:
                node.meta[key] = self.value(value, nodes)
            nodes.append(node)
        return fx.GraphModule(attributes, graph)

    def _attribute(self, target: Encoded) -> Any:
        kind = target[0]
        if kind == "graph":
            return self.graph(target[2], self._form.inner_names[target[1]])
        if kind == "constant":
            # A clone, so that nothing that a compiler does to it reaches the piece.
            return self._form.constants[target[1]].clone()
        raise PreconditionError(f"a form that {self._form.local_reasons[target[1]]} cannot be made again.")

    def value(self, encoded: Encoded, nodes: Sequence[fx.Node]) -> Any:
        """Return the value that was encoded."""
        kind, parts = encoded[0], encoded[1:]
        if kind in _CONTAINERS:
            return _CONTAINERS[kind]([self.value(part, nodes) for part in parts])
        if kind == "dict":
            return {self.value(key, nodes): self.value(item, nodes) for key, item in parts}
        if kind == "named tuple":
            return self.value(parts[0], nodes)(*(self.value(part, nodes) for part in parts[1:]))
        if kind == "node":
            return nodes[parts[0]]
        if kind == "symbolic":
            return self._number(*parts)
        if kind == "tensor":
            return self._tensor(*parts)
        if kind == "enum":
            return self.value(parts[0], nodes)[parts[1]]
        if kind == "local":
            raise PreconditionError(f"a form that {self._form.local_reasons[parts[0]]} cannot be made again.")
        return _PLAIN[kind](*parts)

    def _number(self, kind: str, expression: Any) -> Any:
        return evaluate(expression, self._values)

    def _tensor(self, place: int, length: Encoded, *described: Encoded) -> torch.Tensor:
        facts = TensorFacts(*(self.value(part, ()) for part in described))
        storage = self._storages.get(place)
        if storage is None:
            plain = build_plain(facts, self.value(length, ()), self._mode)
            if plain is not None:
                self._storages[place] = plain
                return plain
            storage = flat_storage(self.value(length, ()), facts.device, self._mode, self._env)
            self._storages[place] = storage
        return build_tensor(facts, storage, self._mode, self._env)


def _attribute_of(home: str, path: str) -> Any:
    held: Any = importlib.import_module(home)
    for name in path.split("."):
        held = getattr(held, name)
    return held


_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "size": torch.Size, "slice": lambda parts: slice(*parts),
}  # fmt: skip

_PLAIN: Mapping[str, Callable[..., Any]] = {
    "NoneType": lambda value: value,
    "bool": bool,
    "int": int,
    "str": str,
    "float": float.fromhex,
    "complex": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "torch": lambda name: getattr(torch, name),
    "device": torch.device,
    "ellipsis": lambda: ...,
    "expression": lambda expression: expression,
    "placeholder": lambda: "placeholder",
    "output": lambda: "output",
    "overload": lambda space, name, overload: getattr(getattr(getattr(torch.ops, space), name), overload or "default"),
    "packet": lambda space, name: getattr(getattr(torch.ops, space), name),
    "higher order": lambda name: getattr(torch.ops.higher_order, name),
    "name": _attribute_of,
}
