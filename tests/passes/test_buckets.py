from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.passes.buckets import NO_LOWER_BOUND, Bucket, Extent, Range
from fxbucket.passes.errors import FxbucketError, OptionError

ints = st.integers(-50, 50)


@given(ints, ints, ints)
def test_a_range_holds_both_its_ends_and_nothing_beyond(start: int, length: int, size: int):
    bounds = Range(start, start + abs(length))
    assert (size in bounds) is (start <= size <= start + abs(length))


@given(ints, st.integers(0, 40), st.integers(1, 9), ints)
def test_a_range_of_multiples_holds_those_alone(start: int, length: int, multiple_of: int, size: int):
    members = [number for number in range(start, start + length + 1) if number % multiple_of == 0]
    if not members:
        with pytest.raises(OptionError, match="no multiple of"):
            Range(start, start + length, multiple_of)
        return
    bounds = Range(start, start + length, multiple_of)
    assert (bounds.first, bounds.last) == (members[0], members[-1])
    assert (size in bounds) is (size in members)
    assert bounds.middle in members
    assert Range(start, start + length, multiple_of, hint=members[-1]).middle == members[-1]


@given(ints, st.integers(0, 40), st.integers(1, 6), ints, st.integers(0, 40), st.integers(1, 6))
def test_the_common_part_of_two_ranges_holds_what_both_hold(
    start: int, length: int, by: int, other_start: int, other_length: int, other_by: int
):
    try:
        left, right = Range(start, start + length, by), Range(other_start, other_start + other_length, other_by)
    except OptionError:
        return
    common = left.common(right)
    both = [size for size in range(-60, 100) if size in left and size in right]
    assert [size for size in range(-60, 100) if common is not None and size in common] == both


@given(ints, ints)
def test_a_range_without_an_end_holds_every_size_from_its_start(start: int, size: int):
    assert (size in Range(start)) is (size >= start)


def test_a_range_holds_ints_only():
    assert 2.0 not in Range(1, 3)
    assert "2" not in Range(1, 3)


@pytest.mark.parametrize(
    ("bounds", "text"), [(Range(1, 8), "1..8"), (Range(2), "2..∞"), (Range(NO_LOWER_BOUND, 3), "-∞..3")]
)
def test_a_range_prints_its_ends(bounds: Range, text: str):
    assert str(bounds) == text


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (1.5, 3, "start=1.5 is not an int"),
        (True, 3, "start=True is not an int"),
        (1, "3", "end='3' is not an int"),
        (4, 3, r"Range\(4, 3\) is empty"),
    ],
)
def test_a_range_refuses_what_is_no_range(start: Any, end: Any, said: str):
    with pytest.raises(OptionError, match=said) as caught:
        Range(start, end)
    assert isinstance(caught.value, FxbucketError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"multiple_of": 0}, "multiple_of=0 is below 1"),
        ({"multiple_of": 2.5}, "multiple_of=2.5 is not an int"),
        ({"hint": 9}, r"hint=9 is not in 1\.\.8"),
        ({"hint": "4"}, "hint='4' is not an int"),
        ({"hint": 3, "multiple_of": 2}, r"hint=3 is not in 1\.\.8 by 2"),
    ],
)
def test_a_range_refuses_multiples_and_hints_that_cannot_be(more: Any, said: str):
    with pytest.raises(OptionError, match=said):
        Range(1, 8, **more)


def test_a_bucket_tells_sizes_from_ranges():
    bucket = Bucket.of({"b": 4, "t": Range(1, 9)})
    assert bucket.sizes == {"b": 4}
    assert bucket.ranges == {"t": Range(1, 9)}
    assert list(bucket) == [("b", 4), ("t", Range(1, 9))]
    assert str(bucket) == "b=4, t=1..9"


def test_the_bucket_of_no_axis_is_the_dynamic_one_and_admits_every_call():
    assert Bucket().is_dynamic
    assert str(Bucket()) == "dynamic"
    assert Bucket().admits({"b": 7})
    assert not Bucket.of({"b": 4}).is_dynamic


def test_a_bucket_admits_no_call_that_lacks_its_axis():
    assert not Bucket.of({"b": 4}).admits({"t": 4})


names = st.sampled_from("abcd")
extents = st.one_of(st.integers(0, 6), st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda p: Range(*sorted(p))))


@given(st.dictionaries(names, extents, max_size=3), st.dictionaries(names, st.integers(0, 6)))
def test_a_bucket_admits_exactly_the_sizes_that_each_of_its_axes_serves(wanted: dict[str, Extent], sizes: dict[str, int]):
    def serves(extent: Extent, size: int | None) -> bool:
        if size is None:
            return False
        return extent.start <= size <= (extent.end or 0) if isinstance(extent, Range) else extent == size

    expected = all(serves(extent, sizes.get(name)) for name, extent in wanted.items())
    assert Bucket.of(wanted).admits(sizes) is expected


def test_equal_buckets_are_equal_keys():
    assert {Bucket.of({"b": 4}): 1}[Bucket((("b", 4),))] == 1
    assert Bucket.of({"b": 4}) != Bucket.of({"b": 5})
