"""A program as text that people read: every piece as code, with shapes beside each line."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping

import sympy
import torch
from torch import fx

from fxbucket.passes.captured import Axis, value_of
from fxbucket.passes.conditions import python_condition
from fxbucket.passes.kernel_calls import KernelCall, kernel_call
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, Expression, expression_of, symbols_in

DTYPE_NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip

Namer = Callable[[object], str]
"""Turns a size or an expression into text."""


def axis_namer(axes: tuple[Axis, ...]) -> Namer:
    """Return a function that writes sizes by axis names (``2*tokens + 1``) instead of torch's symbols.

    An axis whose name is not an identifier keeps its expression (``x.shape[0]``).
    """
    names = {symbol: sympy.Symbol(axis.name, integer=True) for axis in axes for symbol in axis.symbols}
    # A graph holds few distinct sizes many times, and sympy takes long to write one.
    written: dict[sympy.Basic, str] = {}

    def name(size: object) -> str:
        expression = expression_of(size) if isinstance(size, SYMBOLIC_TYPES) else size
        if not isinstance(expression, sympy.Basic):
            return str(expression)
        if expression not in written:
            written[expression] = str(expression.xreplace({s: names[s] for s in symbols_in(expression) if s in names}))
        return written[expression]

    return name


def condition_text(condition: object, axes: tuple[Axis, ...]) -> str:
    """Return a guard as Python over axis names: ``tokens % 8 == 0``."""
    if not isinstance(condition, sympy.Basic):
        return str(condition)
    names = {symbol: sympy.Symbol(axis.name, integer=True) for axis in axes for symbol in axis.symbols}
    return python_condition(condition.xreplace({s: names[s] for s in symbols_in(condition) if s in names}))


def plain_namer(size: object) -> str:
    """Write a size with torch's own symbols."""
    return str(expression_of(size)) if isinstance(size, SYMBOLIC_TYPES) else str(size)


def value_text(value: object, name: Namer = plain_namer) -> str:
    """Return a short text for a value's metadata: ``f32[512, 64]``, with strides where they are not contiguous."""
    if isinstance(value, torch.Tensor):
        dtype = DTYPE_NAMES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        text = f"{dtype}[{', '.join(name(size) for size in value.shape)}]"
        if value.layout is torch.strided:
            strides = [name(stride) for stride in value.stride()]
            if strides != _contiguous_strides(value, name):
                text += f" strides [{', '.join(strides)}]"
            offset = name(value.storage_offset())
            if offset != "0":
                text += f" offset {offset}"
        else:
            text += f" {str(value.layout).removeprefix('torch.')}"
        if value.device.type != "cpu":
            text += f" {value.device}"
        if value.requires_grad:
            text += " grad"
        return text
    if isinstance(value, SYMBOLIC_TYPES):
        return f"{type(value).__name__.removeprefix('Sym').lower()} {name(value)}"
    if isinstance(value, torch.Size):
        return f"Size[{', '.join(name(size) for size in value)}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(value_text(item, name) for item in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {value_text(item, name)}' for key, item in value.items())}}}"
    if isinstance(value, (int, float, bool)):
        return f"{type(value).__name__} {value}"
    return "" if value is None else type(value).__name__


def _contiguous_strides(tensor: torch.Tensor, name: Namer) -> list[str]:
    expected: list[str] = []
    running: Expression = 1
    for size in reversed(tensor.shape):
        expected.append(name(running))
        length = expression_of(size)
        # A row of length 0 or 1 counts as 1 in torch's own contiguous strides.
        running = running * (max(length, 1) if isinstance(length, int) else length)
    return expected[::-1]


def target_text(node: fx.Node) -> str:
    """Return the name of what a node calls, as a person would write it."""
    if node.op == "call_function":
        target = node.target
        if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return str(target)
        if isinstance(target, torch._ops.HigherOrderOperator):
            kernel = kernel_call(node)
            if kernel is not None:
                return f"triton.{kernel.name}"
            return f"higher_order.{target.name()}"
        module = getattr(target, "__module__", None) or ""
        module = {"_operator": "operator", "torch._C._nn": "torch.nn.functional"}.get(module, module)
        called = getattr(target, "__name__", str(target))
        if not module and getattr(torch, called, None) is target:
            module = "torch"
        return f"{module}.{called}" if module else called
    return str(node.target)


def node_text(node: fx.Node, name: Namer = plain_namer) -> str:
    """Return one line of code for a node, without its comment."""
    if node.op == "placeholder":
        return f"{node.name} = input"
    if node.op == "output":
        return f"return {argument_text(node.args[0], name)}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    kernel = kernel_call(node)
    if kernel is not None:
        return f"{node.name} = {target_text(node)}{_launch_text(kernel, name)}"
    positional = [argument_text(argument, name) for argument in node.args]
    if node.op == "call_method":
        head = f"{positional[0]}.{node.target}"
        positional = positional[1:]
    else:
        head = target_text(node)
    keywords = [f"{key}={argument_text(value, name)}" for key, value in node.kwargs.items()]
    return f"{node.name} = {head}({', '.join([*positional, *keywords])})"


def _launch_text(call: KernelCall, name: Namer) -> str:
    """Return the grid of a Triton kernel and its arguments, as a person would write them: ``[(4, 1, 1)](x=x, BLOCK=16)``."""
    grids = list(call.grid)
    grid = argument_text(grids[0] if len(grids) == 1 else grids, name)
    # Which of the arguments were given by name (torch 2.14) says nothing more to people.
    settings = {key: held for key, held in call.settings.items() if held and key != "launch_kwargs"}
    given = {**call.arguments, **call.constants, **settings}
    return f"[{grid}]({', '.join(f'{key}={argument_text(value, name)}' for key, value in given.items())})"


def argument_text(argument: object, name: Namer = plain_namer) -> str:
    """Return a node's argument as code: other nodes by name, sizes by ``name``, tensors by their metadata."""
    if isinstance(argument, fx.Node):
        return argument.name
    if isinstance(argument, SYMBOLIC_TYPES):
        return name(argument)
    if isinstance(argument, torch.Size):
        return f"Size([{', '.join(argument_text(item, name) for item in argument)}])"
    if isinstance(argument, tuple):
        inner = ", ".join(argument_text(item, name) for item in argument)
        return f"({inner},)" if len(argument) == 1 else f"({inner})"
    if isinstance(argument, list):
        return f"[{', '.join(argument_text(item, name) for item in argument)}]"
    if isinstance(argument, dict):
        return f"{{{', '.join(f'{key!r}: {argument_text(item, name)}' for key, item in argument.items())}}}"
    if isinstance(argument, slice):
        return f"slice({', '.join(argument_text(part, name) for part in (argument.start, argument.stop, argument.step))})"
    if isinstance(argument, torch.Tensor):
        return f"<{value_text(argument, name)}>"
    return repr(argument)


def _lines(nodes: list[tuple[str, str]], indent: str) -> str:
    width = min(88, max((len(code) for code, _ in nodes), default=0))
    return "\n".join(
        f"{indent}{code:<{width}}  # {comment}".rstrip() if comment else indent + code for code, comment in nodes
    )


def graph_text(module: fx.GraphModule, name: Namer = plain_namer, indent: str = "    ") -> str:
    """Return a graph as aligned lines of code with each value's metadata as a comment; nested graphs follow indented."""
    lines = [(node_text(node, name), value_text(value_of(node), name)) for node in module.graph.nodes]
    text = _lines(lines, indent)
    for node in module.graph.nodes:
        if node.op == "get_attr":
            nested = getattr(module, str(node.target), None)
            if isinstance(nested, fx.GraphModule):
                text += f"\n{indent}where self.{node.target}:\n{graph_text(nested, name, indent + '    ')}"
    return text


def piece_text(piece: Piece, name: Namer | None = None, like: str = "") -> str:
    """Return a piece: its name and reason, then its code with shapes beside each line, sizes by the names of its axes.

    Args:
        piece: the piece.
        name: how symbols are written; by the piece's axes where it is not given.
        like: a piece whose very graph this one runs, which is named in the place of the code.
    """
    kind = "boundary, runs as it is" if piece.is_boundary else "nothing to compile" if piece.is_trivial else "compiled"
    head = f"{piece.name} ({kind}): {piece.reason}"
    if like:
        return f"{head}\n    ({', '.join(piece.outputs)}) = {like}({', '.join(piece.inputs)})"
    return f"{head}\n{graph_text(piece.module, name or axis_namer(piece.axes))}"


def notebook_text(text: str) -> str:
    """Return a text as HTML that a notebook shows as it is, without breaking its lines."""
    return f'<pre style="white-space: pre; overflow-x: auto; line-height: 1.3">{html.escape(text)}</pre>'


def program_text(program: Program) -> str:
    """Return the whole program: axes, buckets, then every piece with symbolic sizes written by axis name."""
    name = axis_namer(program.axes)
    lines = ["program" + (f" for {program.bucket}" if program.bucket is not None else "")]
    for axis in program.axes:
        if axis.is_fixed:
            state = f"fixed at {axis.hint}"
        elif axis.symbol is None:
            state = f"= {name(axis.expression)}"
        elif axis.symbol in program.binding:
            state = f"= {program.binding[axis.symbol]}"
        else:
            state = f"in {program.range_of(axis)}"
        lines.append(f"  axis {axis.name} {state}")
    lines += [f"  guard {condition_text(guard.condition, program.axes)}" for guard in program.capture.guards]
    for decision in program.decisions:
        lines.append(f"  bucket {decision.bucket}: {'admitted' if decision.admitted else 'refused: ' + decision.reason}")
    if not program.is_split:
        lines.append(graph_text(program.capture.module, name))
    graphs: dict[int, str] = {}
    for piece in program.pieces:
        first = graphs.setdefault(id(piece.module), piece.name)
        lines.append(piece_text(piece, name, "" if first == piece.name else first))
    if program.is_split:
        lines.append(f"returns {program.outputs}")
    return "\n".join(lines)
