"""Concretize: put a bucket's numbers in the place of symbols, in metadata and in arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import sympy

from fxbucket.passes.admit import binding_for, with_floats
from fxbucket.passes.buckets import Bucket
from fxbucket.passes.errors import PreconditionError, SizeError
from fxbucket.passes.hints import hints_beside
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Program
from fxbucket.passes.ranges import Bounds
from fxbucket.passes.rebuild import check_bound, for_bucket
from fxbucket.passes.symbolic import Number, is_unbacked


@dataclass(frozen=True)
class Concretize(BasePass):
    """Put numbers in the place of symbols, exactly, in every piece.

    Before: ``view(x, (tokens, 64))`` with ``x: f32[tokens*64]``. After, for 512: ``view(x, (512, 64))`` with
    ``x: f32[32768]``. Inputs and outputs that were sizes are gone: they are constants now.

    Attributes:
        sizes: axis name (or one of its expressions) → size, or a :class:`Bucket` of sizes.
        remaining: what a symbol without a number is: an error, or kept symbolic.
        hints: the values at which a compiler may try the symbols that are kept, where not those of the capture.
    """

    sizes: Mapping[str, Number] | Bucket
    remaining: Literal["error", "keep"] = "error"
    hints: Mapping[sympy.Symbol, Number] = field(default_factory=dict)
    name: ClassVar[str] = "concretize"

    def requires(self, program: Program) -> None:
        if not program.is_split:
            raise PreconditionError("concretize: the program is not split; run Split first (Split() keeps one piece).")
        if program.bucket is not None:
            raise PreconditionError(
                f"concretize: the program is concrete for {program.bucket} already; start from the split one."
            )

    def run(self, program: Program) -> Program:
        capture = program.capture
        bucket = self.sizes if isinstance(self.sizes, Bucket) else None
        sizes: Mapping[str, Number] = bucket.sizes if bucket is not None else self.sizes  # type: ignore[assignment]
        binding = with_floats(capture, binding_for(capture, sizes), self.hints, f"concretize: {_sizes_text(sizes)}")
        open_axes = [axis for axis in capture.axes if any(symbol not in binding for symbol in axis.symbols)]
        if open_axes and self.remaining == "error":
            names = ", ".join(repr(axis.name) for axis in open_axes)
            raise SizeError(f"concretize: axis {names} has no size; name it too, or keep it symbolic with remaining='keep'.")

        named = {name if name in capture.unseen else capture.axis(name).name: size for name, size in sizes.items()}
        hints = hints_beside(capture, binding, self.hints)
        done = for_bucket(program, bucket or Bucket.of(named), binding, hints, Bounds())
        kept = [Finding(axis.name, "kept symbolic") for axis in open_axes]
        return done.with_findings(*kept)

    def ensures(self, before: Program, after: Program) -> None:
        check_bound(after, "concretize")

    def __str__(self) -> str:
        sizes = self.sizes.sizes if isinstance(self.sizes, Bucket) else self.sizes
        return f"Concretize({_sizes_text(sizes)})"


def _sizes_text(sizes: Mapping[str, Number]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def is_fully_concrete(program: Program) -> bool:
    """Whether no backed symbol is open; unbacked symbols do not count, since no size of a call decides them."""
    return all(is_unbacked(symbol) for symbol in program.open_symbols)
