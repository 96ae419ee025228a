"""Boundaries: the places where a graph is cut.

A boundary looks at the nodes of a captured graph and marks some of them; :class:`~fxbucket.passes.split.Split` turns
the marks into pieces. ``a | b`` cuts where either does (``a`` wins where both do), ``a & b`` where both do.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from fxbucket.passes.errors import BoundaryError, nearest
from fxbucket.passes.opnames import graph_op_names, op_names, spellings_of
from fxbucket.passes.program import CutReason


@dataclass(frozen=True)
class Mark:
    """What a boundary says of one node.

    Attributes:
        group: nodes side by side with one group stay in one piece.
        reason: why the node is cut out.
        compiled: whether the piece goes to the compiler; a boundary op runs as it is.
    """

    group: object
    reason: CutReason
    compiled: bool = False


_SUBSCRIPT = re.compile(r"""\[['"]?([^'"\]]*)['"]?\]""")

Marks = Mapping[fx.Node, Mark]


class Boundary:
    """A place where the graph is cut; combine with ``|`` and ``&``."""

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        """Return a mark for each node of ``nodes`` (in graph order) that this boundary cuts out.

        Raises:
            BoundaryError: it matches nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} must define marks(nodes)")

    def __or__(self, other: Boundary) -> Boundary:
        return AnyOf(self, other)

    def __and__(self, other: Boundary) -> Boundary:
        return AllOf(self, other)


@dataclass(frozen=True)
class AnyOf(Boundary):
    """Cut where either boundary does; where both do, the left one says how."""

    left: Boundary
    right: Boundary

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        return {**self.right.marks(nodes), **self.left.marks(nodes)}

    def __str__(self) -> str:
        return f"{self.left} | {self.right}"


@dataclass(frozen=True)
class AllOf(Boundary):
    """Cut where both boundaries do; the left one says how."""

    left: Boundary
    right: Boundary

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        also = self.right.marks(nodes)
        both = {node: mark for node, mark in self.left.marks(nodes).items() if node in also}
        if not both:
            raise BoundaryError(f"{self} matches no node: each side matches some, but none in common; use `|` for either.")
        return both

    def __str__(self) -> str:
        sides = (f"({side})" if isinstance(side, AnyOf) else str(side) for side in (self.left, self.right))
        return " & ".join(sides)


@dataclass(frozen=True)
class AtOp(Boundary):
    """Cut out every call of an op."""

    target: object
    compiled: bool = False

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        wanted = spellings_of(self.target)
        found = {}
        for node in nodes:
            if node.target is self.target or (wanted and not wanted.isdisjoint(op_names(node))):
                reason = CutReason(str(self), node.name, f"boundary op {self.spelling}")
                found[node] = Mark(node, reason, self.compiled)
        if not found:
            raise BoundaryError(f"{self} matches no node of the graph; {nearest(self.spelling, graph_op_names(nodes))}.")
        return found

    @property
    def spelling(self) -> str:
        """The op as the user wrote it, or the name of the function that they gave."""
        if isinstance(self.target, str):
            return self.target
        return str(getattr(self.target, "__qualname__", None) or self.target)

    def __str__(self) -> str:
        return f"at_op({self.spelling!r})"


@dataclass(frozen=True)
class AtModule(Boundary):
    """Cut out the nodes of a module, each call of it as one piece."""

    pattern: str | type[torch.nn.Module]
    compiled: bool = True

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        found: dict[fx.Node, Mark] = {}
        paths: set[str] = set()
        for node in nodes:
            for key, (path, kind) in module_stack(node):
                paths.update((path, kind.rsplit(".", 1)[-1]))
                if self._matches(path, kind):
                    reason = CutReason(str(self), node.name, f"module {path or kind}")
                    found[node] = Mark((key, path), reason, self.compiled)
                    break
        if not found:
            spelling = self.pattern if isinstance(self.pattern, str) else self.pattern.__name__
            raise BoundaryError(f"{self} matches no module that the graph went through; {nearest(spelling, paths)}.")
        return found

    def _matches(self, path: str, kind: str) -> bool:
        if isinstance(self.pattern, str):
            return fnmatch.fnmatchcase(path, self.pattern) or self.pattern in (kind, kind.rsplit(".", 1)[-1])
        return kind == f"{self.pattern.__module__}.{self.pattern.__qualname__}"

    def __str__(self) -> str:
        shown = repr(self.pattern) if isinstance(self.pattern, str) else self.pattern.__name__
        return f"at_module({shown})"


@dataclass(frozen=True)
class Where(Boundary):
    """Cut out every node for which a predicate is true."""

    predicate: Callable[[fx.Node], bool]
    compiled: bool = False

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        reason = f"predicate {getattr(self.predicate, '__name__', 'predicate')}"
        found = {
            node: Mark(node, CutReason(str(self), node.name, reason), self.compiled)
            for node in nodes
            if self.predicate(node)
        }
        if not found:
            raise BoundaryError(f"{self} is true for none of the {len(nodes)} nodes; print(program) shows them.")
        return found

    def __str__(self) -> str:
        return f"where({getattr(self.predicate, '__name__', 'predicate')})"


@dataclass(frozen=True)
class EveryNNodes(Boundary):
    """Cut after every ``count`` nodes; every piece is compiled."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise BoundaryError(f"every_n_nodes({self.count!r}): the number of nodes a piece must be an int of at least 1.")

    def marks(self, nodes: Sequence[fx.Node]) -> Marks:
        reason = f"piece of {self.count} nodes"
        return {
            node: Mark(position // self.count, CutReason(str(self), node.name, reason), compiled=True)
            for position, node in enumerate(nodes)
        }

    def __str__(self) -> str:
        return f"every_n_nodes({self.count})"


def at_op(target: object, compiled: bool = False) -> Boundary:
    """Cut out every call of an op; it runs as it is, uncompiled.

    Args:
        target: ``"ns::op"``, ``"ns::op.overload"``, a Python path such as ``"torch.nn.functional.gelu"``, an overload,
            or the function itself. All spellings of torch's own ops match whichever of them the graph holds.
        compiled: compile the op as a piece of its own instead.
    """
    if not isinstance(target, str) and not callable(target):
        raise BoundaryError(f"at_op({target!r}): give 'ns::op', a Python path, an overload or a function.")
    return AtOp(target, compiled)


def at_module(pattern: str | type[torch.nn.Module], compiled: bool = True) -> Boundary:
    """Cut out the nodes of a module, each call of it as one piece of its own.

    Args:
        pattern: a class, a class's name, or a path with wildcards, for example ``"model.layers.*"``.
        compiled: whether the piece is compiled (the default) or runs as it is.
    """
    if not isinstance(pattern, str) and not (isinstance(pattern, type) and issubclass(pattern, torch.nn.Module)):
        raise BoundaryError(f"at_module({pattern!r}): give a path pattern, a class name, or a subclass of nn.Module.")
    return AtModule(pattern, compiled)


def where(predicate: Callable[[fx.Node], bool], compiled: bool = False) -> Boundary:
    """Cut out every node for which ``predicate(node)`` is true."""
    if not callable(predicate):
        raise BoundaryError(f"where({predicate!r}): give a function that takes a node and returns a bool.")
    return Where(predicate, compiled)


def every_n_nodes(count: int) -> Boundary:
    """Cut the graph into compiled pieces of ``count`` nodes."""
    return EveryNNodes(count)


def as_boundary(value: object) -> Boundary:
    """Return a boundary for anything that ``splitting_ops`` may hold: a boundary, or what :func:`at_op` takes."""
    return value if isinstance(value, Boundary) else at_op(value)


def module_stack(node: fx.Node) -> list[tuple[str, tuple[str, str]]]:
    """Return ``(key, (path, class name))`` of the modules that a node was traced through, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    found = []
    for key, (path, kind) in stack.items():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        found.append((str(key), (_plain_path(str(path)), name)))
    return found


def _plain_path(path: str) -> str:
    """Return ``layers.0.attention`` for Dynamo's ``L['self']._modules['layers']._modules['0'].attention``."""
    plain = _SUBSCRIPT.sub(r".\1", path.replace("._modules[", "["))
    root, _, rest = plain.partition(".")
    if root in ("L", "G"):
        _, _, rest = rest.partition(".")
    return rest
