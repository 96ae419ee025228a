"""A bucket of one captured graph at run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from fxbucket.artifact import Artifact
from fxbucket.emit import Emitted
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.conditions import holds
from fxbucket.passes.program import Program
from fxbucket.passes.ranges import Bounds
from fxbucket.passes.symbolic import Number


@dataclass(eq=False)
class Entry:
    """A bucket of one graph at run time.

    Attributes:
        bucket: what it serves.
        binding: the number of each symbol that it pins.
        hints: the values of the other symbols at which the compiler may try things.
        program: the program that was compiled for it; ``None`` until then.
        artifacts: what runs its pieces, in order; empty until compiled.
        emitted: its straight-line function; ``None`` until compiled.
        conditions: what else must hold of a call's sizes.
        seconds: how long compilation took.
        counter: its first item counts the calls that it served.
        padded: how many of these were padded, by the sizes of the call.
        recording: whether it is recorded as a CUDA graph, or why not; empty where nobody asked.
        note: why it runs uncompiled, or an empty text.
        bounds: what its ranges say of symbols that it leaves open.
        run: serves a call of its sizes: what compiles it first, then its compiled function.
        ready: puts the compiled function where the look-up finds it.
    """

    bucket: Bucket
    binding: Mapping[sympy.Symbol, Number]
    hints: Mapping[sympy.Symbol, Number] = field(default_factory=dict)
    program: Program | None = None
    artifacts: tuple[Artifact, ...] = ()
    emitted: Emitted | None = None
    conditions: tuple[sympy.Basic, ...] = ()
    seconds: float = 0.0
    counter: list[int] = field(default_factory=lambda: [0])
    padded: Counter[tuple[tuple[str, Number], ...]] = field(default_factory=Counter)
    recording: Callable[[], str] = field(default=lambda: "", repr=False)
    note: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    run: Callable[..., Any] | None = field(default=None, repr=False)
    ready: Callable[[Callable[..., Any]], None] = field(default=lambda _: None, repr=False)

    @property
    def calls(self) -> int:
        """How many calls of its own sizes it served."""
        return self.counter[0] - self.padded.total()

    def serve(self, function: Callable[..., Any]) -> None:
        """Have a function serve the entry's calls from now on."""
        self.run = function
        self.ready(function)

    def accepts(self, sizes: Mapping[sympy.Symbol, Number]) -> bool:
        """Whether what was compiled is right for these sizes."""
        if self.program is None:
            return True
        pinned = {symbol: value for symbol, value in self.program.binding.items() if symbol in sizes}
        return all(sizes[symbol] == value for symbol, value in pinned.items()) and all(
            holds(condition, sizes) for condition in self.conditions
        )


@dataclass(frozen=True)
class SavedEntry:
    """What is saved of an entry: what it serves and what it was tried at.

    Attributes:
        bucket: what it serves.
        binding: the number of each symbol that it pins.
        hints: the values of the other symbols at which the compiler tried things.
        is_dynamic: whether it is a symbolic compilation that serves misses.
    """

    bucket: Bucket
    binding: Mapping[sympy.Symbol, Number]
    hints: Mapping[sympy.Symbol, Number]
    is_dynamic: bool
