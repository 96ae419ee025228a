"""Ranks that agree: the same sizes, and so the same bucket, on every rank before a call, or an error on all of them."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
from torch import fx

from fxbucket.dispatch import Dispatcher
from fxbucket.lookup import sizes_text
from fxbucket.options import Options
from fxbucket.pad_plan import Plan
from fxbucket.passes.errors import MissingRankError, OptionError, RankMismatchError
from fxbucket.passes.program import Program
from fxbucket.passes.row_collectives import met_by_other_ranks
from fxbucket.passes.symbolic import Number
from fxbucket.rank_exchange import NUM_INTS, RankExchange, listed
from fxbucket.rank_facts import differences, facts_of, moved, number_of
from fxbucket.torch_compat import without_tracing

_CAPTURE, _COMPILED, _CALL, _PADDED = 1, 2, 3, 4
_HEAD = 4
"""What kind of thing is told, of which graph, one number that must be the same, and whether to compile; then come sizes."""

_MOST_SIZES = 4096
"""How many combinations of sizes are remembered at once."""

Sizes = Mapping[sympy.Symbol, Number]


class Ranks:
    """The ranks that one compiled model agrees with.

    Args:
        options: the model's options.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._exchange: RankExchange | None = None

    @without_tracing()
    def captured(self, number: int, program: Program, whole: fx.GraphModule) -> None:
        """Compare a graph that was just captured with those of the other ranks.

        Args:
            number: the graph's number.
            program: cut, and with its admitted buckets.
            whole: the graph that ranks have in common: its own, or that of distributed tensors that it was made from.

        Raises:
            RankMismatchError: they captured another one, have other options, or are at something else.
            MissingRankError: some did not come in time.
        """
        facts = facts_of(program, whole, self._options)
        exchange = self._exchange
        if exchange is None:
            exchange = RankExchange(self._options.agree_group, self._options.agree_timeout)
            self._exchange = exchange
        if exchange.is_joined:
            self._equal((_CAPTURE, number, number_of(facts)), f"it captures graph {number}", facts)
            return
        self._compare(exchange.texts(json.dumps([f"it captures graph {number}", facts])))
        exchange.join()

    @contextlib.contextmanager
    def compiling(self, number: int) -> Iterator[None]:
        """After what is done in the context, hear from every rank whether that failed.

        Raises:
            RankMismatchError: it did on another rank, and not on this one.
            MissingRankError: some ranks did not end in time.
        """
        try:
            yield
        except Exception as error:
            with contextlib.suppress(RankMismatchError, MissingRankError), without_tracing():
                self._equal((_COMPILED, number, 1), f"compiling graph {number} failed: {error}")
            raise
        with without_tracing():
            self._equal((_COMPILED, number, 0), f"it compiled graph {number}")

    def largest(
        self, number: int, sizes: Sequence[Number], mark: int, waits: bool, text: Callable[[], str]
    ) -> tuple[list[int], list[bool], bool]:
        """Return the largest of all ranks' sizes, which of them are not the same on all, and whether any rank must compile.

        Args:
            number: the graph's number.
            sizes: those of the call.
            mark: what the collectives move, as a number that must be the same on ranks with the same sizes.
            waits: whether this rank has to compile something for these sizes.
            text: what this rank is at, for errors.

        Raises:
            RankMismatchError: with ``agree="check"``, sizes differ; or what collectives move does, or a rank is at
                something else.
        """
        own = [_as_int(size) for size in sizes]
        most, least = self._told((_CALL, number, mark, int(waits), *own), text)
        end = _HEAD + len(own)
        differ = [one != other for one, other in zip(most[_HEAD:end], least[_HEAD:end], strict=True)]
        if not any(differ) and most[2] != least[2]:
            self._disagree(text())
        if any(differ) and self._options.agree == "check":
            self._disagree(text())
        for size, differs in zip(sizes, differ, strict=True):
            if differs and not isinstance(size, int):
                self._disagree(text())
        return most[_HEAD:end], differ, bool(most[3])

    def padded(self, number: int, refusal: str, waits: bool, text: Callable[[], str]) -> bool:
        """Hear from every rank whether its call can be padded; ``refusal`` says why that of this one cannot.

        Returns:
            Whether any rank has to compile something for the larger sizes, as ``waits`` says of this one.

        Raises:
            RankMismatchError: some cannot; says which and why.
        """
        head = (_PADDED, number, int(bool(refusal)), int(waits))
        return bool(self._equal(head, f"{text()}{': ' if refusal else ''}{refusal}")[3])

    def _equal(self, head: tuple[int, ...], text: str, facts: Mapping[str, str] | None = None) -> list[int]:
        """Tell numbers of which three must be those of every rank; the third is also 0 where it says that something failed.

        Returns:
            The largest of each number.
        """
        most, least = self._told(head, lambda: text, facts)
        failed = head[0] in (_COMPILED, _PADDED) and most[2] != 0
        if failed or most[2] != least[2]:
            self._disagree(text, facts)
        return most

    def _told(
        self, numbers: Sequence[int], text: Callable[[], str], facts: Mapping[str, str] | None = None
    ) -> tuple[list[int], list[int]]:
        assert self._exchange is not None  # the first capture has made it
        most, least = self._exchange.extremes(numbers)
        if most[:2] != least[:2]:
            self._disagree(text(), facts)
        return most, least

    def _disagree(self, text: str, facts: Mapping[str, str] | None = None) -> None:
        """Raise the error that every rank raises, with what each of them says."""
        assert self._exchange is not None  # as above
        self._compare(self._exchange.texts(json.dumps([text, facts])))
        raise RankMismatchError("ranks disagree, and have told no reason; please report it.")

    def _compare(self, found: Mapping[int, str]) -> None:
        """Raise :class:`RankMismatchError` where ranks say different things, or have different facts."""
        told = {rank: json.loads(text) for rank, text in found.items()}
        facts = {rank: held for rank, (_, held) in told.items()}
        if all(held is not None for held in facts.values()):
            different = differences(facts)
            if different:
                raise RankMismatchError(f"ranks would not run the same graph: {different}. Give every rank the same model.")
        groups: dict[str, list[int]] = {}
        for rank, (text, _) in told.items():
            groups.setdefault(text, []).append(rank)
        if len(groups) == 1 and all(held is not None for held in facts.values()):
            return
        parts = [f"{listed(ranks)}: {text}" for text, ranks in groups.items()]
        more = f"; and {len(parts) - 8} more groups of ranks" if len(parts) > 8 else ""
        mend = ""
        if any(held is not None for held in facts.values()):
            mend = " A rank captures again for sizes that no capture of its own serves, such as 0 and 1."
        elif self._options.agree == "check":
            mend = " Give every rank the same sizes, or choose agree='max'."
        raise RankMismatchError(f"ranks disagree. {'; '.join(parts[:8])}{more}.{mend}")


class AgreedCalls:
    """Serves the calls of one graph after the ranks have agreed on their sizes."""

    def __init__(self, ranks: Ranks, number: int, dispatcher: Dispatcher, options: Options) -> None:
        self._ranks = ranks
        self._number = number
        self._dispatcher = dispatcher
        self._run = dispatcher.emitted.function
        self._options = options
        self._program = dispatcher.program
        self._lookup = dispatcher.lookup
        # By sizes: what collectives move, as a number, and whether something is to be compiled.
        self._known: dict[tuple[Number, ...], tuple[int, bool]] = {}
        most = NUM_INTS - _HEAD
        if len(self._lookup.uses) > most:
            raise OptionError(f"agree={options.agree!r}: the graph has {len(self._lookup.uses)} sizes; {most} is the most.")

    def __call__(self, *args: Any) -> Any:
        """Agree, then serve the call."""
        sizes = self._lookup.sizes(args)
        values = tuple(sizes.values())
        known = self._known.get(values)
        if known is None:
            if len(self._known) >= _MOST_SIZES:
                self._known.clear()
            mark = number_of({"moved": str(moved(self._program, sizes))})
            known = self._known[values] = mark, self._dispatcher.unready(sizes) is not None
        mark, waits = known
        most, differ, any_waits = self._ranks.largest(self._number, values, mark, waits, lambda: self._text(sizes))
        if not any(differ):
            if any_waits:
                self._compile(sizes)
                self._known[values] = mark, False
            return self._run(*args)
        # The largest sizes say what every rank runs; each looks whether its own call can be padded to that, and all hear it.
        symbols = list(sizes)
        agreed = dict(zip(symbols, most, strict=True))
        agreed |= {symbol: size for symbol, size in sizes.items() if not isinstance(size, int)}
        target = self._dispatcher.target(agreed)
        unequal = frozenset(symbol for symbol, differs in zip(symbols, differ, strict=True) if differs)
        unequal |= frozenset(symbol for symbol in symbols if target[symbol] != agreed[symbol])
        plan = self._plan(sizes, target, unequal, args)
        refusal, waits = plan if isinstance(plan, str) else "", self._dispatcher.unready(target) is not None
        if self._ranks.padded(self._number, refusal, waits, lambda: self._text(sizes)):
            self._compile(target)
        if plan is None:
            return self._run(*args)
        assert isinstance(plan, Plan)  # a refusal is an error on every rank
        padded = plan.arguments(args)
        return plan.finish(args, padded, self._run(*padded))

    def _compile(self, sizes: Sizes) -> None:
        """Compile what calls of these sizes run, and hear from all ranks whether they could, before a collective waits."""
        with self._ranks.compiling(self._number):
            compile_all = self._dispatcher.unready(sizes)
            if compile_all is not None:
                compile_all()

    def _text(self, sizes: Sizes) -> str:
        named = sizes_text(self._lookup.all_by_name(sizes)) + (f" (graph {self._number})" if self._number else "")
        shapes = moved(self._program, sizes)
        return f"{named}; its collectives move {', '.join(dict.fromkeys(shapes))}" if shapes else named

    def _plan(self, sizes: Sizes, target: Sizes, unequal: frozenset[sympy.Symbol], args: Sequence[Any]) -> Plan | str | None:
        """Return how a call is padded to the sizes that all ranks run, why it must not be, or ``None`` if it need not be."""
        padding = self._dispatcher.padding
        if padding is None:
            return "the graph runs as it is, uncompiled, and is not padded"
        reason = met_by_other_ranks(padding.lowered, unequal, self._options.row_safe_ops)
        if reason or all(target[symbol] == size for symbol, size in sizes.items()):
            return reason or None
        return padding.plan_to(sizes, target, args)


def _as_int(size: Number) -> int:
    """Return a size as an int of 62 bits; of a float, its bits without the last two."""
    return int(size) if isinstance(size, int) else struct.unpack(">q", struct.pack(">d", float(size)))[0] >> 2
