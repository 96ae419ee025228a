"""A program or a piece → a sketch: which boxes there are, what they say, and which values go between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from fxbucket.passes.captured import Placeholder, value_of
from fxbucket.passes.errors import OptionError
from fxbucket.passes.program import Piece, Program, refs_in
from fxbucket.passes.symbolic import SYMBOLIC_TYPES
from fxbucket.passes.text import axis_namer, node_text
from fxbucket.visualize.labels import mangled_text, returns_text, shorten, source_text, without_addresses
from fxbucket.visualize.nodes import Drawer, Origin
from fxbucket.visualize.sketch import Box, Cluster, ClusterRole, Role, Sketch
from fxbucket.visualize.spread import spread_arguments


def sketch_of(subject: Program | Piece, *, fold_parameters: bool = True, source_links: bool = True) -> Sketch:
    """Return the drawing of a program or a piece, every node of it; an argument that many boxes read is drawn by each.

    Args:
        subject: a program before or after Split, or one piece.
        fold_parameters: write parameters, buffers and attributes into the ops that read them; else each has a box.
        source_links: link each op to its source line; else tooltips name the file alone, and no path of this machine.

    Raises:
        OptionError: the subject is neither a program nor a piece.
    """
    if isinstance(subject, Piece):
        return spread_arguments(_sketch_of_piece(subject, Drawer(axis_namer(subject.axes), fold_parameters, source_links)))
    if isinstance(subject, Program):
        drawer = Drawer(axis_namer(subject.axes), fold_parameters, source_links)
        return spread_arguments(
            _sketch_of_pieces(subject, drawer) if subject.pieces else _sketch_of_capture(subject, drawer)
        )
    raise OptionError(
        f"a {type(subject).__name__} cannot be drawn; give a Program (fxbucket.capture makes one) or one of its pieces."
    )


def _sketch_of_capture(program: Program, drawer: Drawer) -> Sketch:
    module = program.capture.module
    arguments, values = _arguments(program, drawer)
    body, origins = drawer.body(module, values, "", "op")
    boxes = [*arguments, *body, _graph_output(_output_of(module), origins, drawer)]
    return Sketch("program, not split", facts_of(program, len(body)), tuple(boxes), tuple(drawer.arrows))


def _sketch_of_pieces(program: Program, drawer: Drawer) -> Sketch:
    arguments, values = _arguments(program, drawer)
    clusters = []
    for piece in program.pieces:
        cluster, given = _cluster(piece, values, drawer, f" · for {program.bucket}" if program.bucket is not None else "")
        clusters.append(cluster)
        values.update(given)
    key = _output_of(program.capture.module).name
    returned = [values[name] for name in dict.fromkeys(refs_in(program.outputs))]
    output = drawer.output(key, returned, returns_text(program.outputs))
    num_nodes = sum(len(cluster.members) for cluster in clusters)
    return Sketch("program", facts_of(program, num_nodes), (*arguments, *clusters, output), tuple(drawer.arrows))


def _sketch_of_piece(piece: Piece, drawer: Drawer) -> Sketch:
    output = _output_of(piece.module)
    arguments: list[Box] = []
    values: dict[str, Origin] = {}
    for name, node in zip(piece.inputs, _placeholders(piece.module), strict=True):
        value = value_of(node)
        role: Role = "symbol" if isinstance(value, SYMBOLIC_TYPES) else "input"
        if isinstance(value, torch.nn.Parameter):
            role = "parameter"
        box, values[name] = drawer.argument(node, mangled_text(name), role, output in node.users)
        arguments += [box] if box is not None else []
    cluster, given = _cluster(piece, values, drawer)
    origins = {node: given[name] for name, node in zip(piece.outputs, _returned(output), strict=True)}
    end = _graph_output(output, origins, drawer)
    return Sketch("", (), (*arguments, cluster, end), tuple(drawer.arrows))


def _graph_output(output: fx.Node, origins: Mapping[fx.Node, Origin], drawer: Drawer) -> Box:
    returned = [origins[node] for node in output.all_input_nodes]
    return drawer.output(output.name, returned, node_text(output).removeprefix("return "))


def arguments_of(program: Program) -> list[tuple[Placeholder, fx.Node]]:
    """Return the call's arguments, each with the node that says what it is.

    Before Split these are all arguments; after it, those that a piece reads or the call returns. The node is that of the
    first piece that reads the argument: what a pass wrote there is newer than the capture.
    """
    nodes = {node.name: node for node in _placeholders(program.capture.module)}
    known = {placeholder.name: placeholder for placeholder in program.capture.placeholders}
    if program.pieces:
        read: dict[str, fx.Node] = {}
        for piece in program.pieces:
            for name, node in zip(piece.inputs, _placeholders(piece.module), strict=True):
                read.setdefault(name, node)
        returned = set(refs_in(program.outputs))
        nodes = {name: read.get(name, node) for name, node in nodes.items() if name in read or name in returned}
    return [
        (known.get(name) or Placeholder(index, name, "", "input"), node) for index, (name, node) in enumerate(nodes.items())
    ]


def _arguments(program: Program, drawer: Drawer) -> tuple[list[Box], dict[str, Origin]]:
    """Return the boxes and the values of the call's arguments."""
    output = _output_of(program.capture.module)
    returned = set(refs_in(program.outputs)) if program.pieces else {node.name for node in output.all_input_nodes}
    boxes: list[Box] = []
    values: dict[str, Origin] = {}
    for placeholder, node in arguments_of(program):
        name = placeholder.name
        role: Role = "parameter" if placeholder.role == "buffer" else placeholder.role
        title = source_text(placeholder.source) or name
        box, values[name] = drawer.argument(node, title, role, name in returned)
        if box is not None:
            # Pieces may name the placeholder as they like; the program's own name is the one that refers to it.
            boxes.append(replace(box, key=name, name=name))
            values[name] = replace(values[name], key=name, name=name)
    return boxes, values


def _cluster(
    piece: Piece, values: Mapping[str, Origin], drawer: Drawer, suffix: str = ""
) -> tuple[Cluster, dict[str, Origin]]:
    """Return a piece's cluster and where the values that it gives come from."""
    placeholders = _placeholders(piece.module)
    inputs = {node.name: values[name] for name, node in zip(piece.inputs, placeholders, strict=True)}
    boxes, origins = drawer.body(piece.module, inputs, piece.name, "boundary" if piece.is_boundary else "op")
    output = _output_of(piece.module)
    given = {name: origins[node] for name, node in zip(piece.outputs, _returned(output), strict=True)}
    role: ClusterRole = "boundary" if piece.is_boundary else "trivial" if piece.is_trivial else "compiled"
    kind = {"boundary": "runs as it is", "trivial": "nothing to compile", "compiled": "compiled"}[role]
    counts = f"{_counted(len(boxes), 'node')} · {kind}{suffix}"
    reason = without_addresses(str(piece.reason))
    tooltip = f"{piece.name}: {reason}\ncut by {without_addresses(piece.reason.rule)}\n{counts}"
    return Cluster(piece.name, shorten(piece.name, 60), role, tuple(boxes), (shorten(reason, 60), counts), tooltip), given


def facts_of(program: Program, num_nodes: int) -> tuple[str, ...]:
    """Return what a title says below itself: the bucket, the open axes, how many pieces and nodes."""
    sizes = [f"{axis.name} in {program.range_of(axis)}" for axis in program.axes if axis.symbol in program.open_symbols]
    counts = f"{_counted(len(program.pieces), 'piece')}, " if program.pieces else ""
    lines = [f"for {program.bucket}" if program.bucket is not None else "", ", ".join(sizes)]
    return tuple(shorten(line, 100) for line in (*lines, counts + _counted(num_nodes, "node")) if line)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _output_of(module: fx.GraphModule) -> fx.Node:
    output: fx.Node = next(node for node in module.graph.nodes if node.op == "output")
    return output


def _returned(output: fx.Node) -> Sequence[fx.Node]:
    return output.args[0]  # type: ignore[return-value]
