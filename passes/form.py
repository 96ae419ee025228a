"""The form of a piece: all of it that reaches a compiler, and nothing that only names it.

Two pieces with one form are the same to a compiler: node names, attribute names, the identity of parameters and the order
in which the arguments happen to come do not count; ops, constants, argument structure, metadata of every value, shared
storage, and the switches under which the piece was captured do. A piece can be made again from its form
(:mod:`fxbucket.passes.recreate`), and compilers are given only what was made from it, so a form cannot leave anything out.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.passes.ambient import Ambient
from fxbucket.passes.buckets import Range
from fxbucket.passes.captured import value_of
from fxbucket.passes.kernel_calls import KernelCall, kernel_call
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, Number, expression_of, is_fake, symbols_in
from fxbucket.passes.tensors import TensorFacts
from fxbucket.passes.writes import holds_write

Encoded = tuple[Any, ...]
"""A value as a tag and its parts: nested tuples of numbers, texts, ``None`` and sympy expressions."""

SILENT_META = frozenset(
    {
        # What names a node, or tells people where it came from.
        "stack_trace", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "fwd_source_fn_stack", "torch_fn",
        "from_node", "original_aten", "seq_nr", "module_path", "_dynamo_source", "desc",
        # The value itself is encoded on its own.
        "example_value", "val", "tensor_meta", "unbacked_bindings", "grapharg", "tensor_dict",
    }
)  # fmt: skip
"""Keys of ``node.meta`` that say nothing to a compiler; every other key is part of the form."""


@dataclass(frozen=True)
class Form:
    """A piece up to names.

    Attributes:
        nodes: the graph, one entry a node.
        ambient: the global switches under which it was captured.
        symbols: ``(symbol, range, hint)`` of what is still symbolic; the hint of a value that only the data decides is
            ``None``.
        conditions: what the capture holds true of these symbols.
        constants: real tensors that the graph holds, by content.
        order: for each input of the form, its position among the piece's inputs.
        names: the names of the piece's nodes; they do not count.
        inner_names: the names of the nodes of higher-order ops' bodies; they do not count.
        locals: objects that have a meaning in this process only; they count by identity.
        local_reasons: what each of them is, for people.
        digest: a SHA-256 of all that counts, in hexadecimal.
    """

    nodes: tuple[Encoded, ...]
    ambient: Ambient
    symbols: tuple[tuple[sympy.Symbol, Range, Number | None], ...]
    conditions: tuple[sympy.Basic, ...]
    constants: tuple[torch.Tensor, ...]
    order: tuple[int, ...]
    names: tuple[str, ...]
    inner_names: tuple[tuple[str, ...], ...]
    locals: tuple[object, ...]
    local_reasons: tuple[str, ...]
    digest: str = field(compare=False)

    @property
    def is_portable(self) -> bool:
        """Whether the form means the same in another process."""
        return not self.locals

    @property
    def is_static(self) -> bool:
        """Whether every size is a number."""
        return not self.symbols


def form_of(piece: Piece, program: Program, by_use: bool = True) -> Form:
    """Return the form of one piece of a program.

    Args:
        piece: the piece.
        program: the program that it is in.
        by_use: put its inputs in the order in which they are first used, so that their own order does not count.
    """
    encoder = _Encoder(piece.module)
    nodes, order, names = encoder.graph(piece.module, by_use)
    found = encoder.symbols
    conditions = tuple(condition for condition in program.conditions if symbols_in(condition) <= found)
    ranges: dict[sympy.Symbol, Range] = {**program.ranges, **dict(program.capture.unbacked)}
    hints: dict[sympy.Symbol, Number] = {**program.capture.hints, **program.hints}
    symbols = tuple(
        (symbol, ranges.get(symbol, Range(0)), hints.get(symbol)) for symbol in sorted(found, key=lambda found: found.name)
    )
    ambient = program.capture.ambient
    counted = (nodes, _switches(ambient), [(symbol.name, str(bounds), hint) for symbol, bounds, hint in symbols])
    sha = hashlib.sha256(_text((*counted, conditions)).encode())
    for constant in encoder.constants:
        sha.update(_content(constant))
    for held in encoder.locals:
        sha.update(f"local {id(held)}".encode())
    return Form(
        nodes, ambient, symbols, conditions, tuple(encoder.constants), order, names,
        tuple(encoder.inner_names), tuple(encoder.locals), tuple(encoder.local_reasons), sha.hexdigest(),
    )  # fmt: skip


def _switches(ambient: Ambient) -> Encoded:
    autocast = tuple((setting.device, setting.enabled, str(setting.dtype)) for setting in ambient.autocast)
    return ("ambient", ambient.grad_enabled, autocast, str(ambient.default_dtype), *ambient.deterministic)


def _content(tensor: torch.Tensor) -> bytes:
    described = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device} {tensor.requires_grad}"
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return described.encode() + flat.view(torch.uint8).numpy().tobytes()


class _Encoder:
    """Encodes the graphs of one piece; storages, symbols and constants are counted over all of them."""

    def __init__(self, root: fx.GraphModule) -> None:
        self.constants: list[torch.Tensor] = []
        self.locals: list[object] = []
        self.local_reasons: list[str] = []
        self.symbols: frozenset[sympy.Symbol] = frozenset()
        self.inner_names: list[tuple[str, ...]] = []
        self._storages: dict[int, int] = {}
        self._writes = holds_write(root)

    def graph(self, module: fx.GraphModule, by_use: bool) -> tuple[tuple[Encoded, ...], tuple[int, ...], tuple[str, ...]]:
        """Return a graph's nodes, the order of its inputs, and the nodes' names.

        Args:
            module: the graph.
            by_use: put the inputs in the order in which they are first used.
        """
        nodes = list(module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        order = input_order(module) if by_use else tuple(range(len(inputs)))
        sequence = [*(inputs[position] for position in order), *(node for node in nodes if node.op != "placeholder")]
        numbers = {node: number for number, node in enumerate(sequence)}
        names = tuple(node.name for node in sequence)
        return tuple(self._node(node, module, numbers) for node in sequence), order, names

    def _node(self, node: fx.Node, module: fx.GraphModule, numbers: Mapping[fx.Node, int]) -> Encoded:
        meta = tuple((key, self.value(node.meta[key], numbers)) for key in sorted(node.meta) if key not in SILENT_META)
        target: Encoded
        if node.op == "get_attr":
            target = self._attribute(module, str(node.target))
        elif node.op in ("placeholder", "output"):
            target = (node.op,)
        elif node.op == "call_module":
            target = self._local(module.get_submodule(str(node.target)), f"calls the module {node.target}")
        else:
            target = self.value(node.target, numbers)
        kernel = kernel_call(node)
        if kernel is not None:
            return (node.op, target, *self._kernel(kernel, numbers), meta)
        args, kwargs = self.value(node.args, numbers), self.value(dict(node.kwargs), numbers)
        key = "example_value" if "example_value" in node.meta else "val" if "val" in node.meta else ""
        return (node.op, target, args, kwargs, key, self.value(value_of(node), numbers), meta)

    def _kernel(self, call: KernelCall, numbers: Mapping[fx.Node, int]) -> Encoded:
        """Return a call of a Triton kernel by what its numbers stand for, so that equal calls are equal.

        The table counts too: what was compiled may look the numbers up when it runs, and after a reset they are others'.
        """
        kernel = self._local(call.kernel, f"calls the Triton kernel {call.name}, which only this process knows")
        table = self._local(call.table, "finds it by a number of this process")
        rest = (dict(call.constants), call.grid, dict(call.arguments), dict(call.settings))
        return (kernel, table, *(self.value(part, numbers) for part in rest))

    def _attribute(self, module: fx.GraphModule, path: str) -> Encoded:
        held: Any = module
        for name in path.split("."):
            held = getattr(held, name)
        if isinstance(held, fx.GraphModule):
            nodes, _, names = self.graph(held, by_use=False)
            self.inner_names.append(names)
            return ("graph", len(self.inner_names) - 1, nodes)
        if isinstance(held, torch.Tensor):
            plain = type(held) is torch.Tensor and held.layout is torch.strided and not held.requires_grad
            if is_fake(held) or not plain or self._writes or held.is_quantized:
                # A constant that is written to is state: its identity is what counts.
                return self._local(held, f"holds the tensor {path}")
            self.constants.append(held)
            return ("constant", len(self.constants) - 1)
        return self._local(held, f"holds {path}, a {type(held).__name__}")

    def value(self, value: Any, numbers: Mapping[fx.Node, int]) -> Encoded:
        """Return any argument, target or metadata value in encoded form."""
        if isinstance(value, fx.Node):
            return ("node", numbers[value])
        if value is None or (isinstance(value, (bool, int, str)) and type(value) in (bool, int, str)):
            return (type(value).__name__, value)
        if type(value) is float:
            return ("float", value.hex())
        if type(value) is complex:
            return ("complex", value.real.hex(), value.imag.hex())
        if isinstance(value, SYMBOLIC_TYPES):
            return self._expression(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, numbers)
        if isinstance(value, torch.Size):
            return ("size", *(self.value(item, numbers) for item in value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kind = self.value(type(value), numbers)
            return ("named tuple", kind, *(self.value(item, numbers) for item in value))
        if isinstance(value, (tuple, list)):
            return ("list" if isinstance(value, list) else "tuple", *(self.value(item, numbers) for item in value))
        if isinstance(value, Mapping):
            return ("dict", *((self.value(key, numbers), self.value(item, numbers)) for key, item in value.items()))
        if isinstance(value, slice):
            return ("slice", *(self.value(part, numbers) for part in (value.start, value.stop, value.step)))
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return ("torch", str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return ("device", str(value))
        if value is Ellipsis:
            return ("ellipsis",)
        if isinstance(value, enum.Enum):
            return ("enum", self.value(type(value), numbers), value.name)
        if isinstance(value, sympy.Basic):
            self.symbols |= symbols_in(value)
            return ("expression", value)
        return self._named(value)

    def _named(self, value: Any) -> Encoded:
        """Return an op, function or class under the name by which any process finds it."""
        if isinstance(value, torch._ops.OpOverload):
            return ("overload", value.namespace, value._opname, value._overloadname)
        if isinstance(value, torch._ops.OpOverloadPacket):
            return ("packet", *value._qualified_op_name.split("::"))
        if isinstance(value, torch._ops.HigherOrderOperator):
            name = value.name()
            if name in _PORTABLE_HIGHER_ORDER:
                return ("higher order", name)
            return self._local(value, f"holds the higher-order op {name}, whose arguments may point into this process")
        home = getattr(value, "__module__", None)
        paths = (getattr(value, "__qualname__", None), getattr(value, "__name__", None))
        for place in (home, *_HOMES):
            for path in paths:
                if place and path and _is_library(place) and _found(place, path) is value:
                    return ("name", place, path)
        return self._local(value, f"holds {value!r}, which only this process knows")

    def _local(self, value: object, reason: str) -> Encoded:
        for number, held in enumerate(self.locals):
            if held is value:
                return ("local", number)
        self.locals.append(value)
        self.local_reasons.append(reason[:200])
        return ("local", len(self.locals) - 1)

    def _expression(self, value: Any) -> Encoded:
        expression = expression_of(value)
        self.symbols |= symbols_in(expression)
        return ("symbolic", type(value).__name__, expression)

    def _tensor(self, tensor: torch.Tensor, numbers: Mapping[fx.Node, int]) -> Encoded:
        plain = is_fake(tensor) or isinstance(tensor, torch.nn.Parameter)
        if not plain or tensor.layout is not torch.strided or tensor.is_quantized:
            return self._local(tensor, f"holds a {type(tensor).__name__} of layout {tensor.layout}")
        storage = tensor.untyped_storage()
        place = self._storages.setdefault(storage._cdata, len(self._storages))
        described = tuple(self.value(part, numbers) for part in _fields(TensorFacts.of(tensor)))
        return ("tensor", place, self.value(storage.nbytes(), numbers), *described)


def _fields(facts: TensorFacts) -> tuple[Any, ...]:
    return tuple(getattr(facts, item.name) for item in fields(facts))


def input_order(module: fx.GraphModule) -> tuple[int, ...]:
    """Return the positions of a piece's inputs in the order in which they are first used; unused ones come last."""
    nodes = list(module.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    read = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source.op == "placeholder")
    places = {node: place for place, node in enumerate(read)}
    return tuple(sorted(range(len(inputs)), key=lambda position: places.get(inputs[position], len(inputs))))


_PORTABLE_HIGHER_ORDER = frozenset(
    {
        "autograd_function_apply", "cond", "flex_attention", "map_impl", "scan", "tag_activation_checkpoint", "while_loop",
        "wrap", "wrap_activation_checkpoint", "wrap_with_set_grad_enabled", "wrap_with_autocast",
    }
)  # fmt: skip
"""Higher-order ops whose arguments are graphs and plain values; others may hold numbers of tables in this process."""

_HOMES = ("torch", "torch.nn.functional", "_operator", "operator", "math", "builtins")
"""Where functions are found whose ``__module__`` is missing or wrong."""

_LIBRARIES = frozenset({"torch", "_operator", "operator", "math", "builtins", "functools", "sympy"})
"""Packages whose functions mean the same in every process with the same torch and Python."""


def _is_library(home: str) -> bool:
    return home.split(".", 1)[0] in _LIBRARIES


def _found(home: str, path: str) -> object:
    try:
        held: Any = importlib.import_module(home)
        for name in path.split("."):
            held = getattr(held, name)
    except (ImportError, AttributeError):
        return None
    return held


def _text(encoded: Any) -> str:
    """Return encoded values as one text, different for different values."""
    if isinstance(encoded, (tuple, list)):
        return f"({','.join(map(_text, encoded))})"
    if isinstance(encoded, sympy.Basic):
        return f"<{sympy.srepr(encoded)}>"
    return repr(encoded)
