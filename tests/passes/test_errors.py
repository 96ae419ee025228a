from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.passes import errors
from fxbucket.passes.errors import FxbucketError, nearest

KINDS = {
    "OptionError": ValueError,
    "AxisError": ValueError,
    "SizeError": ValueError,
    "BoundaryError": ValueError,
    "CaptureError": RuntimeError,
    "PreconditionError": RuntimeError,
    "PassError": RuntimeError,
    "VerifyError": RuntimeError,
    "CompileError": RuntimeError,
    "CopyError": ValueError,
    "MissError": LookupError,
    "UnsupportedTorchError": ImportError,
}


@pytest.mark.parametrize(("name", "builtin"), KINDS.items())
def test_each_kind_is_an_fxbucket_error_and_the_builtin_that_a_caller_expects(name: str, builtin: type[Exception]):
    kind = getattr(errors, name)
    assert issubclass(kind, FxbucketError)
    assert issubclass(kind, builtin)


def test_no_kind_is_another_kind():
    kinds = [getattr(errors, name) for name in KINDS]
    assert [(a, b) for a in kinds for b in kinds if a is not b and issubclass(a, b)] == []


def test_nearest_puts_the_closest_name_first():
    assert nearest("size", ["axes", "sizes", "on_miss"]).startswith("possible: 'sizes'")


def test_nearest_of_many_names_shows_only_the_close_ones_and_counts_the_rest():
    text = nearest("alpha", ["alphas", *(f"zz{number}" for number in range(20))])
    assert text == "did you mean 'alphas'? (20 more are possible)"


def test_nearest_without_a_close_name_lists_and_counts():
    text = nearest("qqq", [f"a{number}" for number in range(12)], limit=3)
    assert text == "possible: 'a0', 'a1', 'a10' and 9 more"


def test_nearest_says_so_when_nothing_was_possible():
    assert nearest("x", []) == "nothing was possible here"


@given(st.text("abc", max_size=4), st.lists(st.text("abc", min_size=1, max_size=4), max_size=30))
def test_nearest_names_what_was_possible_at_most_once_and_never_more_than_the_limit(name: str, possible: list[str]):
    text = nearest(name, possible, limit=5)
    named = [other for other in set(possible) if f"'{other}'" in text]
    assert len(named) <= 5
    assert all(text.count(f"'{other}'") == 1 for other in named)
    assert bool(named) is bool(possible)
