"""Whether the ops that run uncompiled can be differentiated, where gradients are recorded for what they give."""

from __future__ import annotations

from fxbucket.custom_ops import overloads_of
from fxbucket.passes.captured import tensors_in, value_of
from fxbucket.passes.errors import GradientError
from fxbucket.passes.program import Program
from fxbucket.torch_compat import lacks_backward


def check_backward(program: Program) -> None:
    """Raise :class:`GradientError` for the first op of a boundary that has no backward and would need one.

    Compilers make the backward of what they compile at once, and so find such an op in any other piece themselves.
    """
    for piece in program.pieces:
        if piece.is_compiled:
            continue
        for node in piece.body:
            for op in overloads_of(node.target):
                if lacks_backward(op) and any(tensor.requires_grad for tensor in tensors_in(value_of(node))):
                    name = f"{op.namespace}::{op._opname}"
                    raise GradientError(
                        f"{piece.name}: op {name} has no autograd formula, and gradients are recorded for what it gives "
                        f"({node.name}); add one with torch.library.register_autograd({name!r}, ...), or call the model "
                        f"under torch.no_grad()."
                    )
