"""A program as plain data: dicts, lists, texts and numbers, ready for JSON."""

from __future__ import annotations

from typing import Any

from torch import fx

from fxbucket.passes.captured import Axis, value_of
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.text import Namer, axis_namer, condition_text, node_text, target_text, value_text


def program_data(program: Program, nodes: bool = True) -> dict[str, Any]:
    """Return a program as plain data.

    Args:
        program: before or after Split.
        nodes: list the nodes of each piece (of the graph, before Split) too, not only how many there are.

    Returns:
        ``bucket``, ``axes``, ``guards``, ``decisions``, ``pieces`` and ``returns``; before Split ``nodes`` in place of the
        last two. Sizes are texts, written by the names of the axes.
    """
    name = axis_namer(program.axes)
    found: dict[str, Any] = {
        "bucket": str(program.bucket) if program.bucket is not None else None,
        "axes": [_axis(axis, program) for axis in program.axes],
        "guards": [
            {"condition": condition_text(guard.condition, program.axes), "origin": guard.origin}
            for guard in program.capture.guards
        ],
        "decisions": [
            {"bucket": str(decision.bucket), "admitted": decision.admitted, "reason": decision.reason}
            for decision in program.decisions
        ],
    }
    if program.is_split:
        found["pieces"] = [piece_data(piece, name, nodes) for piece in program.pieces]
        found["returns"] = str(program.outputs)
    else:
        found |= _nodes(program.capture.module, name, nodes)
    return found


def piece_data(piece: Piece, name: Namer, nodes: bool = True) -> dict[str, Any]:
    """Return a piece as plain data; the arguments are those of :func:`program_data`, and what writes a size."""
    return {
        "name": piece.name,
        "kind": "boundary" if piece.is_boundary else "trivial" if piece.is_trivial else "compiled",
        "reason": str(piece.reason),
        "rule": piece.reason.rule,
        "inputs": list(piece.inputs),
        "outputs": list(piece.outputs),
        **_nodes(piece.module, name, nodes),
    }


def _axis(axis: Axis, program: Program) -> dict[str, Any]:
    return {
        "name": axis.name,
        "read_by": list(axis.expressions),
        "symbol": str(axis.expression),
        "range": str(program.range_of(axis)),
        "hint": axis.hint,
        "size": program.binding.get(axis.symbol) if axis.symbol is not None else None,
    }


def _nodes(module: fx.GraphModule, name: Namer, listed: bool) -> dict[str, Any]:
    nodes = list(module.graph.nodes)
    found: dict[str, Any] = {"num_nodes": sum(node.op not in ("placeholder", "output") for node in nodes)}
    if listed:
        found["nodes"] = [
            {
                "name": node.name,
                "op": node.op,
                "target": target_text(node),
                "code": node_text(node, name),
                "value": value_text(value_of(node), name),
                "reads": [source.name for source in node.all_input_nodes],
            }
            for node in nodes
        ]
    return found
