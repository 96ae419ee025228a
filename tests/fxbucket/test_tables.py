from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import fxbucket
from fxbucket.explain import Explanation


class Cells(HTMLParser):
    """Collects captions and rows of HTML tables, and the tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.captions: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._into: list[str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        self._into = self.captions if tag == "caption" else self.rows[-1] if tag in ("td", "th") else None
        if self._into is not None:
            self._into.append("")

    def handle_endtag(self, tag: str) -> None:
        self._into = None

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data


def model(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] % 2 == 0:
        x = x + 1
    return torch.sigmoid(x.relu())


@pytest.fixture(scope="module")
def explained() -> Explanation:
    compiled = fxbucket.compile(
        model, axes={"rows": "x.shape[0]"}, sizes={"rows": [4, 7]}, splitting_ops=["aten::sigmoid"], compiler="eager"
    )
    compiled(torch.randn(4, 2))
    compiled(torch.randn(6, 2))
    return compiled.explain()


def test_a_notebook_shows_every_piece_axis_guard_and_bucket(explained: Explanation):
    (graph,) = explained.graphs
    shown = Cells(explained._repr_html_())
    assert shown.captions == ["pieces", "axes", "guards", "buckets", "misses", "sizes to pin, by the calls so far"]
    firsts = [row[0] for row in shown.rows]
    assert firsts == [
        "piece", *(piece.name for piece in graph.pieces), "axis", "rows", "the capture is valid while", *graph.guards,
        "bucket", *(bucket.bucket for bucket in graph.buckets), "sizes", "rows=6", "axis", "rows",
    ]  # fmt: skip
    refused = next(row for row in shown.rows if row[0] == "rows=7")
    assert refused[1] == "refused"
    assert "rows % 2" in refused[4]


@given(st.text(st.characters(exclude_characters="\r\x00")))
@example("</td><script>alert(1)</script>&lt;")
@example("[bold]batch[0][/bold]")
def test_any_text_comes_out_as_it_went_in(explained: Explanation, text: str):
    odd = Explanation((replace(explained.graphs[0], guards=(text,), misses={text: 1}),))
    shown = Cells(odd._repr_html_())
    assert [text] in shown.rows
    assert [text, "1"] in shown.rows
    assert shown.tags == {"p", "b", "table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_brackets_are_no_markup_in_a_terminal(explained: Explanation):
    odd = Explanation((replace(explained.graphs[0], guards=("[bold]batch[ids][/bold]",), refusal="[red]no[/red]"),))
    assert "[bold]batch[ids][/bold]" in str(odd)
    assert "runs as it is, [red]no[/red]" in str(odd)


def test_nothing_captured_is_said():
    assert "nothing is captured yet" in Explanation(())._repr_html_()
