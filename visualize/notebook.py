"""Pictures in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from fxbucket.passes.program import Piece, Program
from fxbucket.visualize.fold import Fold
from fxbucket.visualize.svg import DEFAULT_TIMEOUT, svg_text
from fxbucket.visualize.theme import ThemeName


@dataclass(frozen=True)
class Picture:
    """A drawing that a notebook shows; ``svg`` is its text."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({len(self.svg)} characters of SVG)"


def show(
    subject: Program | Piece,
    *,
    theme: ThemeName = "light",
    fold: Fold = "auto",
    fold_parameters: bool = True,
    source_links: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> Picture:
    """Return the drawing of a program or a piece as a value that a notebook shows.

    The options are those of :func:`~fxbucket.visualize.save_svg`. A program or a piece alone shows as text.

    Raises:
        OptionError: the subject cannot be drawn, or an option has no such value.
        DrawingError: there is no `dot` program, or it failed.
    """
    text = svg_text(
        subject,
        theme=theme,
        fold=fold,
        fold_parameters=fold_parameters,
        source_links=source_links,
        timeout=timeout,
    )
    return Picture(text)
