from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fxbucket.passes.buckets import Bucket, Range
from fxbucket.passes.coverage import MOST_CELLS, holes, overlaps


def along(*extents: int | Range) -> list[Bucket]:
    return [Bucket.of({"t": extent}) for extent in extents]


def test_ranges_that_share_sizes_overlap_and_a_pinned_size_in_a_range_does_not():
    found = overlaps(along(8, Range(1, 15), Range(10, 20), Range(32, 64)))
    assert [str(overlap) for overlap in found] == ["t=1..15 and t=10..20 overlap in t=10..15; the first serves it"]


def test_a_range_behind_one_that_holds_it_is_never_used():
    (found,) = overlaps(along(Range(1, 100), Range(8, 64, multiple_of=8)))
    assert str(found) == "t=8..64 by 8 lies in t=1..100 and is never used; put it before, or leave it out"
    assert overlaps(along(Range(8, 64, multiple_of=8), Range(1, 100)))[0].common == Bucket.of({"t": Range(8, 64, 8)})


def test_multiples_that_never_meet_do_not_overlap():
    assert overlaps(along(Range(10, 14, multiple_of=7), Range(10, 13, multiple_of=3))) == ()


def test_holes_lie_between_the_buckets():
    found = holes(along(8, Range(10, 20), Range(30, 40), Range(41, None)))
    assert [str(hole) for hole in found] == ["no bucket serves t=9", "no bucket serves t=21..29"]


def test_between_multiples_is_a_hole_too_unless_another_range_fills_it():
    (found,) = holes(along(Range(16, 64, multiple_of=16)))
    assert str(found) == "no bucket serves t=16..64, but for t=16..64 by 16"
    assert holes(along(Range(16, 64, multiple_of=16), Range(1, 64))) == ()


def test_pinned_sizes_alone_leave_no_holes_worth_a_word():
    assert holes(along(8, 16)) == ()


def test_rectangles_on_two_axes():
    buckets = [
        Bucket.of({"b": Range(1, 4), "t": Range(1, 100)}),
        Bucket.of({"b": Range(5, 8), "t": Range(50, 200)}),
        Bucket.of({"b": 2, "t": Range(101, 200)}),
    ]
    assert [str(hole) for hole in holes(buckets)] == [
        "no bucket serves b=1, t=101..200", "no bucket serves b=3..4, t=101..200", "no bucket serves b=5..8, t=1..49",
    ]  # fmt: skip
    assert overlaps(buckets) == ()


def test_an_axis_that_a_bucket_does_not_name_may_have_any_size():
    buckets = [Bucket.of({"b": Range(1, 4)}), Bucket.of({"b": Range(2, 6), "t": Range(1, 9)})]
    assert str(overlaps(buckets)[0].common) == "b=2..4, t=1..9"
    assert holes(buckets) == ()


def test_a_table_that_is_too_large_is_not_searched():
    buckets = [Bucket.of({"b": 2 * number, "t": Range(2 * number, 2 * number)}) for number in range(MOST_CELLS)]
    assert holes(buckets) == ()


extents = st.one_of(
    st.integers(0, 12),
    st.builds(
        lambda start, length, by: Range(start * by, (start + length) * by, by), *[st.integers(0, 4)] * 2, st.integers(1, 3)
    ),
)
tables = st.lists(st.fixed_dictionaries({"b": extents}, optional={"t": extents}), min_size=1, max_size=5)


@given(tables)
def test_a_size_is_in_a_hole_exactly_where_no_bucket_admits_it(table: list[dict[str, int | Range]]):
    buckets = [Bucket.of(extents) for extents in table]
    if not any(bucket.ranges for bucket in buckets):
        assert holes(buckets) == ()
        return
    found = holes(buckets)
    names = {name for bucket in buckets for name, _ in bucket}
    for b in range(-1, 26):
        for t in range(-1, 26) if "t" in names else (0,):
            sizes = {"b": b, "t": t}
            inside = all(
                any(name in dict(bucket) for bucket in buckets)
                and min(_first(bucket, name) for bucket in buckets if name in dict(bucket)) <= sizes[name]
                and sizes[name] <= max(_last(bucket, name) for bucket in buckets if name in dict(bucket))
                for name in names
            )
            in_hole = any(hole.bucket.admits(sizes) and not any(but.admits(sizes) for but in hole.but) for hole in found)
            assert in_hole is (inside and not any(bucket.admits(sizes) for bucket in buckets))


@given(tables)
def test_an_overlap_is_exactly_what_both_admit(table: list[dict[str, int | Range]]):
    buckets = [Bucket.of(extents) for extents in table]
    found = {(id(overlap.first), id(overlap.second)): overlap.common for overlap in overlaps(buckets)}
    for index, first in enumerate(buckets):
        for second in buckets[index + 1 :]:
            if not (first.ranges and second.ranges):
                continue
            common = found.get((id(first), id(second)))
            for b in range(26):
                for t in range(26):
                    sizes = {"b": b, "t": t}
                    both = first.admits(sizes) and second.admits(sizes)
                    assert both is (common is not None and common.admits(sizes))


def _first(bucket: Bucket, name: str) -> int:
    extent = dict(bucket)[name]
    return extent.first if isinstance(extent, Range) else int(extent)


def _last(bucket: Bucket, name: str) -> int:
    extent = dict(bucket)[name]
    last = extent.last if isinstance(extent, Range) else int(extent)
    assert last is not None
    return last
