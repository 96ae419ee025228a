"""Derive metadata afresh: run a program's pieces on fake tensors, from its arguments alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
from torch import fx

from fxbucket.passes.captured import value_of
from fxbucket.passes.metadata import MetadataMapper
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import FakeTensorMode, ShapeEnv, adopt_symbol, fresh_environment


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
    for symbol, bounds in program.capture.ranges.items():
        if symbol not in symbols:
            symbols[symbol] = adopt_symbol(env, symbol, hints[symbol], bounds)
    return _run(program, MetadataMapper(symbols, mode, env), mode, env)


def _run(program: Program, mapper: MetadataMapper, mode: FakeTensorMode, env: ShapeEnv) -> tuple[Derived, ...]:
    known: dict[str, Any] = {}
    for node in program.capture.module.graph.nodes:
        if node.op == "placeholder":
            known[node.name] = mapper.map(value_of(node))
    found = []
    runs: dict[int, Derived] = {}
    for piece in program.pieces:
        recorder = _Recorder(piece.module)
        inputs = [known[name] for name in piece.inputs]
        snapshot = MetadataMapper(None, mode, env)
        at_start = dict(zip((n.name for n in piece.module.graph.nodes if n.op == "placeholder"), inputs, strict=True))
        at_start = {name: snapshot.map(value) for name, value in at_start.items()}
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
            return tuple(found)
        known.update(zip(piece.outputs, outputs, strict=True))
        found.append(Derived(at_start, recorder.values))
        runs[id(piece.module)] = found[-1]
    return tuple(found)


def _given(module: fx.GraphModule) -> tuple[fx.Node, ...]:
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    return tuple(output.args[0])
