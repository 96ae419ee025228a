"""A captured graph → the ATen ops that it calls, with symbolic shapes, in the order in which they run.

Python's ops are many and ATen's are few, so what is to be known of each op need be said for ATen's alone. Ops are recorded
while the graph runs on fake tensors, in an environment of its own: no data is touched, and nothing reaches the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.passes.captured import tensors_in, value_of
from fxbucket.passes.kernel_calls import is_kernel_call
from fxbucket.passes.metadata import MetadataMapper
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import (
    SYMBOLIC_TYPES,
    Expression,
    FakeTensorMode,
    ShapeEnv,
    TorchDispatchMode,
    adopt_symbol,
    asserted_at_run_time,
    assume,
    expression_of,
    fresh_environment,
    is_fake,
    is_float_symbol,
    is_wrapper_subclass,
    symbols_in,
    with_symbolic_decompositions,
)


@dataclass(frozen=True)
class TensorValue:
    """A tensor at the time of one call.

    Attributes:
        key: the same number for the same tensor object.
        storage: the same number for tensors that share memory; -1 where that is not known.
        shape: numbers and expressions over the capture's symbols.
        dtype: its dtype.
    """

    key: int
    storage: int
    shape: tuple[Expression, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class AtenCall:
    """One call of an ATen op (or of a custom one).

    Attributes:
        target: the overload.
        arguments: every argument by its name in the schema, defaults too; tensors as :class:`TensorValue`, symbolic
            numbers as expressions.
        outputs: what it gave, flat.
        writes: the tensors that it writes to.
        node: the node of the captured graph that called it.
    """

    target: torch._ops.OpOverload
    arguments: Mapping[str, Any]
    outputs: tuple[Any, ...]
    writes: tuple[TensorValue, ...]
    node: fx.Node

    @property
    def op(self) -> str:
        """The op's name without the overload: ``aten::sum``."""
        return str(self.target.name()).split(".")[0]

    @property
    def overload(self) -> str:
        """The name with the overload: ``aten::sum.dim_IntList``."""
        return f"{self.op}.{self.target._overloadname}"

    @property
    def tensors(self) -> tuple[TensorValue, ...]:
        """The tensors among the arguments, in order."""
        return tuple(values_in(tuple(self.arguments.values())))

    @property
    def results(self) -> tuple[TensorValue, ...]:
        """The tensors among the outputs."""
        return tuple(values_in(self.outputs))

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


@dataclass(frozen=True, eq=False)
class Lowered:
    """What a captured graph does, as ATen ops.

    Attributes:
        calls: the ops in the order in which they run.
        inputs: the graph's arguments.
        outputs: what the graph gives, flat.
        constants: the tensors that the graph itself holds.
        failure: why the graph could not be lowered to its end, or an empty text.
        failed_at: the node that could not.
        assumed: conditions on symbols that lowering relied on, and the capture does not.
        replaced: symbols of the capture that lowering found to be something else.
    """

    calls: tuple[AtenCall, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    constants: tuple[TensorValue, ...] = ()
    failure: str = ""
    failed_at: fx.Node | None = None
    assumed: tuple[sympy.Basic, ...] = ()
    replaced: frozenset[sympy.Symbol] = field(default_factory=frozenset)


_UNTOLD_WRITERS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
"""Ops that update running statistics though their schemas do not say so."""


def values_in(structure: object) -> Iterator[TensorValue]:
    """Yield the tensors in a nest of recorded values, left to right."""
    if isinstance(structure, TensorValue):
        yield structure
    elif isinstance(structure, (tuple, list)):
        for item in structure:
            yield from values_in(item)


def numbers_in(structure: object) -> Iterator[sympy.Basic]:
    """Yield the expressions in a nest of recorded values, those of shapes left out."""
    if isinstance(structure, sympy.Basic):
        yield structure
    elif isinstance(structure, (tuple, list)):
        for item in structure:
            yield from numbers_in(item)


class _Recorder(TorchDispatchMode):
    """Records every op that reaches the dispatcher, with what it was given and gave."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no annotations
        self.calls: list[AtenCall] = []
        self.node: fx.Node | None = None
        self.unknown: list[str] = []
        self.constants: list[TensorValue] = []
        # Every tensor is kept, so that neither its id nor the address of its memory is given to another.
        self._kept: dict[int, torch.Tensor] = {}

    def recorded(self, value: Any) -> Any:
        """Return a value with tensors and symbolic numbers as they are now."""
        if isinstance(value, torch.Tensor):
            self._kept[id(value)] = value
            plain = value.layout is torch.strided and not is_wrapper_subclass(value)
            storage = value.untyped_storage()._cdata if plain else -1
            shape = tuple(expression_of(size) for size in value.shape)
            return TensorValue(id(value), storage, shape, value.dtype)
        if isinstance(value, SYMBOLIC_TYPES):
            return expression_of(value)
        if isinstance(value, (tuple, list)):
            return tuple(self.recorded(item) for item in value)
        if isinstance(value, Mapping):
            return tuple(self.recorded(item) for item in value.values())
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        with self:
            given = func.decompose(*args, **kwargs)
        if given is not NotImplemented:
            return given
        for tensor in tensors_in((args, kwargs)):
            if id(tensor) not in self._kept and is_fake(tensor):
                self.unknown.append(f"{func} is given a tensor that no recorded op made")
        schema = func._schema.arguments
        named = {}
        for position, argument in enumerate(schema):
            if position < len(args):
                named[argument.name] = args[position]
            else:
                named[argument.name] = kwargs.get(argument.name, argument.default_value)
        arguments = {name: self.recorded(value) for name, value in named.items()}
        written = [arguments[a.name] for a in schema if a.alias_info is not None and a.alias_info.is_write]
        if str(func.name()) in _UNTOLD_WRITERS and named["training"]:
            written += [arguments["running_mean"], arguments["running_var"]]
        outputs = func(*args, **kwargs)
        recorded = self.recorded(outputs if isinstance(outputs, (tuple, list)) else (outputs,))
        assert self.node is not None
        self.calls.append(AtenCall(func, arguments, tuple(_flat(recorded)), tuple(values_in(tuple(written))), self.node))
        return outputs


class _Interpreter(fx.Interpreter):
    """Runs a graph, and tells the recorder which node runs."""

    def __init__(self, module: fx.GraphModule, recorder: _Recorder, mode: FakeTensorMode) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._recorder = recorder
        self._mode = mode

    def run_node(self, n: fx.Node) -> Any:
        self._recorder.node = n
        return super().run_node(n)

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if isinstance(value, torch.Tensor) and not is_fake(value):
            value = self._mode.from_tensor(value, static_shapes=True)
            self._recorder.constants.append(self._recorder.recorded(value))
        return value


def _flat(structure: Any) -> Iterator[Any]:
    if isinstance(structure, (tuple, list)):
        for item in structure:
            yield from _flat(item)
    else:
        yield structure


def lower(program: Program) -> Lowered:
    """Return the ATen ops that a program's captured graph calls; what could not be lowered is told, not raised."""
    env, mode = fresh_environment()
    recorder = _Recorder()
    inputs: tuple[Any, ...] = ()
    kernel = next(filter(is_kernel_call, program.capture.module.graph.nodes), None)
    if kernel is not None:
        failure = "it is a Triton kernel; make it an op with torch.library.triton_op, which row_safe_ops can name"
        return Lowered((), inputs, failure=failure, failed_at=kernel)
    try:
        values = _inputs(program, env, mode)
        inputs = tuple(recorder.recorded(value) for value in values)
        assume(env, [guard.condition for guard in program.capture.guards])
        known = {guard.expr for guard in env.guards} | {guard.condition for guard in program.capture.guards}
        with mode, program.capture.ambient.restored(), torch.no_grad(), with_symbolic_decompositions(), recorder:
            given = _Interpreter(program.capture.module, recorder, mode).run(*values)
        outputs = tuple(_flat(recorder.recorded((given,))))
    except Exception as error:
        failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return Lowered(tuple(recorder.calls), inputs, failure=failure, failed_at=recorder.node)
    if recorder.unknown:
        return Lowered(tuple(recorder.calls), inputs, failure=recorder.unknown[0])
    symbols = frozenset(symbol for symbol in program.capture.hints if not is_float_symbol(symbol))
    assumed = [guard.expr for guard in env.guards if guard.expr not in known]
    assumed += [condition for condition in asserted_at_run_time(env) if symbols & symbols_in(condition)]
    replaced = frozenset(symbol for symbol in symbols if env.replace(symbol) != symbol)
    constants = tuple(dict.fromkeys(recorder.constants))
    return Lowered(
        tuple(recorder.calls), inputs, outputs, constants, assumed=tuple(dict.fromkeys(assumed)), replaced=replaced
    )


def _inputs(program: Program, env: ShapeEnv, mode: FakeTensorMode) -> list[Any]:
    hints = program.capture.hints
    # A float of the call has no range; as a number that only the data decides, nothing can come to rely on its value.
    symbols: dict[sympy.Symbol, object] = {
        symbol: (
            env.create_unbacked_symfloat() if is_float_symbol(symbol) else adopt_symbol(env, symbol, hints[symbol], bounds)
        )
        for symbol, bounds in program.capture.ranges.items()
    }
    mapper = MetadataMapper(symbols, mode, env)
    return [mapper.map(value_of(node)) for node in program.capture.module.graph.nodes if node.op == "placeholder"]
