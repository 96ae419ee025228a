"""A pass of your own: leave out a view that the next one takes back, alone in a pipeline and in a compiled model.

A pass is a frozen dataclass whose fields are its options. It takes a program and gives another; it never changes the one
that it was given, and what a person should know of its work goes into the trail.

Prints (``...`` stands for lines left out here):

    before
    ...
    piece_0 (compiled): what is left between cuts
    ...
        l_x_ = input                               # f32[tokens, 4]
        l_weight_ = input                          # f32[4, 4]
        columns = l_x_.transpose(0, 1)             # f32[4, tokens] strides [1, 4]
        rows = columns.transpose(0, 1)             # f32[tokens, 4]
        matmul = operator.matmul(rows, l_weight_)  # f32[tokens, 4]
        return (matmul,)
    ...
    after, for 8 tokens
    ...
    piece_0 (compiled): what is left between cuts
        l_x_ = input                               # f32[8, 4]
        l_weight_ = input                          # f32[4, 4]
        matmul = operator.matmul(l_x_, l_weight_)  # f32[8, 4]
        return (matmul,)
    ...
    trail
    ...
    DropUndoneViews(aten::t, aten::transpose): 3 → 3 pieces, changed
        piece_0: left out rows, columns
    ...
    compiled: equal to eager, 3 nodes
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

import fxbucket
from fxbucket.passes import Concretize, Discover, Piece, Pipeline, Program, Split, Verify, at_op
from fxbucket.passes.errors import PreconditionError
from fxbucket.passes.opnames import op_names
from fxbucket.passes.program import Finding


@dataclass(frozen=True)
class DropUndoneViews:
    """Leave out two views in a row of which the second takes back the first.

    Before: ``x.transpose(0, 1).transpose(0, 1) @ w``. After: ``x @ w``.

    Attributes:
        views: ops that give their argument back when they are applied twice.
    """

    views: frozenset[str] = frozenset({"aten::t", "aten::transpose"})
    name: ClassVar[str] = "drop_undone_views"

    def requires(self, program: Program) -> None:
        """Raise where there are no pieces to rewrite; the pipeline asks before it runs the pass."""
        if not program.pieces:
            raise PreconditionError(f"{self.name}: the program has no pieces; run Split first.")

    def run(self, program: Program) -> Program:
        """Return the program with every piece rewritten."""
        rewritten = [self._rewritten(piece) for piece in program.pieces]
        findings = [Finding(piece.name, f"left out {', '.join(dropped)}") for piece, dropped in rewritten if dropped]
        return replace(program, pieces=tuple(piece for piece, _ in rewritten)).with_findings(*findings)

    def _rewritten(self, piece: Piece) -> tuple[Piece, list[str]]:
        """Return the piece without undone views, and the names of the nodes that it lost."""
        # The graph belongs to the program that was given, so the pass works on a copy.
        graph = fx.Graph()
        graph.output(graph.graph_copy(piece.module.graph, {}))
        dropped = []
        for second in graph.nodes:
            first = second.args[0] if second.args else None
            if isinstance(first, fx.Node) and self._undoes(second, first):
                second.replace_all_uses_with(first.all_input_nodes[0])
                for node in (second, first):
                    if not node.users:
                        graph.erase_node(node)
                        dropped.append(node.name)
        return replace(piece, module=fx.GraphModule(piece.module, graph)), dropped

    def _undoes(self, second: fx.Node, first: fx.Node) -> bool:
        same = second.target == first.target and second.args[1:] == first.args[1:] and second.kwargs == first.kwargs
        return same and not self.views.isdisjoint(op_names(second))

    def __str__(self) -> str:
        return f"DropUndoneViews({', '.join(sorted(self.views))})"


def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    columns = x.transpose(0, 1)
    rows = columns.transpose(0, 1)
    return torch.sigmoid(rows @ weight) * 2


def main() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(6, 4), torch.randn(4, 4)
    program = fxbucket.capture(model, x, weight, axes={"tokens": "x.shape[0]"})

    split = Pipeline([Split(at_op("aten::sigmoid"))])(program)
    print("before", split, sep="\n", end="\n\n")

    pipeline = Pipeline([DropUndoneViews(), Discover(), Concretize({"tokens": 8}), Verify()])
    concrete = pipeline(split)
    print("after, for 8 tokens", concrete, sep="\n", end="\n\n")
    print("trail", *concrete.trail, sep="\n", end="\n\n")

    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [8]}, passes=[DropUndoneViews()])
    x = torch.randn(8, 4)
    torch.testing.assert_close(compiled(x, weight), model(x, weight))
    (graph,) = compiled.explain().graphs
    print(f"compiled: equal to eager, {sum(piece.num_nodes for piece in graph.pieces)} nodes")


if __name__ == "__main__":
    main()
