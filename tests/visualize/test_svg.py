"""A program as SVG: well formed, legible, and with an answer where Graphviz has none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fxbucket.passes import Program, Split
from fxbucket.passes.captured import Placeholder
from fxbucket.passes.errors import DrawingError, OptionError
from fxbucket.passes.program import CutReason
from fxbucket.visualize import save_svg, svg_text
from fxbucket.visualize.labels import TIMES, without_folders
from fxbucket.visualize.sketch import Arrow, Box, Cluster, Sketch
from fxbucket.visualize.svg import svg_of
from fxbucket.visualize.theme import LIGHT

TEXTS = st.text(
    st.one_of(st.sampled_from("<>|{}[]\"\\'&;#%@$: \n\t→nlNtGgamp"), st.characters(exclude_categories=())), max_size=20
)


def seen(text: str) -> str:
    """Return what a reader sees of a text: no spaces, a sign for a line break and for what no program can show."""
    plain = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
    return "".join(re.sub("\r\n|[\r\n\u2028\u2029]", "⏎", plain).replace("\u2060", "").split())


@given(TEXTS, TEXTS, TEXTS, TEXTS)
@example("<b>", "]", "<>", "&lt;")
@example("\\N", "\\", '"\\', "&amp;amp;")
@example("{a|b}", "]]>", "--> ]]", "ü😀\x00")
def test_any_text_comes_out_as_it_went_in(read_svg: Callable[[str], Any], title: str, line: str, tooltip: str, label: str):
    box = Box("box", title, "op", (line,), tooltip=tooltip)
    other = Box("other", title, "boundary", tooltip="other")
    cluster = Cluster("piece", line, "compiled", (box, other), (title,))
    sketch = Sketch("drawing", (label,), (cluster,), (Arrow("box", "other", label),))
    drawn = read_svg(svg_of(sketch, LIGHT, False, 30))
    assert [seen(text) for text in drawn.texts_of("box")] == [seen(title) or "␣", seen(line) or "␣"]
    assert seen(drawn.title("box")) == (seen(tooltip or title) or seen(drawn.title("box")))
    texts = [seen(text) for text in drawn.texts]
    assert texts.count(seen(title) or "␣") >= 3
    if label:
        assert (seen(label) or "␣") in texts


def test_names_of_every_kind_survive(plain: Callable[..., Program], read_svg: Callable[[str], Any]):
    strange = "<b>|{é} \"x\" \\N &lt;\n'ß'"
    program = Split()(plain([(0, [0])]))
    piece = replace(program.pieces[0], reason=CutReason("rule", "", strange))
    placeholder = Placeholder(0, "x0", f"L['batch'][{strange!r}]", "input")
    capture = replace(program.capture, placeholders=(placeholder,))
    drawn = read_svg(svg_text(replace(program, pieces=(piece,), capture=capture)))
    assert seen(strange) in [seen(text) for text in drawn.texts]
    assert seen(drawn.texts_of("x0")[0]) == seen(f"batch[{strange!r}]")


def test_long_names_are_shortened_and_whole_in_the_tooltip(plain: Callable[..., Program], read_svg: Callable[[str], Any]):
    name, reason = "piece_" + "n" * 300, "why " * 100
    program = Split()(plain([(0, [0])]))
    piece = replace(program.pieces[0], name=name, reason=CutReason("rule", "", reason))
    drawn = read_svg(svg_text(replace(program, pieces=(piece,))))
    assert max(map(len, drawn.texts)) <= 80
    assert sum("…" in text for text in drawn.texts) == 2
    assert f"{name}: {reason}" in drawn.title(f"cluster.{name}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_well_formed_and_legible(captured: Program, split: Program, read_svg: Callable[[str], Any], theme: Any):
    for subject in (captured, split, split.pieces[1]):
        text = svg_text(subject, theme=theme)
        drawn = read_svg(text)
        assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>')
        assert "Helvetica,Arial" in drawn.root.get("font-family", "")
        assert drawn.root.get("viewBox")
        assert not [link for link in drawn.root.iter("{http://www.w3.org/2000/svg}a") if not link.attrib]


def test_tooltips_and_links_are_where_browsers_look(captured: Program, read_svg: Callable[[str], Any]):
    drawn = read_svg(svg_text(captured))
    assert drawn.title("linear").splitlines()[0].startswith("linear = torch.nn.functional.linear(")
    assert "in layers.0.up (Linear)" in drawn.title("linear").splitlines()
    (link,) = drawn.links_of("linear")
    path, _, line = link.removeprefix("file://").partition("#L")
    assert "self.up(" in Path(path).read_text().splitlines()[int(line) - 1]


def test_a_drawing_may_be_handed_on_without_paths(captured: Program, split: Program, read_svg: Callable[[str], Any]):
    for subject in (captured, split, split.pieces[0]):
        text = svg_text(subject, source_links=False)
        assert str(Path(__file__).parent) not in text
        assert "file:" not in text
        assert re.search(r"conftest\.py:\d+ in forward", text)


def test_a_piece_alone_names_its_axes(split: Program, read_svg: Callable[[str], Any]):
    text = svg_text(split.pieces[0])
    assert "f32[tokens, 16]" in text
    assert "[s" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at /home/me/model.py:12 in forward", "at model.py:12 in forward"),
        ("'/tmp/cache_me/ab/cab.py'", "'cab.py'"),
        (r"C:\Users\me\model.py", "model.py"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("a / b // c /* d */ e", "a / b // c /* d */ e"),
        ("aten/relu.default", "aten/relu.default"),
        ("x + 1 # ome/me/model.py:12 in forward", "x + 1 # model.py:12 in forward"),
    ],
)
def test_folders_of_paths_are_left_out(text: str, shown: str):
    assert without_folders(text) == shown


def test_titles_lie_over_arrows(split: Program, read_svg: Callable[[str], Any]):
    (drawing,) = read_svg(svg_text(split)).root
    kinds = [group.get("class") for group in drawing if group.get("class")]
    assert kinds.index("cluster-text") > max(index for index, kind in enumerate(kinds) if kind == "edge")


def test_the_same_program_gives_the_same_bytes(split: Program):
    assert svg_text(split) == svg_text(split)


def test_it_is_saved(split: Program, tmp_path: Path):
    save_svg(split, tmp_path / "split.svg", theme="dark")
    assert (tmp_path / "split.svg").read_text(encoding="utf-8") == svg_text(split, theme="dark")


def test_a_path_that_cannot_be_written_is_an_error(split: Program, tmp_path: Path):
    with pytest.raises(DrawingError, match=r"nowhere.*cannot be written: No such file or directory; give another path"):
        save_svg(split, tmp_path / "nowhere" / "split.svg")
    with pytest.raises(DrawingError, match="Is a directory"):
        save_svg(split, tmp_path)


def test_without_graphviz_the_error_says_what_to_install(split: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DrawingError, match=r"`dot` is not on the PATH; install it .*apt-get install graphviz"):
        svg_text(split)


def fake_dot(folder: Path, script: str) -> None:
    """Put a program `dot` into a folder: ``REAL`` in its script is Graphviz's own."""
    program = folder / "dot"
    program.write_text(f"#!/bin/sh\nREAL={shutil.which('dot')}\n{script}\n")
    program.chmod(0o755)


def test_a_failure_of_graphviz_is_an_error(split: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_dot(tmp_path, "echo 'out of ink' >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(DrawingError, match="`dot` ended with code 3: out of ink"):
        svg_text(split)


def test_a_slow_layout_is_stopped_and_folded(
    deep: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read_svg: Callable[[str], Any]
):
    # The whole drawing is large, the folded one is small.
    script = f"cat > {tmp_path}/in; [ $(wc -c < {tmp_path}/in) -gt 60000 ] && exec sleep 60"
    fake_dot(tmp_path, f'{script}; "$REAL" "$@" < {tmp_path}/in')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.warns(UserWarning, match=r"the layout of \d+ boxes took longer than timeout=2 seconds.*fold=True"):
        text = svg_text(deep, fold=False, timeout=2)
    assert f"{TIMES} 31" in read_svg(text).texts


def test_a_folded_layout_that_is_slow_is_an_error(split: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_dot(tmp_path, "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(
        DrawingError, match=r"took longer than timeout=0.2 seconds, though it is folded; give a longer timeout"
    ):
        svg_text(split, timeout=0.2)


def test_a_timeout_of_nothing_is_an_error(split: Program):
    with pytest.raises(OptionError, match="timeout=0 must be a number of seconds above 0"):
        svg_text(split, timeout=0)


def test_a_model_is_no_program(tmp_path: Path):
    with pytest.raises(OptionError, match="a ReLU cannot be drawn"):
        save_svg(torch.nn.ReLU(), tmp_path / "model.svg")  # type: ignore[arg-type]
