"""A model and example arguments → a program, through torch.compile's own capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.axes import AxisSpec, Reading, axis_specs
from fxbucket.fragments import handed_on
from fxbucket.frame import CallFrame, capturing, entry_point
from fxbucket.passes.aliasing import exposed_placeholders, written_overlap, written_placeholders
from fxbucket.passes.ambient import Ambient
from fxbucket.passes.buckets import NO_LOWER_BOUND, Range
from fxbucket.passes.captured import (
    Axis,
    Capture,
    Guard,
    Placeholder,
    PlaceholderRole,
    python_spelling,
    tensors_in,
    value_of,
)
from fxbucket.passes.errors import AxisError, CaptureError, FxbucketError
from fxbucket.passes.identities import forward_identities
from fxbucket.passes.nodes import SHAPE_CHANGERS
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import (
    SYMBOLIC_TYPES,
    Expression,
    ShapeEnv,
    SymbolFacts,
    constants_by_source,
    expression_of,
    expressions_by_source,
    is_unbacked,
    is_wrapper_subclass,
    read_symbols,
    recorded_guards,
    substitute,
    symbols_in,
    unbacked_range,
)
from fxbucket.passes.torch_version import check_torch_version
from fxbucket.torch_compat import (
    captured_argument,
    count_kernel_writes,
    is_graph_fragment,
    original_error,
    tracing_shape_env,
)


def program_of(
    module: fx.GraphModule, env: ShapeEnv | None, specs: Sequence[AxisSpec], arguments: Mapping[str, Any] | None
) -> Program:
    """Return the program of a graph that Dynamo has just captured.

    Args:
        module: Dynamo's graph.
        env: the environment of its symbols.
        specs: the axes that the user named.
        arguments: the call's arguments by name, where they are at hand; tensors are then told by identity, so that axes
            are found behind decorators and graph breaks too.
    """
    count_kernel_writes(module)
    module, written = forward_identities(module)
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    found = [captured_argument(node) for node in nodes]
    placeholders = tuple(
        Placeholder(index, node.name, source, _role(node, source))
        for index, (node, (source, _)) in enumerate(zip(nodes, found, strict=True))
    )
    facts = read_symbols(env) if env is not None else ()
    places = _Places(nodes, [real for _, real in found], env, arguments)
    axes = _axes(specs, facts, places)
    seen = {axis.name for axis in axes}
    capture = Capture(
        module=module,
        placeholders=placeholders,
        axes=axes,
        unseen=tuple(spec.name for spec in specs if spec.name not in seen),
        guards=tuple(Guard(condition, origin) for condition, origin in recorded_guards(env)) if env is not None else (),
        unbacked=_unbacked(module, env),
        ambient=Ambient.now(),
        written=written_placeholders(module, written),
        is_fragment=is_graph_fragment(module),
        refusal=_refusal(module),
    )
    return Program(replace(capture, refusal=capture.refusal or _overlap_refusal(capture, [real for _, real in found])))


def _role(node: fx.Node, source: str) -> PlaceholderRole:
    value = value_of(node)
    if isinstance(value, SYMBOLIC_TYPES):
        return "symbol"
    if isinstance(value, torch.nn.Parameter) or "_parameters[" in source:
        return "parameter"
    return "buffer" if "_buffers[" in source else "input"


class _Places:
    """Where a captured call holds which size."""

    def __init__(
        self, nodes: Sequence[fx.Node], real: Sequence[Any], env: ShapeEnv | None, arguments: Mapping[str, Any] | None
    ) -> None:
        self._fakes = {id(value): value_of(node) for node, value in zip(nodes, real, strict=True) if value is not None}
        self._by_source: dict[str, Expression] = dict(expressions_by_source(env)) if env is not None else {}
        if env is not None:
            self._by_source.update(constants_by_source(env))
        for node in nodes:
            source, _ = captured_argument(node)
            value = value_of(node)
            if isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    self._by_source.setdefault(f"{source}.size()[{dim}]", expression_of(size))
        self._arguments = arguments
        self.handed_on: dict[str, list[Expression]] = {}
        for node, value in zip(nodes, real, strict=True):
            for name, expression in handed_on(value, value_of(node)).items():
                self.handed_on.setdefault(name, []).append(expression)

    def find(self, reading: Reading) -> Expression | None:
        """Return what the capture calls the size that an expression reads; ``None`` where it does not see it."""
        if self._arguments is not None:
            fake = self._fakes.get(id(_owner(reading, self._arguments))) if reading.dim is not None else None
            if isinstance(fake, torch.Tensor) and reading.dim is not None:
                return expression_of(fake.shape[reading.dim])
        for num_dims in range(1, 9):
            for source in reading.sources(num_dims):
                if source in self._by_source and self._fits(source, num_dims, reading):
                    return self._by_source[source]
        if reading.dim is None and self._arguments is not None:
            # The capture took the int for a constant (or has no use for it): it is valid for this value.
            value = _owner(reading, self._arguments)
            return value if type(value) is int else None
        return None

    def _fits(self, source: str, num_dims: int, reading: Reading) -> bool:
        if reading.dim is None or reading.dim >= 0:
            return True
        owner = source.rpartition(".size()[")[0]
        return f"{owner}.size()[{num_dims}]" not in self._by_source

    def spellings(self) -> list[str]:
        """Return every size that the capture sees, as the user would write it."""
        return [
            python_spelling(source)
            for source in self._by_source
            if "_parameters" not in source and "L['self']" not in source
        ]


def _owner(reading: Reading, arguments: Mapping[str, Any]) -> Any:
    try:
        return reading.owner(arguments)
    except AxisError:
        return None


def _axes(specs: Sequence[AxisSpec], facts: Sequence[SymbolFacts], places: _Places) -> tuple[Axis, ...]:
    by_symbol = {fact.symbol: fact for fact in facts}
    axes: list[Axis] = []
    for spec in specs:
        found = {reading.expression: places.find(reading) for reading in spec.readings}
        seen = [expression for expression in found.values() if expression is not None]
        seen += places.handed_on.get(spec.name, [])
        if not seen:
            continue
        main, *others = dict.fromkeys(seen)
        equal = tuple(others)
        axes.append(_axis(spec.name, tuple(found), main, by_symbol, named=True, equal=equal))
    named = symbols_in([axis.expression for axis in axes]) | symbols_in([axis.equal for axis in axes])
    for fact in facts:
        if fact.symbol not in named:
            name = python_spelling(fact.sources[0])
            spellings = tuple(dict.fromkeys(python_spelling(source) for source in fact.sources))
            axes.append(_axis(name, spellings, fact.symbol, by_symbol, named=False))
    return tuple(axes)


def _axis(
    name: str,
    expressions: tuple[str, ...],
    expression: Expression,
    by_symbol: Mapping[sympy.Symbol, SymbolFacts],
    named: bool,
    equal: tuple[Expression, ...] = (),
) -> Axis:
    fact = by_symbol.get(expression) if isinstance(expression, sympy.Symbol) else None
    if fact is not None:
        return Axis(name, expressions, expression, fact.range, fact.hint, named, fact.sources, equal)
    if isinstance(expression, sympy.Basic):
        hint = substitute(expression, {symbol: known.hint for symbol, known in by_symbol.items()})
        return Axis(name, expressions, expression, Range(NO_LOWER_BOUND), int(hint), named, (), equal)
    number = int(expression)
    return Axis(name, expressions, number, Range(number, number), number, named, (), equal)


def _unbacked(module: fx.GraphModule, env: ShapeEnv | None) -> tuple[tuple[sympy.Symbol, Range], ...]:
    if env is None:
        return ()
    symbols = {s for node in module.graph.nodes for s in symbols_in(value_of(node)) if is_unbacked(s)}
    return tuple((symbol, unbacked_range(env, symbol)) for symbol in sorted(symbols, key=str))


def _refusal(module: fx.GraphModule) -> str:
    """Return why a captured graph cannot be split and made concrete, or an empty text."""
    for node in module.graph.nodes:
        value = value_of(node)
        for tensor in tensors_in(value):
            if is_wrapper_subclass(tensor):
                return f"{node.name} is a {type(tensor).__name__}, a tensor that wraps other tensors"
            if tensor.layout is not torch.strided:
                return f"{node.name} has the layout {tensor.layout}, which has no strides"
        changes = node.op == "call_method" and node.target in SHAPE_CHANGERS
        if changes and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder":
            return f"{node.name} changes the shape of the argument {node.args[0].name} in place"
    return ""


def _overlap_refusal(capture: Capture, real: Sequence[Any]) -> str:
    if written_overlap(real, capture.written, exposed_placeholders(capture)):
        return "an argument that it writes to shares memory with another argument of the captured call"
    return ""


class _Captured(Exception):  # noqa: N818
    """Carries the program out of the backend, so that a capture runs nothing of the model."""

    def __init__(self, program: Program) -> None:
        super().__init__("captured")
        self.program = program


def capture(
    model: Callable[..., Any],
    *args: Any,
    dynamic: Sequence[str] = (),
    axes: Mapping[str, str | Sequence[str]] | None = None,
    **kwargs: Any,
) -> Program:
    """Capture a model as one graph with symbolic axes, without running it.

    Args:
        model: a module or a function.
        *args: example arguments; their sizes along the axes must be at least 2.
        dynamic: axis expressions (or short names from ``axes``) that vary; all other sizes are constants.
        axes: short name → expression, or several expressions that are always equal; all of them vary.
        **kwargs: example keyword arguments.

    Returns:
        A program with no pieces yet; run ``Split`` on it.

    Raises:
        AxisError: an expression names no argument or does not read an int.
        CaptureError: the model breaks into several graphs, or torch cannot capture it.
    """
    check_torch_version()
    if isinstance(dynamic, str):
        dynamic = (dynamic,)
    specs, _ = axis_specs(axes, dynamic)
    frame = CallFrame(specs, entry_point(model))
    call = frame.bind(args, kwargs)
    for spec in specs:
        for reading in spec.readings:
            reading.read(call.arguments)

    def backend(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        raise _Captured(program_of(module, tracing_shape_env(), call.located, call.arguments))

    compiled = torch.compile(frame.function, backend=backend, dynamic=False, fullgraph=True)
    try:
        with capturing(call):
            compiled(*args, **kwargs)
    except Exception as error:
        cause = original_error(error)
        if isinstance(cause, FxbucketError):
            raise cause from None
        if not isinstance(cause, _Captured):
            raise CaptureError(f"the model could not be captured as one graph: {cause}") from error
        program = cause.program
    else:
        raise CaptureError("the model holds no tensor operation, so there is no graph to capture.")
    return _checked(program, specs)


def _checked(program: Program, specs: Sequence[AxisSpec]) -> Program:
    names = {axis.name for axis in program.axes}
    for spec in specs:
        if spec.name not in names:
            expressions = [reading.expression for reading in spec.readings]
            raise AxisError(f"axis {spec.name!r} ({', '.join(expressions)}) is read by nothing in the graph; leave it out.")
        axis = program.capture.axis(spec.name)
        if axis.is_fixed:
            raise AxisError(
                f"axis {spec.name!r} was fixed to {axis.hint} by the capture: the model needs that number, or the example "
                f"has fewer than 2 rows there; give an example with 2 rows or more, or leave the axis out."
            )
    return program
