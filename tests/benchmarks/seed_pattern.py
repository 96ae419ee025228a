"""The seed pattern: what a piecewise engine does without fxbucket, written as tightly as that pattern can be.

One capture with a symbolic size; ``split_module`` at attention; in the place of each compiled piece an object that looks the
size up in a dict of its own and calls the artifact that Inductor made for it; a function of FX calls one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor import standalone_compile  # noqa: TID251  # what such an engine compiles with
from torch.fx.passes.split_module import split_module


class Piece:
    """One piece: an artifact for each size, compiled at the size's first call."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.artifacts: dict[int, Callable[..., Any]] = {}
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        is_size = [isinstance(node.meta["example_value"], torch.SymInt) for node in placeholders]
        self.position = is_size.index(True)

    def __call__(self, *args: Any) -> Any:
        """Run the artifact for the size that is among the arguments."""
        found = self.artifacts.get(args[self.position])
        if found is None:
            found = self.artifacts[args[self.position]] = standalone_compile(
                self.module, list(args), dynamic_shapes="from_example_inputs", options={}
            )
        return found(*args)


def seed_backend(op: torch._ops.OpOverloadPacket) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """Return a backend of torch.compile that cuts at calls of an op."""

    def backend(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        places: dict[fx.Node, int] = {}
        place = 0
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            is_boundary = node.target in (op, *(getattr(op, name) for name in op.overloads()))
            place += is_boundary
            places[node] = place
            place += is_boundary
        split = split_module(module, None, places.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
        boundaries = {f"submod_{places[node]}" for node in places if node.target in (op, op.default)}
        for name, piece in list(split.named_children()):
            delattr(split, name)
            # Past nn.Module's own attributes and call, which would cost the pattern more.
            split.__dict__[name] = piece.forward if name in boundaries else Piece(piece)
        return split.forward

    return backend
