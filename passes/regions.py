"""Regions that a cut goes through: autocast, grad mode and other switches that Dynamo leaves in the graph as nodes.

Such a node has no data dependency on the ops that it governs, so a piece must carry its own: it enters the state in
which its first node ran, follows every change, and leaves the state in which the call began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

ENTER_TO_EXIT = {
    "_enter_autocast": "_exit_autocast",
    "_enter_inference_mode": "_exit_inference_mode",
}
"""Functions that open a region, and those that close it; the closing call takes the opening node."""

SWITCHES = frozenset({"_set_grad_enabled", "_set_deterministic_algorithms", "_sdpa_kernel", "set_autocast_cache_enabled"})
"""Functions that set a global switch; Dynamo emits a second call that sets it back."""

_OPENS_LEVEL = (
    "_increment_nesting",
    "_push_saved_tensors_default_hooks",
    "_saved_tensors_hooks_disable",
    "_enter_dual_level",
)
_CLOSES_LEVEL = (
    "_decrement_nesting",
    "_pop_saved_tensors_default_hooks",
    "_saved_tensors_hooks_enable",
    "_exit_dual_level",
)


@dataclass(frozen=True)
class State:
    """The regions in force at one node.

    Attributes:
        entered: the nodes that opened the regions, outermost first.
        switches: ``(function, arguments)`` of the switches that differ from the start of the call.
    """

    entered: tuple[fx.Node, ...] = ()
    switches: tuple[tuple[object, tuple[object, ...]], ...] = ()


def function_name(node: fx.Node) -> str:
    """Return the bare name of the function that a node calls, or an empty text."""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def is_region_node(node: fx.Node) -> bool:
    """Whether the node opens or closes a region or sets a switch."""
    name = function_name(node)
    return name in ENTER_TO_EXIT or name in ENTER_TO_EXIT.values() or name in SWITCHES


def opens_level(node: fx.Node) -> int:
    """Return +1 where a node opens a level that cannot be cut (vmap, grad transforms), -1 where it closes one, else 0."""
    name = function_name(node)
    if name.endswith(_OPENS_LEVEL):
        return 1
    if name.endswith(_CLOSES_LEVEL):
        return -1
    return 0


def states_of(nodes: Sequence[fx.Node], grad_enabled: bool) -> tuple[dict[fx.Node, State], dict[object, tuple[object, ...]]]:
    """Return the state at each node, and the arguments that set each switch back to where the call began.

    Args:
        nodes: a whole graph's nodes in order.
        grad_enabled: the grad mode in which the call begins.
    """
    initial: dict[object, tuple[object, ...]] = {}
    for node in nodes:
        if function_name(node) in SWITCHES:
            # The last call of a switch is the one by which Dynamo restores what it found.
            initial[node.target] = tuple(node.args)
    if torch._C._set_grad_enabled in initial:
        initial[torch._C._set_grad_enabled] = (grad_enabled,)

    states: dict[fx.Node, State] = {}
    entered: list[fx.Node] = []
    switched: dict[object, tuple[object, ...]] = {}
    for node in nodes:
        name = function_name(node)
        if name in ENTER_TO_EXIT:
            entered.append(node)
        elif name in ENTER_TO_EXIT.values():
            entered = [opened for opened in entered if opened is not node.args[0]]
        elif name in SWITCHES:
            switched.pop(node.target, None)
            if tuple(node.args) != initial[node.target]:
                switched[node.target] = tuple(node.args)
        states[node] = State(tuple(entered), tuple(switched.items()))
    return states, initial


class RegionWriter:
    """Writes the nodes that take a piece's graph from one state to the next."""

    def __init__(self, graph: fx.Graph, initial: dict[object, tuple[object, ...]], exits: dict[str, object]) -> None:
        self._graph = graph
        self._initial = initial
        self._exits = exits
        self._now = State()
        self._opened: dict[fx.Node, fx.Node] = {}

    def move_to(self, state: State) -> None:
        """Append what leads from the present state to ``state``; ``State()`` is that in which the call began."""
        if state == self._now:
            return
        shared = 0
        while (
            shared < min(len(state.entered), len(self._now.entered)) and state.entered[shared] is self._now.entered[shared]
        ):
            shared += 1
        for opener in reversed(self._now.entered[shared:]):
            leave = self._exits[ENTER_TO_EXIT[function_name(opener)]]
            self._graph.call_function(leave, (self._opened.pop(opener),))  # type: ignore[arg-type]
        wanted, present = dict(state.switches), dict(self._now.switches)
        for switch in {**present, **wanted}:
            arguments = wanted.get(switch, self._initial[switch])
            if arguments != present.get(switch, self._initial[switch]):
                self._graph.call_function(switch, arguments)  # type: ignore[arg-type]
        for opener in state.entered[shared:]:
            self._opened[opener] = self._graph.call_function(opener.target, opener.args)  # type: ignore[arg-type]
        self._now = state


def exit_functions(nodes: Sequence[fx.Node]) -> dict[str, object]:
    """Return the functions by which this graph closes its regions, by bare name."""
    found: dict[str, object] = {
        "_exit_autocast": torch.amp.autocast_mode._exit_autocast,
        "_exit_inference_mode": torch.autograd.grad_mode._exit_inference_mode,
    }
    for node in nodes:
        if function_name(node) in ENTER_TO_EXIT.values():
            found[function_name(node)] = node.target
    return found
