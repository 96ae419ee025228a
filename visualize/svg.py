"""DOT → SVG by Graphviz's `dot`, tidied so that it reads well in a browser, in a page and in a slide."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

from fxbucket.passes.errors import DrawingError, OptionError
from fxbucket.passes.program import Piece, Program
from fxbucket.visualize.dot import SPACE, dot_of
from fxbucket.visualize.draw import sketch_of
from fxbucket.visualize.fold import Fold, folded
from fxbucket.visualize.sketch import Sketch
from fxbucket.visualize.theme import FONTS, Theme, ThemeName, theme_named

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
ET.register_namespace("", _SVG)
ET.register_namespace("xlink", _XLINK)

DEFAULT_TIMEOUT = 30.0
"""Seconds that a layout may take."""


def save_svg(
    subject: Program | Piece,
    path: str | os.PathLike[str],
    *,
    theme: ThemeName = "light",
    fold: Fold = "auto",
    fold_parameters: bool = True,
    source_links: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Draw a program or a piece into an SVG file.

    Args:
        subject: a program before or after Split, or one piece.
        path: the file; it is replaced.
        theme: ``"light"`` or ``"dark"``.
        fold: ``True`` draws parts that repeat once and straight chains as one box, ``False`` draws every node, and
            ``"auto"`` folds only where the whole would be too large to read.
        fold_parameters: write parameters and buffers into the ops that read them instead of drawing them.
        source_links: link each op to its source line; ``False`` names the file alone, so that a drawing may be handed on
            without the paths of this machine.
        timeout: seconds that the layout may take; the folded drawing is used instead where the whole takes longer.

    Raises:
        OptionError: the subject cannot be drawn, or an option has no such value.
        DrawingError: there is no `dot` program, it failed, or the file cannot be written.
    """
    colours = theme_named(theme)
    sketch = sketch_of(subject, fold_parameters=fold_parameters, source_links=source_links)
    write_text(path, svg_of(sketch, colours, fold, timeout))


def svg_text(
    subject: Program | Piece,
    *,
    theme: ThemeName = "light",
    fold: Fold = "auto",
    fold_parameters: bool = True,
    source_links: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> str:
    """Return the drawing of a program or a piece as SVG text; the options are those of :func:`save_svg`."""
    colours = theme_named(theme)
    sketch = sketch_of(subject, fold_parameters=fold_parameters, source_links=source_links)
    return svg_of(sketch, colours, fold, timeout)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file.

    Raises:
        DrawingError: it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DrawingError(f"{os.fspath(path)!r} cannot be written: {error.strerror}; give another path.") from error


def svg_of(sketch: Sketch, theme: Theme, fold: Fold, timeout: float) -> str:
    """Return the SVG text of a sketch, folded where its layout takes longer than ``timeout`` seconds."""
    if not timeout > 0:
        raise OptionError(f"timeout={timeout!r} must be a number of seconds above 0.")
    small = folded(sketch, fold)
    try:
        return _tidied(_layout(dot_of(small, theme), timeout), small.title, theme)
    except subprocess.TimeoutExpired:
        smaller = folded(sketch, True)
        if smaller == small:
            raise _too_slow(small, timeout) from None
    warnings.warn(
        f"the layout of {len(small.boxes)} boxes took longer than timeout={timeout:g} seconds, so the drawing is folded to "
        f"{len(smaller.boxes)} boxes; give fold=True, or a longer timeout.",
        stacklevel=3,
    )
    try:
        return _tidied(_layout(dot_of(smaller, theme), timeout), smaller.title, theme)
    except subprocess.TimeoutExpired:
        raise _too_slow(smaller, timeout) from None


def _too_slow(sketch: Sketch, timeout: float) -> DrawingError:
    return DrawingError(
        f"the layout of {len(sketch.boxes)} boxes took longer than timeout={timeout:g} seconds, though it is folded; give a "
        f"longer timeout, or draw one piece: save_svg(program.pieces[0], path)."
    )


def _layout(dot: str, timeout: float) -> str:
    """Return what `dot` draws.

    Raises:
        DrawingError: there is no such program, or it failed.
        subprocess.TimeoutExpired: it took too long; it is stopped.
    """
    program = shutil.which("dot")
    if program is None:
        raise DrawingError(
            "Graphviz's program `dot` is not on the PATH; install it (apt-get install graphviz, brew install graphviz, "
            "conda install graphviz), or lay out the text of fxbucket.visualize.dot_text(program) elsewhere."
        )
    # Graphviz 2 loses its way in some graphs with clusters ("trouble in init_rank"); its other ranking knows better, but
    # makes some drawings wider.
    for options in ((), ("-Gnewrank=true",)):
        done = subprocess.run(
            [program, "-Tsvg", *options], input=dot.encode(), capture_output=True, timeout=timeout, check=False
        )
        if done.returncode == 0:
            return done.stdout.decode()
    said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
    raise DrawingError(f"`dot` ended with code {done.returncode}: {said or 'it said nothing'}; please report it.")


def _tidied(svg: str, title: str, theme: Theme) -> str:
    """Return Graphviz's SVG with tooltips where browsers look for them, and texts above the arrows that cross them."""
    root = ET.fromstring(svg)
    root.attrib.update({"role": "img", "font-family": FONTS, "style": f"background: {theme.background}"})
    for text in root.iter(_tag("text")):
        text.attrib.pop("font-family", None)
    drawing = root.find(_tag("g"))
    if drawing is not None:
        _unwrap_link(drawing)
        _set_title(drawing, title)
        lifted: list[ET.Element] = []
        for group in drawing.findall(_tag("g")):
            _unwrap_link(group)
            if group.get("class") == "cluster":
                frame = next((part for part in group if part.get("fill") and part.tag != _tag("text")), None)
                lifted += _lifted(group, frame.get("fill", "") if frame is not None else theme.background)
            elif group.get("class") == "edge":
                lifted += _lifted(group, theme.background)
        drawing.extend(lifted)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _tag(name: str) -> str:
    return f"{{{_SVG}}}{name}"


def _set_title(group: ET.Element, text: str) -> None:
    title = group.find(_tag("title"))
    if title is None:
        title = ET.Element(_tag("title"))
        group.insert(0, title)
    title.text = text


def _unwrap_link(group: ET.Element) -> None:
    """Move a tooltip from Graphviz's link, where only some programs look for it, to the title; drop a link to nowhere."""
    for wrapper in group.findall(_tag("g")):
        link = wrapper.find(_tag("a"))
        if link is None:
            continue
        tooltip = link.attrib.pop(f"{{{_XLINK}}}title", None)
        if tooltip is not None:
            _set_title(group, tooltip)
        position = list(group).index(wrapper)
        group.remove(wrapper)
        inside = [link] if link.get(f"{{{_XLINK}}}href") else list(link)
        for offset, part in enumerate(inside):
            group.insert(position + offset, part)


def _lifted(group: ET.Element, halo: str) -> list[ET.Element]:
    """Take the texts out of a cluster or an arrow, and return them with a halo that keeps arrows off the letters."""
    texts = [part for part in group if part.tag == _tag("text")]
    if not texts:
        return []
    attributes = {"class": f"{group.get('class')}-text", "stroke": halo, "stroke-width": "3", "stroke-linejoin": "round"}
    lifted = ET.Element(_tag("g"), {**attributes, "paint-order": "stroke"})
    title = group.find(_tag("title"))
    if title is not None:
        _set_title(lifted, title.text or "")
    for text in texts:
        group.remove(text)
        shown = (text.text or "").removeprefix(SPACE)
        if shown != text.text:
            # Some programs drop a space at the start of a text, so the place says it instead.
            text.set("x", f"{float(text.get('x', '0')) + float(text.get('font-size', '0')) / 2:g}")
        text.text = shown.removesuffix(SPACE)
        lifted.append(text)
    return [lifted]
