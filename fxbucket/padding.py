"""Padding: calls between two pinned sizes, served by the larger one where that is proved to be harmless."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from fxbucket.cudagraphs import RecordedBucket
from fxbucket.entry import Entry
from fxbucket.journal import Journal
from fxbucket.lookup import Lookup
from fxbucket.options import Options
from fxbucket.pad_plan import Fill, Plan, UnpaddableError, make_plan
from fxbucket.pad_trial import forward_trial, gradient_trial
from fxbucket.passes.captured import python_spelling
from fxbucket.passes.errors import FxbucketWarning, nearest
from fxbucket.passes.lowering import Lowered, lower
from fxbucket.passes.program import Program
from fxbucket.passes.rows import RowProof, prove_rows
from fxbucket.passes.symbolic import Number, is_float_symbol
from fxbucket.passes.text import axis_namer
from fxbucket.torch_compat import without_saved_tensor_hooks


@dataclass(frozen=True, eq=False)
class PaddedCall:
    """Serves calls of one combination of sizes by a larger bucket.

    Attributes:
        entry: the larger bucket.
        plan: how arguments grow and results are cut.
        sizes: the sizes of the calls, by the axes' names.
        symbols: those that the bucket has larger than the calls.
    """

    entry: Entry
    plan: Plan
    sizes: tuple[tuple[str, Number], ...]
    symbols: frozenset[sympy.Symbol]

    def __call__(self, *args: Any) -> Any:
        """Pad a call, run it, and return its own results."""
        run, plan = self.entry.run, self.plan
        assert run is not None  # there is none of these before
        results = run.padded(args, plan) if isinstance(run, RecordedBucket) else NotImplemented
        if results is NotImplemented:
            padded = plan.arguments(args)
            results = plan.finish(args, padded, run(*padded))
        self.entry.padded[self.sizes] += 1
        return results


class Padding:
    """Serves calls of one graph by padding them up to a pinned size.

    Attributes:
        refusals: why calls were not padded, in the order in which the reasons were found.
    """

    def __init__(
        self, program: Program, options: Options, journal: Journal, entries: Sequence[Entry], lookup: Lookup
    ) -> None:
        self.refusals: dict[str, None] = {}
        self._program = program
        self._options = options
        self._journal = journal
        self._entries = entries
        self._lookup = lookup
        # Where every miss is padded, the look-up reads this table itself.
        self._served: dict[Any, PaddedCall] = lookup.padded if lookup.padded is not None else {}
        self._refused: set[tuple[Number, ...]] = set()
        self._lowered: Lowered | None = None
        self._proofs: dict[frozenset[sympy.Symbol], RowProof] = {}
        self._tried: dict[tuple[int, frozenset[sympy.Symbol], bool], str] = {}
        self._known_entries = -1
        self._fills = _fills(program, options.pad_values)
        self._lock = threading.RLock()

    @property
    def lowered(self) -> Lowered:
        """The graph's ops, as proofs see them."""
        if self._lowered is None:
            self._lowered = lower(self._program)
        return self._lowered

    def plan_to(
        self, sizes: Mapping[sympy.Symbol, Number], target: Mapping[sympy.Symbol, Number], args: Sequence[Any]
    ) -> Plan | str:
        """Return how a call is padded to these sizes, or why it must not be; only a proof counts."""
        changed = frozenset(symbol for symbol, value in sizes.items() if target[symbol] != value)
        if any(is_float_symbol(symbol) or not 0 < sizes[symbol] < target[symbol] for symbol in changed):
            return "padding makes sizes of at least one row larger, and nothing else"
        if self._program.capture.grad_enabled and torch.is_grad_enabled() and _follows_gradients(args):
            return "gradients are recorded, and padding would have to be tried, which other ranks take no part in"
        with self._lock:
            proof = self._proof(changed)
            if not proof.is_safe:
                return "; ".join(map(str, proof.leaks))
            try:
                return make_plan(self._program.capture, sizes, target, self._fills)
            except UnpaddableError as error:
                return str(error)

    def function(self, sizes: Mapping[sympy.Symbol, Number], args: tuple[Any, ...]) -> PaddedCall | None:
        """Return what serves calls of these sizes by the next larger bucket; ``None`` where none may serve them now.

        Args:
            sizes: the value of each symbol in the call.
            args: the call's arguments.
        """
        with self._lock:
            key = tuple(sizes.values())
            if len(self._entries) != self._known_entries or len(self._refused) > _MOST_SIZES:
                # Another pinned size may be nearer.
                self._forget()
            if key in self._refused:
                return None
            place = key if len(key) != 1 else key[0]
            found = self._served.get(place)
            if found is not None:
                return found
            made = self._way(sizes)
            if made is None:
                self._refused.add(key)
                return None
            is_background = self._options.compile_when == "background"
            if made.entry.run is None or (made.entry.emitted is None and is_background):
                return None
            if not self._is_trusted(made, args):
                self._refused.add(key)
                return None
            if len(self._served) >= _MOST_SIZES:
                self._served.clear()
            self._served[place] = made
            return made

    def _forget(self) -> None:
        self._refused.clear()
        self._known_entries = len(self._entries)
        self._served.clear()

    def _way(self, sizes: Mapping[sympy.Symbol, Number]) -> PaddedCall | None:
        entry = self.next_larger(sizes)
        if entry is None:
            return None
        changed = frozenset(symbol for symbol, value in entry.binding.items() if sizes.get(symbol, value) != value)
        if self._options.padding == "proved":
            proof = self._proof(changed)
            if not proof.is_safe:
                self._refuse("; ".join(map(str, proof.leaks)))
                return None
        try:
            plan = make_plan(self._program.capture, sizes, entry.binding, self._fills)
        except UnpaddableError as error:
            self._refuse(str(error))
            return None
        return PaddedCall(entry, plan, tuple(self._lookup.all_by_name(sizes).items()), changed)

    def next_larger(self, sizes: Mapping[sympy.Symbol, Number]) -> Entry | None:
        """Return the pinned bucket that holds these sizes with the fewest elements more; the first of equals."""
        found: list[tuple[float, int, Entry]] = []
        for number, entry in enumerate(self._entries):
            if entry.bucket.ranges or entry.note or not _holds(entry.binding, sizes):
                continue
            growth = 1.0
            for symbol, value in entry.binding.items():
                growth *= value / max(sizes.get(symbol, value), 1) if not is_float_symbol(symbol) else 1
            found.append((growth, number, entry))
        return min(found)[2] if found else None

    def _proof(self, symbols: frozenset[sympy.Symbol]) -> RowProof:
        if symbols not in self._proofs:
            # As with boundaries, an op may be in one graph of a model and not in the next; the first must hold it.
            partial = self._program.capture.is_fragment or self._program.capture.is_continuation
            self._proofs[symbols] = prove_rows(
                self._program,
                symbols,
                row_safe_ops=self._options.row_safe_ops,
                fills=self._fills,
                missing="ignore" if partial or self._journal.number else "error",
                lowered=self.lowered,
            )
        return self._proofs[symbols]

    @without_saved_tensor_hooks()
    def _is_trusted(self, way: PaddedCall, args: tuple[Any, ...]) -> bool:
        """Whether what cannot be proved has passed a trial; one trial for each bucket and set of axes."""
        with_gradients = self._program.capture.grad_enabled and torch.is_grad_enabled() and _follows_gradients(args)
        if self._options.padding == "proved" and not with_gradients:
            return True
        if self._options.agree != "off":
            # A trial runs collectives, as many as its outcome needs, and its outcome may be another one on another rank.
            self._refuse(f"it would have to be tried, and with agree={self._options.agree!r} only what is proved is padded")
            return False
        entry, capture = way.entry, self._program.capture
        key = (id(entry), way.symbols, with_gradients)
        if key not in self._tried:
            assert entry.run is not None  # the caller has looked
            failed, calls = "", entry.counter[0]
            if self._options.padding == "tested":
                failed = forward_trial(capture, way.plan, entry.run, args)
            if with_gradients and not failed:
                failed = gradient_trial(capture, way.plan, entry.run, args)
            entry.counter[0] = calls
            self._tried[key] = failed
            if failed:
                names = ", ".join(axis_namer(capture.axes)(symbol) for symbol in sorted(way.symbols, key=str))
                self._refuse(f"a trial of padding {names} to {entry.bucket} failed: {failed}")
        return not self._tried[key]

    def _refuse(self, reason: str) -> None:
        if reason in self.refusals:
            return
        self.refusals[reason] = None
        self._journal.unpadded(reason)
        text = f"calls are not padded, and run symbolically compiled: {reason}"
        warnings.warn(text, FxbucketWarning, stacklevel=2)


_MOST_SIZES = 4096
"""How many combinations of sizes are remembered at once."""


def _holds(binding: Mapping[sympy.Symbol, Number], sizes: Mapping[sympy.Symbol, Number]) -> bool:
    """Whether each size of a call is at most that of a bucket, and each float the same."""
    return all(
        sizes.get(symbol, value) == value if is_float_symbol(symbol) else 0 < sizes.get(symbol, value) <= value
        for symbol, value in binding.items()
    )


def _follows_gradients(args: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)


def _fills(program: Program, given: Mapping[str, Fill]) -> dict[int, Fill]:
    """Return what the padding of each argument holds, by its position."""
    spelled: dict[str, int] = {}
    for held in program.capture.placeholders:
        if held.role == "input":
            spelled.setdefault(python_spelling(held.source), held.index)
    for name in given:
        if name not in spelled and not program.capture.is_fragment and not program.capture.is_continuation:
            text = f"pad_values: no argument of the captured graph is {name!r}; {nearest(name, spelled)}."
            warnings.warn(text, FxbucketWarning, stacklevel=2)
    return {spelled[name]: fill for name, fill in given.items() if name in spelled}
