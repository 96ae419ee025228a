"""Every field case, over what is pinned, where it is cut and what compiles it, equals eager."""

from __future__ import annotations

import pytest

from tests.field.case import Case, cases_in
from tests.field.cases import cache, cuts, memory, symbols, training, types
from tests.field.runner import CUTS, LONG, MODES, run, spread

CASES = [case for module in (memory, symbols, cuts, training, types, cache) for case in cases_in(module)]

WAYS = [(MODES[index], CUTS[(index + shift) % len(CUTS)]) for shift in range(len(CUTS)) for index in range(len(MODES))]
"""Every mode with every cut; each three in a row hold each mode and each cut."""

SLOW = pytest.mark.slow
FEW_PIECES = [way for way in WAYS if "every_node" not in way]
MANY_PIECES = [way for way in WAYS if "every_node" in way]


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("case", "mode", "cut"), spread(CASES, WAYS, 3, [], SLOW))
def test_a_case_equals_eager(case: Case, mode: str, cut: str):
    run(case, mode, cut, "eager")


@pytest.mark.parametrize(("case", "mode", "cut"), spread(CASES, FEW_PIECES, 1, MANY_PIECES, SLOW))
def test_a_case_through_aot_autograd_equals_eager(case: Case, mode: str, cut: str):
    run(case, mode, cut, "aot_eager")


@SLOW
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_through_inductor_equals_eager(case: Case):
    run(case, "seen", "at_ops", "inductor")


@LONG
@SLOW
@pytest.mark.parametrize(("mode", "cut"), WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_through_inductor_every_way_equals_eager(case: Case, mode: str, cut: str):
    run(case, mode, cut, "inductor")
