"""Where padding could reach real rows: the walk along the ops of a graph, with the taint that each of them hands on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx

from fxbucket.passes.lowering import AtenCall, TensorValue, numbers_in
from fxbucket.passes.opnames import names_of_callable
from fxbucket.passes.row_collectives import RULES as COLLECTIVES
from fxbucket.passes.row_facts import UNKNOWN, Contents, Layout, Rows, Rule, RuleBook, Scalar, Verdict, grows, unsafe
from fxbucket.passes.row_indexing import RULES as INDEXING
from fxbucket.passes.row_layouts import carried
from fxbucket.passes.row_pointwise import RULES as POINTWISE
from fxbucket.passes.row_pointwise import pointwise
from fxbucket.passes.row_products import RULES as PRODUCTS
from fxbucket.passes.row_reductions import RULES as REDUCTIONS
from fxbucket.passes.row_views import RULES as VIEWS
from fxbucket.passes.row_views import reshape
from fxbucket.passes.source_line import source_line
from fxbucket.passes.symbolic import is_unbacked, symbols_in

RULES = RuleBook({**POINTWISE, **VIEWS, **INDEXING, **PRODUCTS, **REDUCTIONS, **COLLECTIVES})
"""What is known of ops of aten; ops that torch itself tags as pointwise need no rule of their own."""


@dataclass(frozen=True)
class Leak:
    """The first place where padding could reach real rows.

    Attributes:
        node: the name of the captured graph's node, where one is known.
        op: the op, for example ``aten::mean.dim``.
        line: the user's line: ``model.py:12, in forward: y = x.mean(0)``; empty where it is not known.
        reason: one sentence.
    """

    node: str
    op: str
    line: str
    reason: str

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.node or 'the graph'}: {self.op + ': ' if self.op else ''}{self.reason}{where}"


@dataclass(eq=False)
class Walk:
    """What is known of each tensor while the ops are gone through; leaks are numbered in the order of the graph."""

    rows: Rows
    trusted: frozenset[fx.Node]
    trusted_names: frozenset[str]
    leaks: list[Leak] = field(default_factory=list)
    tainted: dict[int, frozenset[int]] = field(default_factory=dict)
    tainted_memory: dict[int, frozenset[int]] = field(default_factory=dict)
    tainted_symbols: dict[sympy.Symbol, frozenset[int]] = field(default_factory=dict)
    narrowed: set[int] = field(default_factory=set)
    merged: dict[int, frozenset[int]] = field(default_factory=dict)
    keys_of: dict[int, set[int]] = field(default_factory=dict)
    inputs_of: dict[int, list[TensorValue]] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)

    def number(self, leak: Leak) -> frozenset[int]:
        """Return the leak's own number; each leak has one."""
        if leak not in self.leaks:
            self.leaks.append(leak)
        return frozenset({self.leaks.index(leak)})

    def reaching(self, *structures: object) -> frozenset[int]:
        """Return the leaks that reach any of these values."""
        found: frozenset[int] = frozenset()
        for structure in structures:
            if isinstance(structure, TensorValue):
                found |= self.tainted.get(structure.key, frozenset())
                found |= self.tainted_memory.get(structure.storage, frozenset())
                found |= self.reaching(structure.shape)
            elif isinstance(structure, (tuple, list)):
                found |= self.reaching(*structure)
            elif isinstance(structure, sympy.Basic) and self.tainted_symbols:
                for symbol in symbols_in(structure):
                    found |= self.tainted_symbols.get(symbol, frozenset())
        return found

    def enter(self, inputs: Sequence[Any], fills: Mapping[int, Scalar], names: Sequence[str]) -> None:
        """Take up the graph's arguments: what their padding holds, and which of them share memory."""
        for position, value in enumerate(inputs):
            if not isinstance(value, TensorValue):
                continue
            self.inputs_of.setdefault(value.storage, []).append(value)
            self.keys_of.setdefault(value.storage, set()).add(value.key)
            if position in fills and self.rows.padded(value):
                self.rows.known[value.key] = Contents(Contents.all(fills[position], value.dtype).padding)
            reason = self._unusual(value)
            if reason:
                self.tainted[value.key] = self.number(Leak(names[position], "", "", reason))

    def _unusual(self, value: TensorValue) -> str:
        if not self.rows.padded(value):
            return ""
        if value.storage < 0:
            return "it has no strides"
        for size in value.shape:
            if not grows(size, self.rows.symbols):
                return f"its size {self.rows.name(size)} may fall while the axis grows"
        return ""

    def visit(self, call: AtenCall) -> None:
        """Take up one call: hand on the leaks that reach its arguments, or what its rule finds."""
        before = self.reaching(tuple(call.arguments.values()))
        verdict = self.verdict(call) if not before else Verdict()
        own = self.number(self._leak(call, verdict.reason)) if verdict.reason else frozenset()
        leaks = before | own
        inputs = call.tensors
        layout = None
        if not leaks:
            layout, leaks, origin = self._layout(call, verdict)
        fresh = [symbol for output in call.outputs for symbol in _symbols_of(output)]
        for position, result in enumerate(call.results):
            reached = leaks
            if layout is not None and result.shape != call.results[0].shape:
                reached = origin
            if not leaks and position in verdict.reasons and self.touches(call):
                reached = self.number(self._leak(call, verdict.reasons[position]))
            if result.key in {value.key for value in inputs} and not call.writes:
                # The op gave its argument back as it was.
                if reached:
                    self.tainted[result.key] = self.tainted.get(result.key, frozenset()) | reached
                continue
            if reached:
                self.tainted[result.key] = self.tainted.get(result.key, frozenset()) | reached
            self.keys_of.setdefault(result.storage, set()).add(result.key)
            sources = [value for value in inputs if value.storage == result.storage and value.key != result.key]
            if position in verdict.narrowed or any(value.key in self.narrowed for value in sources):
                self.narrowed.add(result.key)
            if layout is not None and not call.writes:
                self.rows.layouts[result.key] = layout
                self.merged[result.key] = origin
            if not call.writes:
                self.rows.known[result.key] = verdict.contents[position] if position < len(verdict.contents) else UNKNOWN
        if leaks:
            known = {symbol for value in inputs for symbol in _symbols_of(value)}
            for symbol in fresh:
                if symbol not in known and is_unbacked(symbol):
                    self.tainted_symbols[symbol] = self.tainted_symbols.get(symbol, frozenset()) | leaks
        self._write(call, verdict, leaks)
        if leaks and (not call.outputs or all(output is None for output in call.outputs) or _is_random(call)):
            self.reported |= leaks

    def _layout(self, call: AtenCall, verdict: Verdict) -> tuple[Layout | None, frozenset[int], frozenset[int]]:
        """Return the layout of what a safe call gives, the leaks where it has none, and the views that it comes from."""
        origin = frozenset().union(*(self.merged.get(value.key, frozenset()) for value in call.tensors))
        rule = self._rule(call)
        if call.writes and (verdict.merges or (rule is not None and rule.judge is reshape)):
            return None, origin | (self.number(self._leak(call, verdict.merges)) if verdict.merges else origin), origin
        if verdict.merges:
            origin |= self.number(self._leak(call, verdict.merges))
            return verdict.layout, frozenset(), origin
        if not origin or rule is None or rule.judge is reshape:
            return None, origin if rule is None else frozenset(), origin
        layout = carried(call, rule, self.rows)
        if layout is None or any(target.key not in self.merged for target in call.writes):
            return None, origin, origin
        plain = all(len(factors) == 1 for factors in layout)
        return None if plain else layout, frozenset(), origin

    def _write(self, call: AtenCall, verdict: Verdict, leaks: frozenset[int]) -> None:
        for target in call.writes:
            for key in self.keys_of.get(target.storage, set()):
                self.rows.known.pop(key, None)
            if leaks:
                self.tainted_memory[target.storage] = self.tainted_memory.get(target.storage, frozenset()) | leaks
                self.tainted[target.key] = self.tainted.get(target.key, frozenset()) | leaks
                if target.storage in self.inputs_of or target.storage < 0:
                    self.reported |= leaks
        if len(call.writes) == 1 and not leaks and verdict.contents and call.results[:1] == call.writes:
            self.rows.known[call.writes[0].key] = verdict.contents[0]

    def touches(self, call: AtenCall) -> bool:
        """Whether anything in a call is another one for the bucket than for the call."""
        rows = self.rows
        return any(rows.padded(value) for value in (*call.tensors, *call.results)) or any(
            rows.depends(number) for number in numbers_in((*call.arguments.values(), *call.outputs))
        )

    def verdict(self, call: AtenCall) -> Verdict:
        """Return what the rules say of a call whose arguments no leak has reached."""
        rule = self._rule(call)
        if not self.touches(call):
            # The same op on the same values.
            return Verdict(contents=self._asked(rule, call).contents) if rule is not None else Verdict()
        if call.node in self.trusted or not self.trusted_names.isdisjoint(names_of_callable(call.target)):
            verdict = Verdict(narrowed=frozenset(range(len(call.results))))
        else:
            verdict = self._judged(call, rule)
        if verdict.reason:
            return verdict
        for value in call.results:
            reason = self._unusual(value)
            if reason:
                return unsafe(reason)
        for target in call.writes:
            if target.key in self.narrowed and self.rows.padded(target):
                return unsafe("it writes to a part of a tensor that is longer in the bucket, and so to other rows of it")
            sharing = self.inputs_of.get(target.storage, [])
            if len(sharing) > 1 and any(self.rows.padded(value) for value in sharing):
                return unsafe("it writes to memory that two arguments share; their padded copies would share none")
        return verdict

    def _judged(self, call: AtenCall, rule: Rule | None) -> Verdict:
        if rule is None or "out" in call.arguments:
            if _is_random(call):
                return unsafe("it draws random numbers, and how many depends on the size")
            return unsafe(
                "fxbucket has no rule for it; declare it with "
                f'row_safe_ops=["{call.op}"] if each row depends on its own row alone'
            )
        for name, value in call.arguments.items():
            if name not in rule.sizes and any(self.rows.depends(number) for number in numbers_in((value,))):
                number = next(number for number in numbers_in((value,)) if self.rows.depends(number))
                return unsafe(f"the number {self.rows.name(number)} goes into its result, and the bucket has another one")
        if call.target._overloadname == "other" and call.op in ("aten::max", "aten::min"):
            return pointwise(call, self.rows)
        return self._asked(rule, call)

    def _asked(self, rule: Rule, call: AtenCall) -> Verdict:
        try:
            return rule.judge(call, self.rows)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            # An overload, or the op in another version of torch, with other arguments than the rule reads.
            return unsafe(f"its arguments are not those that its rule knows ({type(error).__name__}: {error})")

    def _rule(self, call: AtenCall) -> Rule | None:
        rule = RULES.get(call.op)
        if rule is not None:
            return rule
        if _is_random(call) or torch.Tag.pointwise not in call.target.tags:
            return None
        return Rule(pointwise)

    def _leak(self, call: AtenCall, reason: str) -> Leak:
        return Leak(call.node.name, call.overload.removesuffix(".default"), line_of(call.node), reason)


def _is_random(call: AtenCall) -> bool:
    """Whether an op draws random numbers; attention does so only where it drops something."""
    return torch.Tag.nondeterministic_seeded in call.target.tags and call.arguments.get("dropout_p") != 0


def _symbols_of(output: object) -> Iterator[sympy.Symbol]:
    if isinstance(output, TensorValue):
        yield from symbols_in(output.shape)
    elif isinstance(output, sympy.Basic):
        yield from symbols_in(output)


def line_of(node: fx.Node) -> str:
    """Return the user's line that a node comes from: ``model.py:12, in forward: y = x.mean(0)``; empty if not known."""
    found = source_line(node)
    if found is None:
        return ""
    found = found.without_folder()
    return f"{found.path}:{found.line}, in {found.function}" + (f": {found.code}" if found.code else "")
