"""What a node of a captured graph does, as far as a cut must know it."""

from __future__ import annotations

import operator

import torch
from torch import fx

from fxbucket.passes.captured import value_of
from fxbucket.passes.opnames import op_names
from fxbucket.passes.symbolic import SYMBOLIC_TYPES

TRIVIAL_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "view_as", "transpose", "t", "permute", "unsqueeze", "squeeze", "expand", "expand_as", "flatten",
        "unflatten", "narrow", "select", "split", "chunk", "unbind", "size", "stride", "numel", "dim", "detach",
        "empty", "empty_like", "new_empty", "empty_strided", "movedim", "swapaxes", "diagonal", "unfold", "as_strided",
        "alias",
    )
)  # fmt: skip
"""Ops that move no data: a piece of nothing else is not worth a compilation."""

SHAPE_CHANGERS = frozenset(
    ("resize_", "set_", "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_", "resize_as_")
)
"""Methods that change a tensor's metadata in place."""


def is_item_of_container(node: fx.Node) -> bool:
    """Whether a node takes an item of a tuple, a list or a ``torch.Size``; it has no effect."""
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return isinstance(value_of(node.args[0]), (tuple, list))


def is_scalar_arithmetic(node: fx.Node) -> bool:
    """Whether a node computes a float or a bool from sizes alone.

    Compilers take no such input, so each piece that needs one computes it again.
    """
    if node.op == "placeholder" or not isinstance(value_of(node), (torch.SymFloat, torch.SymBool)):
        return False
    return not any(isinstance(value_of(source), torch.Tensor) for source in node.all_input_nodes)


def is_trivial(node: fx.Node) -> bool:
    """Whether a node moves no data: a view, an allocation, an item of a container, or size arithmetic."""
    if node.target is operator.getitem:
        source = value_of(node.args[0]) if isinstance(node.args[0], fx.Node) else None
        index = node.args[1]
        parts = index if isinstance(index, tuple) else (index,)
        basic = all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)
        return isinstance(source, (tuple, list)) or basic
    if isinstance(value_of(node), (int, *SYMBOLIC_TYPES)):
        return not any(isinstance(value_of(source), torch.Tensor) for source in node.all_input_nodes) or _is_size_query(node)
    return not op_names(node).isdisjoint(TRIVIAL_OPS)


def _is_size_query(node: fx.Node) -> bool:
    return not op_names(node).isdisjoint({"aten::size", "aten::stride", "aten::numel", "aten::dim", "aten::sym_size"})
