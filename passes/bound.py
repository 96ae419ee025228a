"""Bound: a bucket of ranges as fresh symbols that carry the ranges to the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import sympy

from fxbucket.passes.admit import settled, with_floats
from fxbucket.passes.buckets import Bucket, Extent, Range
from fxbucket.passes.errors import PreconditionError
from fxbucket.passes.hints import hints_beside
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Program
from fxbucket.passes.rebuild import check_bound, for_bucket
from fxbucket.passes.symbolic import Number


@dataclass(frozen=True)
class Bound(BasePass):
    """Give symbols the bounds of a bucket's ranges, and numbers where the bucket has sizes.

    Before: ``x: f32[tokens, 64]`` with ``tokens`` in 2..∞. After, for ``Range(256, 4096, multiple_of=64)``: the same in an
    environment of its own, where ``tokens`` is in 256..4096 and a multiple of 64, with the middle as its hint. What a
    compiler asks of such sizes is answered by the bounds where they do, and becomes no condition of its artifact.

    Attributes:
        extents: axis name (or one of its expressions) → :class:`Range` or size, or a :class:`Bucket`. Other axes stay as
            the capture has them.
        hints: the values at which a compiler may try the symbols that no range bounds, where not those of the capture.
    """

    extents: Mapping[str, Extent] | Bucket
    hints: Mapping[sympy.Symbol, Number] = field(default_factory=dict)
    name: ClassVar[str] = "bound"

    @property
    def bucket(self) -> Bucket:
        """What the program becomes the program of."""
        return self.extents if isinstance(self.extents, Bucket) else Bucket.of(self.extents)

    def requires(self, program: Program) -> None:
        if not program.is_split:
            raise PreconditionError("bound: the program is not split; run Split first (Split() keeps one piece).")
        if program.bucket is not None:
            raise PreconditionError(f"bound: the program is for {program.bucket} already; start from the split one.")

    def run(self, program: Program) -> Program:
        capture = program.capture
        binding, bounds = settled(capture, self.bucket)
        binding = with_floats(capture, binding, self.hints, f"bound: {self.bucket}")
        hints = hints_beside(capture, binding, self.hints, bounds)
        named = {name if name in capture.unseen else capture.axis(name).name: extent for name, extent in self.bucket}
        done = for_bucket(program, Bucket.of(named), binding, hints, bounds)
        return done.with_findings(
            *(Finding(name, f"kept symbolic in {extent}") for name, extent in named.items() if isinstance(extent, Range))
        )

    def ensures(self, before: Program, after: Program) -> None:
        check_bound(after, "bound")

    def __str__(self) -> str:
        return f"Bound({self.bucket})"
