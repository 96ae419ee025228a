"""Split: cut the captured graph at its boundaries into pieces.

Pieces are stretches of the graph in its own order, so reads, writes, views and random numbers keep theirs. A value that
crosses a cut becomes an output of one piece and an input of others; a container that crosses (a ``torch.Size``, a tuple
of tensors) is taken apart and put together again; an autocast or no_grad region that a cut goes through is entered and
left by every piece in it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import fx

from fxbucket.passes.boundaries import Mark, as_boundary
from fxbucket.passes.captured import value_of
from fxbucket.passes.derive import derive
from fxbucket.passes.errors import BoundaryError, CaptureError, PreconditionError
from fxbucket.passes.nodes import SHAPE_CHANGERS, is_item_of_container, is_scalar_arithmetic, is_trivial
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import CutReason, Finding, Piece, Program, Ref
from fxbucket.passes.regions import RegionWriter, State, exit_functions, is_region_node, opens_level, states_of
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, expression_of, is_unbacked, symbols_in
from fxbucket.passes.writes import writes_to_shared_inputs

_REST = CutReason("rest", "", "what is left between cuts")


@dataclass(frozen=True)
class _Group:
    """The nodes of one future piece."""

    nodes: tuple[fx.Node, ...]
    mark: Mark | None


def assign(nodes: Sequence[fx.Node], marks: dict[fx.Node, Mark]) -> tuple[tuple[_Group, ...], tuple[Finding, ...]]:
    """Return the groups of nodes that become pieces, in order, and what could not be cut.

    Args:
        nodes: the graph's nodes without placeholders, attributes and the output, in order.
        marks: what the boundaries say of them.
    """
    findings = []
    groups: list[tuple[object, Mark | None, list[fx.Node]]] = []
    place: dict[object, int] = {}
    level = 0
    for node in nodes:
        if is_region_node(node):
            continue
        level += max(opens_level(node), 0)
        mark = marks.get(node)
        if level and mark is not None:
            findings.append(Finding(node.name, "not cut out: it runs inside a vmap or grad transform that must stay whole"))
            mark = None
        level += min(opens_level(node), 0)
        if is_item_of_container(node) and node.args[0] in place:
            # Taking an item of a container has no effect, so it goes with the container: containers rarely cross a cut.
            position = place[node.args[0]]
            groups[position][2].append(node)
            place[node] = position
            continue
        key = ("rest",) if mark is None else (mark.group, mark.compiled)
        if not groups or groups[-1][0] != key:
            groups.append((key, mark, []))
        groups[-1][2].append(node)
        place[node] = len(groups) - 1
    return tuple(_Group(tuple(members), mark) for _, mark, members in groups), tuple(findings)


class _Splitter:
    """Builds the pieces of one graph; lives for one run of the pass."""

    def __init__(self, program: Program, groups: Sequence[_Group]) -> None:
        self._root = program.capture.module
        self._axes = program.axes
        nodes = list(self._root.graph.nodes)
        self._groups = groups
        self._owner = {node: index for index, group in enumerate(groups) for node in group.nodes}
        self._states, self._initial = states_of(nodes, program.capture.grad_enabled)
        self._exits = exit_functions(nodes)
        self._taken = {node.name for node in nodes}
        self._output = nodes[-1]
        # Everything that one piece gives to another or to the caller: node -> a nest of Refs and constants.
        self._crossing: dict[fx.Node, Any] = {}
        self._symbols = {
            expression_of(value_of(node)): node
            for node in nodes
            if node.op == "placeholder" and isinstance(value_of(node), SYMBOLIC_TYPES)
        }
        self._order = {node: position for position, node in enumerate(nodes)}
        for node in nodes:
            if node.op == "placeholder":
                self._crossing[node] = Ref(node.name)
            elif node in self._owner and any(self._takes(user, node) for user in node.users):
                self._crossing[node] = self._structure(node)

    def _takes(self, user: fx.Node, node: fx.Node) -> bool:
        """Whether a user gets the node's value across a cut."""
        if user is self._output:
            return True
        return self._owner.get(user) != self._owner[node] and not is_scalar_arithmetic(node)

    def _structure(self, node: fx.Node) -> Any:
        """Return how a crossing value is carried: itself, or the leaves of a container."""
        value = value_of(node)
        return self._carry(node.name, value) if isinstance(value, (tuple, list)) else Ref(node.name)

    def _carry(self, name: str, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            items = [self._carry(f"{name}_{index}", item) for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if value is None or isinstance(value, (int, float, bool, str)):
            return value
        unique, count = name, 0
        while unique in self._taken:
            count += 1
            unique = f"{name}_{count}"
        self._taken.add(unique)
        return Ref(unique)

    def run(self) -> tuple[tuple[Piece, ...], Any]:
        """Return the pieces and the structure of the call's outputs."""
        pieces: list[Piece] = []
        for index, group in enumerate(self._groups):
            built = self._build(len(pieces), index, group)
            if built is not None:
                pieces.append(built)
        return tuple(pieces), self._outputs(self._output.args[0])

    def _outputs(self, argument: Any) -> Any:
        """Return what the call gives: the output node's argument with the crossing values in the place of nodes."""
        if isinstance(argument, fx.Node):
            return self._crossing[argument]
        if isinstance(argument, dict):
            return {key: self._outputs(item) for key, item in argument.items()}
        if isinstance(argument, (tuple, list)):
            return tuple(self._outputs(item) for item in argument)
        return argument

    def _build(self, number: int, index: int, group: _Group) -> Piece | None:
        graph = fx.Graph()
        local: dict[fx.Node, Any] = {}
        inputs: list[str] = []
        members = set(group.nodes)
        for source in self._sources(group, members):
            if is_scalar_arithmetic(source):
                local[source] = graph.node_copy(source, lambda found: local[found])
            elif source.op != "get_attr":
                local[source] = self._receive(graph, source, inputs)
        regions = RegionWriter(graph, self._initial, self._exits)
        for node in group.nodes:
            if not is_item_of_container(node):
                regions.move_to(self._states[node])
            for attribute in node.all_input_nodes:
                if attribute.op == "get_attr" and attribute not in local:
                    local[attribute] = graph.node_copy(attribute)
            local[node] = graph.node_copy(node, lambda found: local[found])
        regions.move_to(State())
        gives: list[tuple[str, fx.Node]] = []
        for node in group.nodes:
            if node in self._crossing:
                gives += self._give(graph, local[node], value_of(node), self._crossing[node])
        trivial = all(is_trivial(node) for node in group.nodes)
        if trivial and not gives:
            return None
        takes_scalar = any(
            node.op == "placeholder" and isinstance(value_of(node), (torch.SymFloat, torch.SymBool)) for node in graph.nodes
        )
        graph.output(tuple(node for _, node in gives))
        module = fx.GraphModule(self._root, graph)
        left_alone = trivial or takes_scalar or writes_to_shared_inputs(module)
        name = f"piece_{number}"
        module.__class__.__name__ = name
        mark = group.mark
        return Piece(
            number, name, module, tuple(inputs), tuple(given for given, _ in gives), mark.reason if mark else _REST,
            is_boundary=mark is not None and not mark.compiled,
            is_trivial=left_alone and (mark is None or mark.compiled),
            axes=self._axes,
        )  # fmt: skip

    def _sources(self, group: _Group, members: set[fx.Node]) -> list[fx.Node]:
        """Return the values from outside that a group reads: symbols first, then in the order of the graph.

        A piece for the compiler also takes each symbol that any of its sizes depends on: a compiler cannot tell ``s0`` and
        ``s1`` from a tensor of ``s0*s1`` elements.
        """
        found: set[fx.Node] = set()
        waiting = [source for node in group.nodes for source in node.all_input_nodes if source not in members]
        while waiting:
            source = waiting.pop()
            if source not in found:
                found.add(source)
                if is_scalar_arithmetic(source):
                    waiting += source.all_input_nodes
        if group.mark is None or group.mark.compiled:
            needed = symbols_in([value_of(node) for node in (*group.nodes, *found)])
            found |= {self._symbols[symbol] for symbol in needed if symbol in self._symbols}
        # Placeholders must come before nodes, and symbols before what has them in its sizes.
        return sorted(
            found,
            key=lambda node: (
                is_scalar_arithmetic(node),
                not isinstance(value_of(node), SYMBOLIC_TYPES),
                self._order[node],
            ),
        )

    def _receive(self, graph: fx.Graph, source: fx.Node, inputs: list[str]) -> Any:
        """Add placeholders for a value from outside, and return what stands for it in the piece."""
        if source not in self._crossing:
            raise CaptureError(
                f"split: node {source.name!r} is read by a later piece but belongs to none; please report it."
            )

        def receive(structure: Any, value: Any) -> Any:
            if isinstance(structure, Ref):
                placeholder = graph.placeholder(structure.name)
                placeholder.meta = {**source.meta, "example_value": value} if value is not None else dict(source.meta)
                placeholder.meta.pop("grapharg", None)
                inputs.append(structure.name)
                return placeholder
            if isinstance(structure, (tuple, list)):
                items = [receive(part, item) for part, item in zip(structure, value, strict=True)]
                return items if isinstance(structure, list) else tuple(items)
            return structure

        value = value_of(source)
        rebuilt = receive(self._crossing[source], value)
        if isinstance(value, torch.Size) and any(
            user.op == "call_method" and user.args[0] is source for user in source.users
        ):
            node = graph.call_function(torch.Size, (rebuilt,))
            node.meta["example_value"] = value
            return node
        return rebuilt

    def _give(self, graph: fx.Graph, node: fx.Node, value: Any, structure: Any) -> list[tuple[str, fx.Node]]:
        """Return ``(name, node)`` of every leaf that a crossing value is carried by, with the nodes that take it apart."""
        if isinstance(structure, Ref):
            return [(structure.name, node)]
        found: list[tuple[str, fx.Node]] = []
        if isinstance(structure, (tuple, list)):
            for index, part in enumerate(structure):
                if not any(True for _ in _refs(part)):
                    continue
                item = graph.call_function(operator.getitem, (node, index))
                item.meta["example_value"] = value[index]
                found += self._give(graph, item, value[index], part)
        return found


def _refs(structure: Any) -> Iterable[Ref]:
    if isinstance(structure, Ref):
        yield structure
    elif isinstance(structure, (tuple, list)):
        for part in structure:
            yield from _refs(part)


def _write_metadata_at_cuts(program: Program) -> None:
    """Give the placeholders of fresh pieces the metadata that their values have when the piece begins.

    The capture keeps one fake tensor a value, so ``y.transpose_(0, 1)`` leaves it with the last shape that ``y`` had.
    """
    for piece, result in zip(program.pieces, derive(program), strict=False):
        for node in piece.module.graph.nodes:
            value = result.at_start.get(node.name)
            if node.op == "placeholder" and isinstance(value, torch.Tensor):
                settled = not any(is_unbacked(symbol) for symbol in symbols_in(value))
                if settled:
                    node.meta["example_value"] = value


@dataclass(frozen=True)
class Split(BasePass):
    """Cut the graph at boundaries.

    Before: one graph. After: pieces that run in order; a boundary op is a piece of its own.

    Attributes:
        boundaries: a boundary, what ``at_op`` takes, or a sequence of them; none gives one piece.
        missing: what a boundary that matches nothing is: an error, or ignored with a finding.
    """

    boundaries: Any = ()
    missing: Literal["error", "ignore"] = "error"
    name: ClassVar[str] = "split"

    def __post_init__(self) -> None:
        given = self.boundaries
        several = given if isinstance(given, (tuple, list)) else (given,)
        object.__setattr__(self, "boundaries", tuple(as_boundary(item) for item in several))

    def requires(self, program: Program) -> None:
        if program.is_split:
            raise PreconditionError("split: the program is split already; start from the captured program.")

    def run(self, program: Program) -> Program:
        nodes = [node for node in program.capture.module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
        marks: dict[fx.Node, Mark] = {}
        findings: list[Finding] = []
        for boundary in reversed(self.boundaries):
            try:
                marks.update(boundary.marks(nodes))
            except BoundaryError as error:
                if self.missing == "error":
                    raise
                findings.append(Finding(str(boundary), str(error)))
        groups, uncut = assign(nodes, marks)
        pieces, outputs = _Splitter(program, groups).run()
        done = replace(program, pieces=pieces, outputs=outputs)
        if any(node.op == "call_method" and node.target in SHAPE_CHANGERS for node in nodes):
            _write_metadata_at_cuts(done)
        return done.with_findings(*findings, *uncut)

    def ensures(self, before: Program, after: Program) -> None:
        known = {placeholder.name for placeholder in after.capture.placeholders}
        for piece in after.pieces:
            unknown = [name for name in piece.inputs if name not in known]
            if unknown:
                raise CaptureError(f"split: {piece.name} reads {unknown} before any piece gives it; please report it.")
            known.update(piece.outputs)

    def __str__(self) -> str:
        return f"Split({', '.join(map(str, self.boundaries))})"
