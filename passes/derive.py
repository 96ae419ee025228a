"""Derive metadata afresh: run a program's pieces on fake tensors, from its arguments alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.passes.captured import value_of
from fxbucket.passes.metadata import MetadataMapper
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import FakeTensor, FakeTensorMode, ShapeEnv, adopt_symbol, fresh_environment, symbols_in
from fxbucket.passes.tensors import TensorFacts, build_tensor, flat_storage


@dataclass(frozen=True)
class Derived:
    """What a run on fake tensors found for one piece.

    Attributes:
        at_start: the metadata of each placeholder when the piece begins, by node name.
        values: the value of each node after the whole program has run (an op such as ``transpose_`` changes the
            metadata of a value that was made earlier).
        failure: what stopped the run in this piece, or an empty text.
    """

    at_start: dict[str, Any]
    values: dict[str, Any]
    failure: str = ""


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps the value of every node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Any] = {}
        self.current = ""

    def run_node(self, n: fx.Node) -> Any:
        self.current = n.name
        result = super().run_node(n)
        self.values[n.name] = result
        return result


def derive(program: Program) -> tuple[Derived, ...]:
    """Return what fake-tensor propagation finds for each piece of a program; shorter where the run failed.

    The run starts from the metadata of the capture's arguments with the program's binding in it, in an environment of its
    own, so nothing that a pass wrote on inner nodes can leak into the result.
    """
    env, mode = fresh_environment()
    symbols: dict[sympy.Symbol, object] = dict(program.binding)
    hints = {**program.capture.hints, **program.hints}
    for symbol, bounds in program.ranges.items():
        if symbol not in symbols:
            symbols[symbol] = adopt_symbol(env, symbol, hints[symbol], bounds)
    return _run(program, MetadataMapper(symbols, mode, env), mode, env)


def _run(program: Program, mapper: MetadataMapper, mode: FakeTensorMode, env: ShapeEnv) -> tuple[Derived, ...]:
    known: dict[str, Any] = {}
    for node in program.capture.module.graph.nodes:
        if node.op == "placeholder":
            known[node.name] = mapper.map(value_of(node))
    found: list[Derived] = []
    starts = _Starts(mode, env)
    runs: dict[int, Derived] = {}
    for piece in program.pieces:
        recorder = _Recorder(piece.module)
        inputs = [known[name] for name in piece.inputs]
        names = [node.name for node in piece.module.graph.nodes if node.op == "placeholder"]
        at_start = starts.add(dict(zip(names, inputs, strict=True)))
        earlier = runs.get(id(piece.module))
        if earlier is not None:
            # The very graph of an equal piece: from equal inputs it derives what it did, and its inputs are compared.
            written = MetadataMapper(None, mode, env)
            known.update(zip(piece.outputs, (written.map(value_of(node)) for node in _given(piece.module)), strict=True))
            found.append(Derived(at_start, earlier.values))
            continue
        try:
            with mode, program.capture.ambient.restored():
                outputs = recorder.run(*inputs)
        except Exception as error:
            found.append(Derived(at_start, recorder.values, f"{recorder.current}: {type(error).__name__}: {error}"))
            break
        known.update(zip(piece.outputs, outputs, strict=True))
        found.append(Derived(at_start, recorder.values))
        runs[id(piece.module)] = found[-1]
    starts.settle()
    return tuple(found)


class _Starts:
    """Values as they were when a piece began, though a later op may change a value's metadata.

    Most values never change, and noting facts costs a fraction of building another fake tensor.
    """

    def __init__(self, mode: FakeTensorMode, env: ShapeEnv) -> None:
        self._mode = mode
        self._env = env
        self._noted: list[tuple[dict[str, Any], str, torch.Tensor, TensorFacts]] = []

    def add(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values as they are now; right for good once :meth:`settle` was called."""
        copies = MetadataMapper(None, self._mode, self._env)
        for name, value in values.items():
            if type(value) in (FakeTensor, torch.nn.Parameter) and not symbols_in(value) and value.layout is torch.strided:
                self._noted.append((values, name, value, TensorFacts.of(value)))
            else:
                values[name] = copies.map(value)
        return values

    def settle(self) -> None:
        """Put another tensor in the place of each whose metadata has changed since."""
        for values, name, value, facts in self._noted:
            if TensorFacts.of(value) != facts:
                storage = flat_storage(value.untyped_storage().nbytes(), value.device, self._mode, self._env)
                values[name] = build_tensor(facts, storage, self._mode, self._env)


def _given(module: fx.GraphModule) -> tuple[fx.Node, ...]:
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    return tuple(output.args[0])
