"""A piece compiled for a bucket, and what is known of its making."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fxbucket.torch_compat import generated_code

PieceCall = Callable[..., Any]
"""Takes a piece's inputs in order and returns its outputs as a tuple or a list."""

Origin = Literal["compiled", "shared", "as it is"]


@dataclass(frozen=True, eq=False)
class Artifact:
    """What runs one piece in one bucket.

    Attributes:
        piece: the piece's name.
        call: runs it.
        origin: ``"compiled"`` for this piece, ``"shared"`` with an equal one, or ``"as it is"``: not compiled at all.
        seconds: how long the compiler took; 0 where it was not asked.
    """

    piece: str
    call: PieceCall
    origin: Origin
    seconds: float = 0.0

    @property
    def code(self) -> str:
        """The code that the compiler generated; empty where it keeps none."""
        return "" if self.origin == "as it is" else generated_code(self.call)
