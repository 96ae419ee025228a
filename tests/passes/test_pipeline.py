from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from fxbucket.passes import Admit, Bucket, Concretize, Discover, Pass, Pipeline, Program, Split, Verify, at_op
from fxbucket.passes.errors import FxbucketError, PassError, PreconditionError, SizeError
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding, Step

SIZES = {"x.shape[0]": 16, "k": 7, "n": 3}
EVERY_PASS = (
    Split(at_op("aten::sigmoid")),
    Discover(),
    Admit((Bucket.of({"x.shape[0]": 16}), Bucket.of({"x.shape[0]": 7}))),
    Verify(),
    Concretize(SIZES),
    Verify(),
)


@dataclass(frozen=True)
class Remark(BasePass):
    text: str
    name: ClassVar[str] = "remark"

    def run(self, program: Program) -> Program:
        return program.with_findings(Finding("here", self.text))


class Bare:
    """A pass that is nothing but a name and run()."""

    name: ClassVar[str] = "bare"

    def run(self, program: Program) -> Program:
        return replace(program, uses=())

    def __str__(self) -> str:
        return "Bare()"


class Failing(Bare):
    name: ClassVar[str] = "failing"

    def run(self, program: Program) -> Program:
        return 1 // 0  # type: ignore[return-value]


class Forgetful(Bare):
    def run(self, program: Program) -> Program:
        return None  # type: ignore[return-value]


def test_a_pipeline_runs_its_passes_in_order_and_records_each(captured: Program):
    program = Pipeline(EVERY_PASS)(captured)
    assert [step.name for step in program.trail] == ["split", "discover", "admit", "verify", "concretize", "verify"]
    assert all(step.seconds >= 0 for step in program.trail)
    for earlier, later in zip(program.trail, program.trail[1:], strict=False):
        assert later.before == earlier.after
    assert program.trail[-1].after == program
    assert program.trail[0].before == captured


def test_a_pass_alone_leaves_the_same_step_as_in_a_pipeline(captured: Program):
    alone, piped = Split()(captured), Pipeline((Split(),))(captured)
    assert alone == piped
    assert [str(step) for step in alone.trail] == [str(step) for step in piped.trail]


def test_every_pass_is_pure_and_gives_the_same_again(captured: Program):
    program = captured
    for transform in EVERY_PASS:
        before = str(program)
        once, again = Pipeline((transform,))(program), Pipeline((transform,))(program)
        assert str(program) == before
        assert once == again
        assert str(once) == str(again)
        program = once


def test_what_a_pass_remarks_goes_into_the_trail_and_not_to_the_next_pass(captured: Program):
    program = Pipeline((Remark("one"), Remark("two"), Bare()))(captured)
    assert [[finding.text for finding in step.findings] for step in program.trail] == [["one"], ["two"], []]
    assert program.findings == ()


def test_a_pass_needs_no_more_than_a_name_and_run(captured: Program):
    assert isinstance(Bare(), Pass)
    program = Pipeline((Split(), Discover(), Bare()))(captured)
    assert program.uses == ()
    assert program.trail[-1].arguments == "Bare()"


def test_observers_see_each_step_as_it_is_done(captured: Program):
    seen: list[Step] = []
    program = Pipeline((Split(), Discover()), observers=(seen.append,))(captured)
    assert tuple(seen) == program.trail


def test_observers_see_the_steps_of_a_pipeline_within(captured: Program):
    seen: list[Step] = []
    program = Pipeline((Pipeline((Split(),)), Discover()), observers=(seen.append,))(captured)
    assert [step.name for step in program.trail] == ["split", "discover"]
    assert tuple(seen) == program.trail


def test_a_pipeline_within_a_pipeline_leaves_one_flat_trail(captured: Program):
    nested = Pipeline((Pipeline((Split(), Discover())), Verify()))
    assert nested(captured) == Pipeline((Split(), Discover(), Verify()))(captured)
    assert [step.name for step in nested(captured).trail] == ["split", "discover", "verify"]


def test_the_empty_pipeline_gives_what_it_was_given(captured: Program):
    assert Pipeline(())(captured) is captured


def test_a_step_tells_what_changed(captured: Program):
    program = Pipeline((Split(at_op("aten::sigmoid")), Remark("look"), Verify()))(captured)
    split, remark, verify = map(str, program.trail)
    assert split == "Split(at_op('aten::sigmoid')): 0 → 3 pieces, changed"
    assert remark.endswith("here: look")
    assert "unchanged" in remark
    assert verify.endswith("unchanged")


def test_a_pass_that_fails_is_named_with_those_that_ran_before_it(captured: Program):
    with pytest.raises(PassError, match=r"pass Bare\(\) failed after split, discover: ZeroDivisionError") as caught:
        Pipeline((Split(), Discover(), Failing()))(captured)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_pass_that_fails_first_says_that_nothing_ran_before(captured: Program):
    with pytest.raises(PassError, match="after no other pass"):
        Pipeline((Failing(),))(captured)


def test_errors_of_our_own_kinds_come_through_as_they_are(captured: Program):
    with pytest.raises(SizeError):
        Pipeline((Split(), Concretize({**SIZES, "x.shape[0]": 7})))(captured)
    with pytest.raises(PreconditionError):
        Pipeline((Concretize(SIZES),))(captured)


def test_a_pass_must_return_a_program(captured: Program):
    with pytest.raises(PassError, match=r"Bare\(\) gave NoneType; a pass must return a Program"):
        Pipeline((Forgetful(),))(captured)


@pytest.mark.parametrize("wrong", ["split", 5, None, Split])
def test_what_is_no_pass_is_refused_when_the_pipeline_is_made(wrong: Any):
    with pytest.raises(PassError, match=r"is not a pass: it needs a `name` and `run\(program\)"):
        Pipeline((wrong,))


def test_a_failed_run_leaves_the_program_as_it_was(captured: Program):
    before = str(captured)
    with pytest.raises(FxbucketError):
        Pipeline((Split(), Failing()))(captured)
    assert str(captured) == before
    assert captured.trail == ()


def test_a_pass_without_run_says_what_is_missing(captured: Program):
    class Nothing(BasePass):
        name: ClassVar[str] = "nothing"

    with pytest.raises(PassError, match=r"Nothing must define run\(program\)"):
        Nothing()(captured)
