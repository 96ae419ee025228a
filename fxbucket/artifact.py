"""A piece compiled for a bucket, and what is known of its making."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import sympy

from fxbucket.direct import Direct
from fxbucket.inductor import generated_code

PieceCall = Callable[..., Any]
"""Takes a piece's inputs in order and returns its outputs as a tuple or a list."""

Origin = Literal["compiled", "worker", "loaded", "shared", "as it is"]


@dataclass(frozen=True, eq=False)
class Artifact:
    """What runs one piece in one bucket.

    Attributes:
        piece: the piece's name.
        call: runs it.
        inputs: the names of the program's values that ``call`` takes, in its order.
        origin: ``"compiled"`` here, by a ``"worker"``, ``"loaded"`` from the store, ``"shared"`` with an equal piece, or
            ``"as it is"``: not compiled at all.
        seconds: how long its compilation or loading took; 0 for what is shared or runs as it is.
        conditions: what its compiler came to rely on.
        note: why it was not shared, stored or sent to a worker, or an empty text.
        direct: what runs it below its compiler's wrappers, where nothing of them is needed.
    """

    piece: str
    call: PieceCall
    inputs: tuple[str, ...]
    origin: Origin
    seconds: float = 0.0
    conditions: tuple[sympy.Basic, ...] = ()
    note: str = ""
    direct: Direct | None = None

    @property
    def code(self) -> str:
        """The code that the compiler generated; empty where it keeps none."""
        return "" if self.origin == "as it is" else generated_code(self.call)
