from __future__ import annotations

from dataclasses import replace

import pytest

from fxbucket.passes import Bucket, Concretize, Pipeline, Program, Split, at_op
from fxbucket.passes.program import CutReason, Decision, Finding, Ref, refs_in


@pytest.fixture(scope="module")
def split(captured: Program) -> Program:
    return Split(at_op("aten::sigmoid"))(captured)


def test_a_piece_is_found_by_its_name_or_the_names_are_listed(split: Program):
    assert split.piece("piece_1") is split.pieces[1]
    with pytest.raises(KeyError, match=r"no piece 'piece_9'.*'piece_0'"):
        split.piece("piece_9")


def test_programs_that_read_the_same_are_equal_whatever_made_them(captured: Program, split: Program):
    again = Pipeline((Split(at_op("aten::sigmoid")),))(captured)
    assert again == split
    assert hash(again) == hash(split)
    assert replace(split, trail=()) == split
    assert split != captured
    assert split != "program"


def test_programs_differ_in_cuts_decisions_and_bindings(captured: Program, split: Program):
    assert Split()(captured) != split
    assert replace(split, decisions=(Decision(Bucket.of({"k": 3}), True),)) != split
    one, other = (Concretize({"x.shape[0]": 8, "k": 7, "n": n})(split) for n in (1, 2))
    assert one != other


def test_the_symbols_without_a_number_are_open(split: Program):
    rows = split.capture.axis("x.shape[0]").symbol
    assert set(split.open_symbols) == set(split.capture.hints)
    kept = Concretize({"x.shape[0]": 8}, remaining="keep")(split)
    assert rows not in kept.open_symbols
    assert len(kept.open_symbols) == 2


def test_findings_are_added_to_a_copy(split: Program):
    more = split.with_findings(Finding("piece_0", "large")).with_findings(Finding("n", "odd"))
    assert [str(finding) for finding in more.findings] == ["piece_0: large", "n: odd"]
    assert split.findings == ()


def test_the_body_of_a_piece_is_what_it_computes(split: Program):
    for piece in split.pieces:
        assert {node.op for node in piece.body}.isdisjoint({"placeholder", "output"})
        assert len(piece.body) + len(piece.inputs) + 1 == len(piece.module.graph.nodes)


def test_a_reason_prints_its_detail_or_its_rule():
    assert str(CutReason("rest", "", "what is left")) == "what is left"
    assert str(CutReason("at_op('a::b')", "node")) == "at_op('a::b')"


def test_refs_are_found_in_every_kind_of_nest_left_to_right():
    nest = (Ref("a"), [3, {"x": Ref("b"), "y": (Ref("c"),)}], slice(Ref("d"), None, Ref("e")), None)
    assert list(refs_in(nest)) == ["a", "b", "c", "d", "e"]
    assert str(Ref("a")) == repr(Ref("a")) == "%a"
