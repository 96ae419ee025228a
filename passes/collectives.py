"""Nodes that call a collective of torch.distributed: they wait for other ranks, which must call the same one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from fxbucket.passes.boundaries import Boundary, Mark, Marks
from fxbucket.passes.errors import BoundaryError, nearest
from fxbucket.passes.opnames import graph_op_names, op_names
from fxbucket.passes.program import CutReason

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
"""Where torch registers collectives: those that graphs hold, in their present and their older names, and those in place."""

_WAITS = frozenset({"wait_tensor"})
_QUIET = frozenset({"barrier", "monitored_barrier_"})


def collective_name(node: fx.Node) -> str | None:
    """Return the name of the collective that a node calls, such as ``all_reduce`` or ``wait_tensor``; else ``None``."""
    if node.op != "call_function":
        return None
    for name in op_names(node):
        namespace, colons, op = name.partition("::")
        if colons and namespace in NAMESPACES:
            return op.partition(".")[0]
    return None


def is_wait(node: fx.Node) -> bool:
    """Whether a node waits for the end of a collective that began before."""
    return collective_name(node) in _WAITS


def is_collective(node: fx.Node) -> bool:
    """Whether a node calls a collective or waits for one."""
    return collective_name(node) is not None


def unfinished(nodes: Iterable[fx.Node]) -> Iterator[str]:
    """Yield what speaks against keeping these nodes of one piece apart from others: collectives that begin or end elsewhere.

    Until it is waited for, what a collective gives is memory that it still writes to: a copy of it would hold anything.
    """
    members = set(nodes)
    for node in members:
        if is_wait(node) and not any(_begins_in(source, members) for source in node.all_input_nodes):
            yield f"{node.name} waits for a collective that begins in another piece"
        elif _begins(node) and not _is_awaited(node, members):
            yield f"{node.name} is a collective that is waited for in another piece"


def _begins(node: fx.Node) -> bool:
    name = collective_name(node)
    return name is not None and name not in _WAITS | _QUIET


def _begins_in(node: fx.Node, members: set[fx.Node]) -> bool:
    waiting, seen = [node], set()
    while waiting:
        source = waiting.pop()
        if source not in members or source in seen:
            continue
        if _begins(source):
            return True
        seen.add(source)
        waiting += source.all_input_nodes
    return False


def _is_awaited(node: fx.Node, members: set[fx.Node]) -> bool:
    """Whether something in the piece waits for what a collective gives: itself, or each item of a list."""
    users = [user for user in node.users if user in members and user.op != "output"]
    items = [user for user in users if getattr(user.target, "__name__", "") == "getitem"]
    if items:
        return all(any(is_wait(user) for user in item.users) for item in items)
    return any(is_wait(user) for user in users)


@dataclass(frozen=True)
class AtCollective(Boundary):
    """Cut out the collectives, each with what waits for it where nothing lies between."""

    compiled: bool = False

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        found = {}
        for node in nodes:
            name = collective_name(node)
            if name is not None:
                reason = CutReason(str(self), node.name, f"collective {name}")
                # One group: a cut between a collective and its end would hand on memory that is still written to.
                found[node] = Mark("collectives", reason, self.compiled)
        if not found:
            possible = nearest("_c10d_functional::all_reduce", graph_op_names(nodes))
            raise BoundaryError(
                f"{self} matches no node of the graph: it calls no collective of torch.distributed. A model of DTensors "
                f"holds them once it runs on several ranks; {possible}."
            )
        return found

    def __str__(self) -> str:
        return "at_collective()"


def at_collective(compiled: bool = False) -> Boundary:
    """Cut out the collectives of ``torch.distributed``; collectives that follow each other, and their ends, are one piece.

    Args:
        compiled: compile them as pieces of their own instead of running them as they are.
    """
    return AtCollective(compiled)
