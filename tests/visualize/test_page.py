"""The report: everything is in it, any text survives it, and nothing outside is asked for."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fxbucket
from fxbucket.explain import Explanation
from fxbucket.passes import Program
from fxbucket.passes.errors import DrawingError, OptionError
from fxbucket.visualize import page_text, save_page
from fxbucket.visualize.labels import printable

VOID = {"meta", "input", "br", "hr", "img", "link"}
SVG = "{http://www.w3.org/2000/svg}"
TEXTS = st.text(
    st.one_of(st.sampled_from("<>&\"'`/{}[]%!-;=\\ü😀\u2028 "), st.characters(exclude_categories=("Cs",))), max_size=24
)


@dataclass
class Element:
    """One element of a page; ``parts`` holds texts and elements."""

    tag: str
    attributes: dict[str, str]
    parts: list[str | Element] = field(default_factory=list)

    def all(self, tag: str = "") -> list[Element]:
        """Return the elements inside, in order; with a tag those alone."""
        found = []
        for part in self.parts:
            if isinstance(part, Element):
                found += [part] if tag in ("", part.tag) else []
                found += part.all(tag)
        return found

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    def get(self, name: str) -> str:
        return self.attributes.get(name, "")


class Reader(HTMLParser):
    """Reads a page strictly: every element must be closed where it belongs."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert self.open == [self.root], [element.tag for element in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs})
        assert len(made.attributes) == len(attrs), f"<{tag}> has an attribute twice"
        self.open[-1].parts.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].parts.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


@dataclass(frozen=True)
class Page:
    """A page taken apart."""

    whole: str
    root: Element

    def of(self, identifier: str) -> Element:
        (found,) = (element for element in self.root.all() if element.get("id") == identifier)
        return found

    @property
    def structure(self) -> Any:
        return json.loads(self.of("structure").text)

    @property
    def payload(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = json.loads(gzip.decompress(base64.b64decode(self.of("payload").text, validate=True)))
        return found

    def table(self, caption: str) -> list[list[str]]:
        """Return the cells of the table whose caption starts with a text, row by row."""
        (found,) = (one for one in self.root.all("table") if one.all("caption")[0].text.startswith(caption))
        return [[cell.text for cell in row.all() if cell.tag in ("td", "th")] for row in found.all("tr")]

    @property
    def everything(self) -> str:
        return "\n".join([self.whole, *self.payload["texts"], *self.payload["drawings"]])


def read(text: str) -> Page:
    return Page(text, Reader(text).root)


@pytest.fixture(scope="module")
def page(explained: Explanation) -> Page:
    return read(page_text(explained, title="Halves"))


def bucket_of(page: Page, label: str) -> Any:
    (found,) = (bucket for bucket in page.structure["graphs"][0]["buckets"] if bucket["label"] == label)
    return found


def test_every_axis_guard_and_bucket_stands_in_a_table(page: Page, explained: Explanation):
    (graph,) = explained.graphs
    assert page.table("Axes")[1:] == [["rows", graph.axes[0].symbol, "2..∞", "x.shape[0]"]]
    assert page.table("Guards")[1:] == [[guard] for guard in graph.guards]
    rows = {row[0]: row for row in page.table("Buckets")[1:]}
    assert {name: (row[1], row[3]) for name, row in rows.items()} == {
        "rows=4": ("compiled", "2"),
        "rows=8": ("compiled", "2"),
        "dynamic": ("compiled", "1"),
        "rows=7": ("refused", "0"),
    }
    assert "rows % 2" in rows["rows=7"][4]
    assert page.table("Misses")[1:] == [["rows=6", "1"]]
    assert page.root.all("h1")[0].text == page.root.all("title")[0].text == "Halves"


def test_every_step_and_piece_is_there_with_its_code(page: Page, explained: Explanation):
    (graph,) = explained.graphs
    structure, texts = page.structure, page.payload["texts"]
    shown = [("all sizes", graph.program)]
    shown += [(bucket.bucket, bucket.program) for bucket in graph.buckets if bucket.program is not None]
    assert len(shown) == 4
    for label, program in shown:
        steps = bucket_of(page, label)["steps"]
        assert [step["name"] for step in steps] == ["capture", *(step.name for step in program.trail)]
        assert [step["seconds"] for step in steps[1:]] == [step.seconds for step in program.trail]
        assert [step["findings"] for step in steps[1:]] == [list(map(str, step.findings)) for step in program.trail]
        for step, held in zip(steps, [program.trail[0].before, *(step.after for step in program.trail)], strict=True):
            found = structure["programs"][step["program"]]
            assert texts[found["code"]] == str(held)
            assert [piece["name"] for piece in found["pieces"]] == [piece.name for piece in held.pieces]
            assert [texts[piece["code"]] for piece in found["pieces"]] == [str(piece) for piece in held.pieces]
    split = bucket_of(page, "all sizes")["steps"][1]
    assert "3 pieces" in texts[split["changes"]]
    concrete = next(step for step in bucket_of(page, "rows=8")["steps"] if step["name"] == "concretize")
    assert "shape (rows, 4) → (8, 4)" in texts[concrete["changes"]]


def test_what_became_of_a_refused_bucket_is_told(page: Page):
    refused = bucket_of(page, "rows=7")
    assert (refused["state"], refused["steps"], refused["function"]) == ("refused", [], -1)
    assert "rows % 2" in refused["note"]


def test_generated_python_is_there(page: Page, explained: Explanation):
    (graph,) = explained.graphs
    texts = page.payload["texts"]
    assert texts[page.structure["graphs"][0]["dispatch"]] == graph.source
    for bucket, source in graph.bucket_sources.items():
        assert texts[bucket_of(page, bucket)["function"]] == source
    origins = {name: one["origin"] for name, one in bucket_of(page, "rows=4")["artifacts"].items()}
    assert origins == {"piece_0": "compiled", "piece_1": "as it is", "piece_2": "as it is"}


def test_drawings_are_svg_in_the_colours_of_the_page(page: Page):
    drawings = page.payload["drawings"]
    assert len(drawings) == len(set(drawings)) > 8
    style = page.root.all("style")[0].text
    for text in drawings:
        root = ET.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert root.get("viewBox")
        colours = {element.get(name) for element in root.iter() for name in ("fill", "stroke")}
        variables = {colour for colour in colours if colour and colour.startswith("var(")}
        assert colours - variables <= {None, "none", "transparent", "black"}
        assert all(f"{colour[4:-1]}:" in style for colour in variables if colour)
        assert not [element for element in root.iter() if element.get("id") or element.get("style")]
        assert not list(root.iter(f"{SVG}a"))
    assert any('data-key="cluster.piece_1"' in text for text in drawings)


def test_calls_are_a_plot_a_table_and_a_heat_map(page: Page):
    rows = {row[0]: row[1:] for row in page.table("Recorded calls")[1:]}
    assert {name: row[0] for name, row in rows.items()} == {"rows=4": "1", "rows=8": "2", "dynamic": "1"}
    heat = page.table("Time")
    assert heat[0] == ["piece", "rows=4", "rows=8", "dynamic"]
    assert [row[0] for row in heat[1:]] == ["piece_0", "piece_1", "piece_2"]
    assert all(re.fullmatch(r"[\d.]+ (s|ms|µs)", cell) for row in heat[1:] for cell in row[1:])
    (plot,) = (one for one in page.root.all("svg") if one.get("class") == "plot")
    said = [bar.all("title")[0].text for bar in plot.all("rect")]
    assert sum(int(text.split(": ")[1].split()[0]) for text in said) == 4
    compiled = page.table("Compilation")
    assert compiled[0] == ["piece", "rows=4", "rows=8", "dynamic"]
    assert compiled[2] == ["piece_1", "as it is", "as it is", "as it is"]


def test_without_a_profile_the_page_says_how_to_take_one(unprofiled: Explanation):
    page = read(page_text(unprofiled))
    assert page.table("Calls by bucket")[1:] == [["rows=4", "2"], ["rows=8", "2"], ["dynamic", "1"], ["rows=7", "0"]]
    assert "with compiled.profile():" in page.of("panel-calls").text


def test_the_page_asks_for_nothing_and_runs_nothing_but_its_own(page: Page):
    assert re.findall(r"https?://(?!www\.w3\.org/)", page.whole) == []
    for element in page.root.all():
        assert not element.get("src")
        assert element.get("href") in ("", "#main")
        assert not [name for name in element.attributes if name.startswith("on") or name == "style"]
    (policy,) = (meta.get("content") for meta in page.root.all("meta") if meta.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    scripts = [script.text for script in page.root.all("script") if script.get("type") == "module"]
    for text, kind in ((scripts[0], "script-src"), (page.root.all("style")[0].text, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_people_who_hear_the_page_find_their_way(page: Page):
    elements = page.root.all()
    identifiers = [element.get("id") for element in elements if element.get("id")]
    assert len(identifiers) == len(set(identifiers))
    for element in elements:
        for name in ("aria-labelledby", "aria-controls", "aria-describedby"):
            assert set(element.get(name).split()) <= set(identifiers)
        if element.tag in ("nav", "input", "dialog", "svg") or element.get("role") in ("radiogroup", "tablist", "tabpanel"):
            assert element.get("aria-label") or element.get("aria-labelledby"), element
        if element.tag == "table":
            assert element.all("caption")[0].text.strip()
            assert all(cell.get("scope") for cell in element.all("th"))
        if element.tag == "button":
            assert element.text.strip()
    for tag in ("header", "nav", "main", "footer", "h1"):
        assert len(page.root.all(tag)) == 1
    assert page.of("hits").get("role") == "status"
    assert page.root.all("html")[0].get("lang") == "en"


def test_equal_input_gives_equal_bytes(explained: Explanation):
    assert page_text(explained) == page_text(explained)


def test_equal_layers_share_their_drawings(concrete_deep: Program):
    page = read(page_text(concrete_deep))
    assert len(page.payload["drawings"]) == 3 + 2 * 4  # three programs; four pieces that differ, before and after Concretize
    whole = bucket_of(page, "tokens=16")["steps"][-1]["program"]
    pieces = {piece["name"]: piece for piece in page.structure["programs"][whole]["pieces"]}
    assert len(pieces) == 65
    assert {piece["drawn_for"] for piece in pieces.values()} == {"piece_0", "piece_1", "piece_2", "piece_64"}
    assert pieces["piece_34"]["drawing"] == pieces["piece_2"]["drawing"] != pieces["piece_0"]["drawing"]
    assert pieces["piece_34"]["code"] != pieces["piece_2"]["code"]
    # What is folded away is found by a search all the same.
    drawing = page.payload["drawings"][page.structure["programs"][whole]["drawing"]]
    assert "layers.17.norm" in drawing


@settings(max_examples=15)
@given(TEXTS, TEXTS, TEXTS, TEXTS)
@example("</title><script>alert(1)</script>", "</script><!--", '"><img src=x onerror=alert(1)>', "]]>&lt;{{ 7 * 7 }}")
def test_any_text_comes_out_as_it_went_in(explained: Explanation, title: str, guard: str, reason: str, code: str):
    (graph,) = explained.graphs
    bucket = replace(
        graph.buckets[0],
        bucket=guard,
        reason=reason,
        conditions=(guard,),
        artifacts=(replace(graph.buckets[0].artifacts[0], code=code),),
        program=None,
    )
    program = replace(graph.program, pieces=(), outputs=None, decisions=(), trail=())
    odd = replace(graph, guards=(guard,), buckets=(bucket,), misses={reason: 1}, source=code, refusal=title, program=program)
    text = page_text(Explanation((odd,)), title=title)
    page = read(text)
    assert page.root.all("title")[0].text == page.root.all("h1")[0].text == printable(title)
    assert page.table("Guards")[1:] == [[printable(guard)]]
    assert page.table("Misses")[1][0] == printable(reason)
    (row,) = page.table("Buckets")[1:]
    assert row[0] == printable(guard)
    assert row[4].startswith(printable(reason))
    shown = bucket_of(page, guard)
    assert shown["note"] == reason
    assert page.structure["graphs"][0]["refusal"] == title
    number = page.structure["graphs"][0]["dispatch"]
    assert (page.payload["texts"][number] if number >= 0 else "") == code
    assert len(page.root.all("script")) == 3
    assert not page.root.all("img")


def test_no_folder_of_this_machine_need_stand_in_it(explained: Explanation):
    folder = str(Path(__file__).parent)
    linked = read(page_text(explained)).everything
    assert folder in linked
    assert "data-url" in linked
    handed_on = read(page_text(explained, source_links=False)).everything
    assert folder not in handed_on
    assert "data-url" not in handed_on
    assert "conftest.py:" in handed_on


def test_a_program_alone_has_a_report_of_its_trail(concrete: Program):
    page = read(page_text(concrete))
    (bucket,) = page.structure["graphs"][0]["buckets"]
    assert bucket["label"] == "tokens=512"
    assert [step["name"] for step in bucket["steps"]] == ["capture", "split", "discover", "concretize"]
    tabs = [one.text for one in page.root.all("button") if one.get("role") == "tab"]
    assert tabs == ["Graph", "FX code", "Changes", "Axes and guards", "Buckets"]


def test_a_program_without_a_trail_has_one_too(captured: Program):
    page = read(page_text(captured))
    (bucket,) = page.structure["graphs"][0]["buckets"]
    assert [(step["name"], step["changes"]) for step in bucket["steps"]] == [("capture", -1)]


def test_a_model_that_was_not_called_says_so():
    compiled = fxbucket.compile(torch.nn.ReLU(), axes={"rows": "input.shape[0]"}, compiler="eager")
    page = read(page_text(compiled))
    assert "Nothing is captured yet" in page.of("main").text
    assert page.structure["graphs"] == []


def test_a_backend_has_a_report():
    backend = fxbucket.backend(compiler="eager", sizes="seen", axes={"rows": "x.shape[0]"})
    torch.compile(lambda x: x.relu() + 1, backend=backend, dynamic=True)(torch.randn(3, 2))
    assert len(read(page_text(backend)).structure["graphs"]) == 1


def test_without_graphviz_the_page_says_why_it_has_no_drawings(
    split: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    page = read(page_text(split))
    assert page.payload["drawings"] == []
    assert "apt-get install graphviz" in page.of("panel-drawing").text
    assert str(split) in page.payload["texts"]


def test_it_is_saved(split: Program, tmp_path: Path):
    save_page(split, tmp_path / "report.html", theme="dark")
    saved = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert saved == page_text(split, theme="dark")
    assert Reader(saved).root.all("html")[0].get("data-theme") == "dark"


def test_a_path_that_cannot_be_written_is_an_error(split: Program, tmp_path: Path):
    with pytest.raises(DrawingError, match=r"nowhere.*cannot be written: No such file or directory; give another path"):
        save_page(split, tmp_path / "nowhere" / "report.html")


@pytest.mark.parametrize("subject", [torch.nn.ReLU(), "a text", None, Explanation], ids=["module", "text", "none", "class"])
def test_what_explains_nothing_has_no_report(subject: object):
    with pytest.raises(OptionError, match=r"there is no report of a \w+; give what fxbucket.compile or fxbucket.backend"):
        page_text(subject)


def test_an_unknown_option_is_an_error(split: Program):
    with pytest.raises(OptionError, match="theme 'drak' is unknown"):
        page_text(split, theme="drak")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="fold='no' is unknown"):
        page_text(split, fold="no")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="timeout=0 must be"):
        page_text(split, timeout=0)
