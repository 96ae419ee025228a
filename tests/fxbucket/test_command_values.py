"""Axes, sizes and buckets as texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.command_values import axes_of, bucket_of, size_of, sizes_of
from fxbucket.passes.buckets import Range
from fxbucket.passes.errors import OptionError

NAMES = st.sampled_from(["b", "tokens", "x.shape[0]", "batch['a,b=c'].shape[1]", 'm["k"].shape[-1]', "xs[0].shape[2]"])
SIZES = st.integers(-(2**40), 2**40)


def test_axes():
    assert axes_of(["b=x.shape[0]", "t=x.shape[1], mask.shape[1]", "t=m['a,b'].shape[0]"]) == {
        "b": ["x.shape[0]"],
        "t": ["x.shape[1]", "mask.shape[1]", "m['a,b'].shape[0]"],
    }


@pytest.mark.parametrize("text", ["tokens", "=x.shape[0]", "tokens=", "two words=x", "x.shape[0]=y", ""])
def test_wrong_axes(text: str):
    with pytest.raises(OptionError, match=r"--axes .*write a short name and what reads it, such as tokens=x.shape\[0\]"):
        axes_of([text])


@given(st.dictionaries(NAMES, st.lists(SIZES, min_size=1, max_size=4), max_size=4))
def test_lists_of_sizes_are_read_back(sizes: dict[str, list[int]]):
    assert sizes_of([f"{name}={', '.join(map(str, listed))}" for name, listed in sizes.items()]) == sizes


@given(st.lists(st.dictionaries(NAMES, SIZES, min_size=2, max_size=4), min_size=1, max_size=3))
def test_combinations_are_read_back(combinations: list[dict[str, int]]):
    texts = [",".join(f"{name}={size}" for name, size in one.items()) for one in combinations]
    assert sizes_of(texts) == combinations
    assert [bucket_of(text) for text in texts] == combinations


def test_a_bucket_may_have_ranges():
    assert bucket_of("b=1, x.shape[0]=256..4096 by 64") == {"b": 1, "x.shape[0]": Range(256, 4096, 64)}
    assert bucket_of("t=8..") == {"t": Range(8)}


def test_sizes():
    assert sizes_of(["t=1", "t=2"]) == {"t": [1, 2]}
    assert sizes_of(["b=1,t=2", "b=3"]) == [{"b": 1, "t": 2}, {"b": 3}]
    assert sizes_of(["seen"]) == "seen"
    assert sizes_of([]) == {}


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (lambda text: sizes_of([text]), "256", r"--sizes '256': name the axis: tokens=256"),
        (lambda text: sizes_of([text]), "t=1,two", r"'two' is not an int; write for example tokens=512"),
        (lambda text: sizes_of([text]), "t=1.5", r"'1.5' is not an int"),
        (lambda text: sizes_of([text]), "t=", r"'' is not an int"),
        (lambda text: sizes_of([text]), "t=1,t=2", r"axis 't' stands there twice"),
        (lambda text: sizes_of([text]), "b=1,2,t=3", r"write each combination as its own --sizes"),
        (lambda text: sizes_of(["b=1,t=2", text]), "t=1,2", r"--sizes 't=1,2' lists sizes of one axis beside combinations"),
        (bucket_of, "t=1,2", r"--bucket 't=1,2': axis 't' has several sizes; a bucket has one"),
        (bucket_of, "t=1..x", r"'1\.\.x' is neither an int nor a range; write for example"),
        (bucket_of, "t=9..2", r"Range\(9, 2\) is empty"),
        (bucket_of, "t=1,t=2", "axis 't' stands there twice"),
        (bucket_of, "7", r"--bucket '7': name the axis"),
    ],
)
def test_wrong_sizes(read: Callable[[str], object], text: str, said: str):
    with pytest.raises(OptionError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1024", 1024), ("1B", 1), ("2kB", 2000), ("2KiB", 2048), ("500MB", 500_000_000), ("500mb", 500_000_000),
        ("1.5 GiB", 3 << 29), ("2G", 2_000_000_000), (" 3Ti ", 3 << 40), ("0.1kB", 100), ("9" * 400, int("9" * 400)),
    ],
)  # fmt: skip
def test_a_size_is_bytes(text: str, size: int):
    assert size_of(text, "--max-size") == size
