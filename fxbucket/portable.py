"""A captured graph as plain data that another process can make a program from, without Dynamo."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import fx

from fxbucket.passes.captured import Capture
from fxbucket.passes.errors import StoreError
from fxbucket.passes.form import Form, form_of
from fxbucket.passes.program import CutReason, Piece, Program
from fxbucket.passes.recreate import recreate


@dataclass(frozen=True, eq=False)
class PortableCapture:
    """A capture without its graph module.

    Attributes:
        form: the whole graph, with its inputs in their own order.
        stacks: the modules that each node lies in, by the node's name, pickled: boundaries at modules look at them.
        facts: every other field of the capture.
    """

    form: Form
    stacks: bytes
    facts: Mapping[str, Any]


def portable(capture: Capture) -> PortableCapture:
    """Return a capture as plain data.

    Raises:
        StoreError: the graph holds something that has a meaning in this process only; names it.
    """
    names = tuple(placeholder.name for placeholder in capture.placeholders)
    whole = Piece(0, "capture", capture.module, names, (), CutReason("whole"))
    form = form_of(whole, Program(capture), by_use=False)
    if not form.is_portable:
        raise StoreError(f"the model cannot be saved: a captured graph {'; it '.join(form.local_reasons)}.")
    facts = {item.name: getattr(capture, item.name) for item in fields(Capture) if item.name != "module"}
    return PortableCapture(form, _stacks(capture.module), facts)


def _stacks(module: fx.GraphModule) -> bytes:
    stacks = {node.name: node.meta["nn_module_stack"] for node in module.graph.nodes if "nn_module_stack" in node.meta}
    try:
        return pickle.dumps(stacks)
    except Exception:  # a class without a name of its own; where a boundary needs it, the program's text will differ
        return pickle.dumps({})


def capture_from(held: PortableCapture) -> Capture:
    """Return the capture that plain data describes; each call gives a new one.

    Raises:
        AttributeError, ImportError: this process lacks an op or a module that the graph calls.
    """
    made = recreate(held.form)
    stacks = pickle.loads(held.stacks)
    for node in made.module.graph.nodes:
        if node.name in stacks:
            node.meta["nn_module_stack"] = stacks[node.name]
    return Capture(module=made.module, **held.facts)


def cut_text(program: Program) -> str:
    """Return how a program is cut and which buckets it admits; two programs of one capture with one text are the same."""
    lines = [repr(program.outputs), repr(program.decisions)]
    for piece in program.pieces:
        lines.append(f"{piece.name} {piece.inputs} {piece.outputs} {piece.is_boundary} {piece.is_trivial}")
        lines += [f"{node.name} {node.op}" for node in piece.module.graph.nodes]
    return "\n".join(lines)
