"""What must be the same on all ranks for their collectives to meet: options, buckets, the ops of a graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import sympy
from torch import fx

from fxbucket.options import Options
from fxbucket.passes.captured import tensors_in, value_of
from fxbucket.passes.collectives import collective_name
from fxbucket.passes.opnames import op_names
from fxbucket.passes.program import Program
from fxbucket.passes.symbolic import Number, expression_of, substitute
from fxbucket.rank_exchange import listed

_OF_A_RANK = frozenset({"agree_group", "agree_timeout", "cache", "debug", "debug_dir", "tuning_seconds", "workers"})
"""Options that may differ between ranks."""


def facts_of(program: Program, whole: fx.GraphModule, options: Options) -> dict[str, str]:
    """Return what must be the same on every rank that captured this program, by what it is.

    Constants and the sizes of parameters are not among it: ranks hold different parts of a model. Nor are the ops on a
    rank's part of a distributed tensor, where a part may be smaller than others; those on the whole are.
    """
    facts = {
        f"option {item.name}": _plain(getattr(options, item.name))
        for item in fields(Options)
        if item.init and item.name not in _OF_A_RANK
    }
    facts["axes"] = "; ".join(f"{axis.name}={axis.hint if axis.is_fixed else 'any'}" for axis in program.axes if axis.named)
    facts["buckets"] = "; ".join(f"{held.bucket}: {held.admitted}" for held in program.decisions)
    nodes = [node for node in program.capture.module.graph.nodes if node.op.startswith("call_")]
    facts["ops"] = _digest([_op(node) for node in whole.graph.nodes if node.op.startswith("call_")])
    facts["collectives"] = _digest([_collective(node) for node in nodes if collective_name(node) is not None])
    return facts


def moved(program: Program, sizes: Mapping[sympy.Symbol, Number]) -> list[str]:
    """Return the shapes that the collectives of a graph take in a call of these sizes, in their order."""
    found = []
    for node in program.capture.module.graph.nodes:
        name = collective_name(node)
        if name is None or name == "wait_tensor" or name.startswith("all_to_all"):
            continue
        for source in node.all_input_nodes:
            for tensor in tensors_in(value_of(source)):
                shape = [substitute(expression_of(size), sizes) for size in tensor.shape]
                found.append(f"{name} [{', '.join(map(str, shape))}]")
    return found


def number_of(facts: Mapping[str, str]) -> int:
    """Return facts as one int of 62 bits."""
    sha = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
    return int.from_bytes(sha[:8], "big") >> 2


def differences(found: Mapping[int, Mapping[str, str]]) -> str:
    """Return which ranks differ from the first, and in what; an empty text where none does."""
    first, *others = found
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in others:
        keys = sorted(found[first].keys() | found[rank].keys())
        texts = tuple(
            f"{key} ({found[rank].get(key, 'none')}; rank {first}: {found[first].get(key, 'none')})"
            for key in keys
            if found[rank].get(key) != found[first].get(key)
        )
        if texts:
            groups.setdefault(texts, []).append(rank)
    parts = [f"{listed(ranks)} in {', '.join(texts[:4])}" for texts, ranks in groups.items()]
    more = f"; and {len(parts) - 8} more groups of ranks" if len(parts) > 8 else ""
    return "; ".join(parts[:8]) + more


def _op(node: fx.Node) -> str:
    names = sorted(op_names(node))
    return names[0] if names else str(node.target)


def _collective(node: fx.Node) -> str:
    """Return a collective with the sizes that it moves; symbols count alike, for ranks may name them differently."""
    given = [tensor for source in node.all_input_nodes for tensor in tensors_in(value_of(source))]
    shapes = [f"{tensor.dtype}{[size if isinstance(size, int) else 's' for size in tensor.shape]}" for tensor in given]
    return f"{collective_name(node)} {' '.join(shapes).replace('torch.', '')}"


def _digest(texts: Sequence[str]) -> str:
    return f"{len(texts)} of them, {hashlib.sha256(' '.join(texts).encode()).hexdigest()[:12]}"


def _plain(value: Any) -> str:
    """Return an option as a text that is the same in every process; functions by their names."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if callable(value) and not isinstance(value, type):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    text = str(value)
    return type(value).__qualname__ if " at 0x" in text else text[:200]
