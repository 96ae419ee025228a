"""The line of a bucket's function that runs one piece, by the shortest way that is right for its artifact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fxbucket.artifact import Artifact
from fxbucket.passes.captured import value_of
from fxbucket.passes.program import Piece, Program
from fxbucket.torch_compat import guards_tensors_of_modules


def piece_line(
    program: Program, piece: Piece, artifact: Artifact, runner: str, namespace: dict[str, Any], debug: bool
) -> str:
    """Return the line of Python that runs a piece, and put what it calls into the namespace.

    Args:
        program: what the piece is of.
        piece: the piece.
        artifact: what runs it.
        runner: the name for what is called.
        namespace: the globals of the line.
        debug: whether the artifact is called as it is.
    """
    targets = f"({', '.join(piece.outputs)},) = " if piece.outputs else ""
    given = ", ".join(artifact.inputs)
    namespace[runner] = artifact.call
    if debug:
        return f"{targets}{runner}({given})"
    node = _only_op(piece, artifact)
    if node is not None:
        namespace[runner] = _overload(node.target)
        names = dict(
            zip([item.name for item in piece.module.graph.nodes if item.op == "placeholder"], piece.inputs, strict=True)
        )
        arguments = [_argument(item, names) for item in node.args]
        arguments += [f"{name}={_argument(item, names)}" for name, item in node.kwargs.items()]
        return f"{piece.outputs[0]} = {runner}({', '.join(arguments)})"
    direct = artifact.direct
    if direct is None or _records_gradients(program, piece):
        return f"{targets}{runner}({given})"
    unchecked = None if program.open_symbols else direct.unchecked(_checked(program, artifact))
    if unchecked is not None:
        namespace[runner] = _first(artifact.call, runner, namespace, unchecked)
        return f"{targets}{runner}({given})"
    namespace[runner] = _first(lambda inputs: artifact.call(*inputs), runner, namespace, direct.call)
    return f"{targets}{runner}([{given}])"


def _first(
    call: Callable[..., Any], runner: str, namespace: dict[str, Any], direct: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what makes a piece's first call by its artifact as it is, and then puts the short way in its own place."""

    def first(*inputs: Any) -> Any:
        outputs = call(*inputs)
        namespace[runner] = direct
        return outputs

    return first


def _records_gradients(program: Program, piece: Piece) -> bool:
    """Whether autograd would look at what the piece does, if nothing kept it from that."""
    if not program.capture.ambient.grad_enabled:
        return False
    values = [value_of(node) for node in piece.module.graph.nodes if node.op == "placeholder"]
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _checked(program: Program, artifact: Artifact) -> set[int]:
    """Return which inputs' sizes and strides nothing vouches for.

    The look-up and Dynamo's guards settle those of arguments, and the compiler those of what its own pieces return. What an
    op that runs as it is returns may have other strides than the op said during the capture.
    """
    open_names = {name for piece in program.pieces if not piece.is_compiled for name in piece.outputs}
    if not guards_tensors_of_modules():
        open_names |= {held.name for held in program.capture.placeholders if held.role != "input"}
    return {position for position, name in enumerate(artifact.inputs) if name in open_names}


def _only_op(piece: Piece, artifact: Artifact) -> fx.Node | None:
    """Return the call that is all of a piece that runs as it is, where it can be written as one line of Python."""
    if getattr(artifact.call, "__self__", None) is not piece.module:
        return None
    body = piece.body
    (output,) = [node for node in piece.module.graph.nodes if node.op == "output"]
    if len(body) != 1 or body[0].op != "call_function" or output.args[0] not in ((body[0],), [body[0]]):
        return None
    (node,) = body
    given = [*node.args, *node.kwargs.values()]
    return node if all(item is None or type(item) in (bool, int, str, fx.Node) for item in given) else None


def _overload(op: Any) -> Any:
    """Return an op's only overload, so that no call looks for one; anything else as it is."""
    names: list[str] = op.overloads() if isinstance(op, torch._ops.OpOverloadPacket) else []
    return getattr(op, names[0]) if len(names) == 1 else op


def _argument(item: Any, names: dict[str, str]) -> str:
    return names[item.name] if isinstance(item, fx.Node) else repr(item)
