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
