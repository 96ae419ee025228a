"""Every field case, over what is pinned, where it is cut and what compiles it, equals eager."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.field.case import Case, cases_in
from tests.field.cases import cache, cuts, memory, symbols, training, types
from tests.field.runner import CUTS, MODES, run, spread

CASES = [case for module in (memory, symbols, cuts, training, types, cache) for case in cases_in(module)]

WAYS = list(itertools.product(MODES, CUTS))

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_mode = pytest.mark.parametrize("mode", MODES)
each_cut = pytest.mark.parametrize("cut", CUTS)


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


@each_cut
@each_mode
@each_case
def test_a_case_equals_eager(case: Case, mode: str, cut: str):
    run(case, mode, cut, "eager")


@pytest.mark.parametrize(("case", "mode", "cut"), spread(CASES, WAYS, share=1))
def test_a_case_through_aot_autograd_equals_eager(case: Case, mode: str, cut: str):
    run(case, mode, cut, "aot_eager")


@pytest.mark.slow
@each_case
def test_a_case_through_inductor_equals_eager(case: Case):
    run(case, "seen", "at_ops", "inductor")


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "long", reason="takes an hour; HYPOTHESIS_PROFILE=long")
@each_cut
@each_mode
@each_case
def test_a_case_through_inductor_every_way_equals_eager(case: Case, mode: str, cut: str):
    run(case, mode, cut, "inductor")
