"""A model that torch captures as several graphs: hand on from one graph to the next which dims vary, and as which axis.

Between two graphs Python runs, and the second capture sees tensors that name no argument of the model. Without a word
from the first graph their sizes would be constants, and each new size another capture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fxbucket.passes.captured import value_of
from fxbucket.passes.program import Program, refs_in
from fxbucket.passes.symbolic import Expression, expression_of, symbols_in
from fxbucket.torch_compat import PROPAGATED_MARK

AXES_ATTRIBUTE = "_fxbucket_axes"
"""The attribute of a tensor between two graphs that names the axes of its dims."""


def hand_on(program: Program) -> Mapping[str, Callable[[Any], None]]:
    """Return, for each returned value with dims that vary, the action that marks it; empty where no graph follows."""
    if not program.capture.is_fragment:
        return {}
    names = {symbol: axis.name for axis in program.axes for symbol in axis.symbols}
    values = {node.name: value_of(node) for node in program.capture.module.graph.nodes}
    for piece in program.pieces:
        gives = next(node for node in piece.module.graph.nodes if node.op == "output").args[0]
        values |= {name: value_of(node) for name, node in zip(piece.outputs, gives, strict=True)}
    found = {}
    for name in dict.fromkeys(refs_in(program.outputs)):
        value = values.get(name)
        if isinstance(value, torch.Tensor):
            dims = {dim: size for dim, size in enumerate(value.shape) if symbols_in(size)}
            if dims:
                expressions = {dim: expression_of(size) for dim, size in dims.items()}
                found[name] = _marker(set(dims), {dim: names[e] for dim, e in expressions.items() if e in names})
    return found


def _marker(dims: set[int], axes: dict[int, str]) -> Callable[[Any], None]:
    def mark(tensor: Any) -> None:
        setattr(tensor, PROPAGATED_MARK, dims | getattr(tensor, PROPAGATED_MARK, set()))
        setattr(tensor, AXES_ATTRIBUTE, axes)

    return mark


def handed_on(real: Any, fake: Any) -> dict[str, Expression]:
    """Return the axes that an earlier graph of the same call named on a tensor, with what this capture calls them."""
    axes: Mapping[int, str] = getattr(real, AXES_ATTRIBUTE, {})
    if not axes or not isinstance(fake, torch.Tensor):
        return {}
    return {name: expression_of(fake.shape[dim]) for dim, name in axes.items() if dim < fake.dim()}
