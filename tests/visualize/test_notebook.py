"""What a notebook shows: text for a program, a drawing where one asks for it."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fxbucket.passes import Program
from fxbucket.passes.errors import OptionError
from fxbucket.passes.text import notebook_text
from fxbucket.visualize import Picture, show, svg_text


class Texts(HTMLParser):
    """Collects the text of HTML, and the tags in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_a_program_and_a_piece_show_their_text(split: Program):
    for subject in (split, split.pieces[1]):
        shown = Texts(subject._repr_html_())
        assert shown.text == str(subject)
        assert shown.tags == ["pre"]


@given(st.text(st.characters(exclude_characters="\r\x00")))
@example("<script>alert(1)</script> &lt; \"quoted\" 'x'")
def test_any_text_is_shown_as_it_is(text: str):
    found = re.fullmatch("<pre [^>]*>(.*)</pre>", notebook_text(text), re.DOTALL)
    assert found is not None
    for special, escaped in (("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        assert found[1].count(escaped) == text.count(special)
    assert html.unescape(found[1]) == text
    assert "<" not in found[1]


def test_a_drawing_is_shown_where_one_asks_for_it(split: Program):
    picture = show(split.pieces[0], theme="dark", source_links=False)
    assert picture == Picture(svg_text(split.pieces[0], theme="dark", source_links=False))
    assert picture._repr_svg_() == picture.svg
    assert repr(picture) == f"Picture({len(picture.svg)} characters of SVG)"


def test_a_model_is_no_picture():
    with pytest.raises(OptionError, match="a ReLU cannot be drawn"):
        show(torch.nn.ReLU())  # type: ignore[arg-type]
