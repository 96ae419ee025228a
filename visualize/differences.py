"""Two programs → what differs between them, node by node, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sympy
import torch
from torch import fx

from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import OptionError
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.symbolic import SYMBOLIC_TYPES, Number, expression_of, substitute
from fxbucket.passes.text import DTYPE_NAMES, Namer, axis_namer, node_text, target_text, value_text
from fxbucket.visualize.draw import arguments_of
from fxbucket.visualize.labels import edge_text, returns_text, shorten, without_addresses
from fxbucket.visualize.sketch import Mark

Kind = Literal["argument", "input", "node", "output"]
"""An argument of the call, an input of a piece, a node of a graph, or what is returned."""

_WHAT: Mapping[Kind, str] = {"argument": "placeholder", "input": "placeholder", "node": "node", "output": "output"}


@dataclass(frozen=True)
class Facts:
    """What one node of a program says.

    Attributes:
        kind: what it is.
        place: the name of its piece; empty for what belongs to none.
        name: its name.
        fields: ``(what, text)`` of everything about it that may change.
        arguments: its arguments, one text a leaf.
        symbol: the number that it gives, where that is symbolic.
    """

    kind: Kind
    place: str
    name: str
    fields: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...] = ()
    symbol: torch.SymInt | torch.SymFloat | torch.SymBool | None = None


@dataclass(frozen=True)
class Difference:
    """How one node differs.

    Attributes:
        mark: whether it changed, is gone, or is new.
        before: what it said; ``None`` for a new one.
        after: what it says now; ``None`` for one that is gone.
        words: what is different, a phrase each.
    """

    mark: Mark
    before: Facts | None
    after: Facts | None
    words: tuple[str, ...]

    @property
    def node(self) -> Facts:
        """The node as it is now, or as it was where it is gone."""
        found = self.after or self.before
        assert found is not None
        return found


def differences(before: Program | Piece, after: Program | Piece) -> tuple[Difference, ...]:
    """Return every node that differs, in the order of the program before; new ones follow in the order of the one after.

    Nodes are matched by the name of their piece and their own; where one program is split and the other is not, by their
    own name alone.

    Raises:
        OptionError: one of them is neither a program nor a piece, or they are not two of a kind.
    """
    if isinstance(before, Piece) and isinstance(after, Piece):
        old, new = (_by_key(_facts_of_piece(piece, axis_namer(piece.axes)), by_place=True) for piece in (before, after))
        return tuple(_compared(old, new, {}))
    if not (isinstance(before, Program) and isinstance(after, Program)):
        kinds = f"{type(before).__name__} and {type(after).__name__}"
        raise OptionError(f"{kinds} cannot be compared; give two Programs, or two Pieces.")
    by_place = bool(before.pieces) == bool(after.pieces)
    old, new = (_by_key(_facts_of_program(program), by_place) for program in (before, after))
    # A value that crosses a cut changes where it is made; the piece that reads it only loses it or gets it.
    found = _compared(old, new, dict(after.binding))
    return tuple(one for one in found if one.mark != "changed" or one.node.kind != "input")


_Key = tuple[str, str, str, int]


def _by_key(facts: Iterator[Facts], by_place: bool) -> dict[_Key, Facts]:
    found: dict[_Key, Facts] = {}
    for fact in facts:
        if not by_place and fact.place and fact.kind in ("input", "output"):
            continue
        place = fact.place if by_place else ""
        # A switch such as no_grad may stand in several pieces under one name.
        number = 0
        while (fact.kind, place, fact.name, number) in found:
            number += 1
        found[fact.kind, place, fact.name, number] = fact
    return found


def _facts_of_program(program: Program) -> Iterator[Facts]:
    name = axis_namer(program.axes)
    for placeholder, node in arguments_of(program):
        yield _facts_of_node("argument", "", placeholder.name, node, name)
    if not program.pieces:
        yield from _facts_of_graph(program.capture.module, "", name)
        return
    own = {placeholder.name for placeholder in program.capture.placeholders}
    for piece in program.pieces:
        yield from (fact for fact in _facts_of_piece(piece, name) if fact.kind != "input" or fact.name not in own)
    yield Facts("output", "", "output", (("returns", returns_text(program.outputs)),))


def _facts_of_piece(piece: Piece, name: Namer) -> Iterator[Facts]:
    placeholders = [node for node in piece.module.graph.nodes if node.op == "placeholder"]
    for given, node in zip(piece.inputs, placeholders, strict=True):
        yield _facts_of_node("input", piece.name, given, node, name)
    yield from _facts_of_graph(piece.module, piece.name, name)


def _facts_of_graph(module: fx.GraphModule, place: str, name: Namer) -> Iterator[Facts]:
    for node in module.graph.nodes:
        if node.op == "output":
            returned = without_addresses(node_text(node, name).removeprefix("return "))
            yield Facts("output", place, "output", (("returns", returned),))
        elif node.op != "placeholder":
            yield _facts_of_node("node", place, node.name, node, name)


def _facts_of_node(kind: Kind, place: str, given: str, node: fx.Node, name: Namer) -> Facts:
    value = value_of(node)
    called = () if kind != "node" else (("op", target_text(node)),)
    leaves = () if kind != "node" else tuple(_leaves((*node.args, *node.kwargs.items()), name))
    symbol = value if isinstance(value, SYMBOLIC_TYPES) else None
    return Facts(kind, place, given, (*called, *_fields_of(value, name)), leaves, symbol)


def _fields_of(value: object, name: Namer) -> Iterator[tuple[str, str]]:
    if not isinstance(value, torch.Tensor):
        if value is not None:
            yield "value", edge_text(value, name)
            yield "details", value_text(value, name)
        return
    sizes = [name(size) for size in value.shape]
    yield "dtype", DTYPE_NAMES.get(value.dtype, str(value.dtype))
    yield "shape", f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    yield "device", str(value.device)
    yield "requires_grad", str(value.requires_grad)
    yield "class", "Parameter" if isinstance(value, torch.nn.Parameter) else "Tensor"
    if value.layout is not torch.strided:
        yield "layout", str(value.layout)
        return
    rest = value_text(value, name).removeprefix(edge_text(value, name))
    strides = ", ".join(name(stride) for stride in value.stride())
    # Strides that follow from the shape are not news of their own.
    yield "strides", f"({strides})" if rest.startswith(" strides [") else "contiguous"
    yield "offset", name(value.storage_offset())


def _leaves(argument: object, name: Namer) -> Iterator[str]:
    if isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _leaves(item, name)
    elif isinstance(argument, dict):
        for item in argument.items():
            yield from _leaves(item, name)
    elif isinstance(argument, slice):
        yield from _leaves((argument.start, argument.stop, argument.step), name)
    elif isinstance(argument, fx.Node):
        value = value_of(argument)
        is_axis = argument.op == "placeholder" and isinstance(value, SYMBOLIC_TYPES)
        yield name(value) if is_axis else argument.name
    elif isinstance(argument, SYMBOLIC_TYPES):
        yield name(argument)
    elif isinstance(argument, torch.Tensor):
        yield value_text(argument, name)
    else:
        yield without_addresses(repr(argument))


def _compared(
    old: Mapping[_Key, Facts], new: Mapping[_Key, Facts], binding: Mapping[sympy.Symbol, Number]
) -> Iterator[Difference]:
    moved = _moved(old, new)
    for key, before in old.items():
        partner = key if key in new else moved.get(key)
        if partner is None:
            yield Difference("gone", before, None, (_gone(before, binding),))
            continue
        after = new[partner]
        moves = (f"piece {before.place} → {after.place}",) if partner != key else ()
        words = (*moves, *_changes(before, after))
        if words:
            yield Difference("changed", before, after, words)
    found = {*old, *moved.values()}
    for key, after in new.items():
        if key not in found:
            fields = dict(after.fields)
            value = fields.get("value") or " ".join(fields[what] for what in ("dtype", "shape") if what in fields)
            yield Difference("new", None, after, (f"{_WHAT[after.kind]} new: {value}".rstrip(": "),))


def _moved(old: Mapping[_Key, Facts], new: Mapping[_Key, Facts]) -> dict[_Key, _Key]:
    """Return where the nodes went whose name is in another piece now, and in no second one."""

    def homeless(here: Mapping[_Key, Facts], there: Mapping[_Key, Facts]) -> dict[str, list[_Key]]:
        names: dict[str, list[_Key]] = {}
        for key, fact in here.items():
            if fact.kind == "node" and key not in there:
                names.setdefault(fact.name, []).append(key)
        return names

    arrived = homeless(new, old)
    pairs = ((keys, arrived.get(name, [])) for name, keys in homeless(old, new).items())
    return {gone[0]: came[0] for gone, came in pairs if len(gone) == 1 and len(came) == 1}


def _gone(fact: Facts, binding: Mapping[sympy.Symbol, Number]) -> str:
    if fact.symbol is None:
        return f"{_WHAT[fact.kind]} gone"
    now = substitute(expression_of(fact.symbol), binding)
    is_known = isinstance(now, (int, float))
    return f"{_WHAT[fact.kind]} gone: it is {now} now" if is_known else f"{_WHAT[fact.kind]} gone"


def _changes(before: Facts, after: Facts) -> Iterator[str]:
    old, new = dict(before.fields), dict(after.fields)
    for what in dict.fromkeys((*old, *new)):
        is_told = what == "details" and old.get("value") != new.get("value")
        if old.get(what) != new.get(what) and not is_told:
            yield f"{what} {shorten(old.get(what, 'none'), 120)} → {shorten(new.get(what, 'none'), 120)}"
    if len(before.arguments) != len(after.arguments):
        yield f"arguments {_listed(before.arguments)} → {_listed(after.arguments)}"
        return
    pairs = zip(before.arguments, after.arguments, strict=True)
    yield from dict.fromkeys(f"argument {shorten(one, 80)} → {shorten(other, 80)}" for one, other in pairs if one != other)


def _listed(arguments: Sequence[str]) -> str:
    return shorten(f"({', '.join(arguments)})", 120)
