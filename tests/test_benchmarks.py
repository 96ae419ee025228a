"""Benchmarks: the one entry, and what they write into docs/benchmarks.md. Nothing here looks at a time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks import call_cost, document, fresh, misses, request_sizes
from tests.benchmarks.__main__ import benchmarks
from tests.benchmarks.visualize_scale import measure

ROOT = Path(__file__).resolve().parent.parent


def entry(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_benchmark_is_listed_with_what_it_measures():
    known = benchmarks()
    assert "visualize_scale" in known
    assert not {"document", "fresh", "request_sizes", "seed_pattern"} & set(known)
    assert all(known.values())
    done = entry()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(known)


def test_an_unknown_benchmark_ends_with_2():
    done = entry("visualise")
    assert done.returncode == 2
    assert "there is no visualise; choose from all, " in done.stderr


def test_each_section_of_the_document_is_made_by_a_benchmark():
    text = document.DOCUMENT.read_text(encoding="utf-8")
    begun = re.findall(r"<!-- (\w+): written by the benchmark -->", text)
    assert begun
    assert begun == re.findall(r"<!-- (\w+): end -->", text)
    assert set(begun) <= set(benchmarks())


def test_a_section_is_replaced_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "benchmarks.md"
    path.write_text("# Head\n<!-- a: written by the benchmark -->\nold\n<!-- a: end -->\ntail\n")
    monkeypatch.setattr(document, "DOCUMENT", path)
    for _ in range(2):
        document.write_section("a", document.table(("x", "y"), [("one", 2)]))
    assert path.read_text() == (
        "# Head\n<!-- a: written by the benchmark -->\n\n| x | y |\n| --- | --: |\n| one | 2 |\n\n<!-- a: end -->\ntail\n"
    )
    with pytest.raises(ValueError, match="has no marks for 'b'"):
        document.write_section("b", "text")


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz's dot")
def test_drawings_are_measured():
    rows = list(measure([10]))
    assert [(row.kind, row.is_split) for row in rows] == [
        (kind, is_split) for kind in ("layers", "chain", "near", "far") for is_split in (False, True)
    ]
    assert all(row.num_bytes > 1000 and row.num_boxes >= 10 for row in rows)


def test_the_table_of_request_sizes_is_what_its_module_draws():
    table = request_sizes.request_sizes()
    assert table == request_sizes.drawn()
    assert list(table) == sorted(table)
    assert sum(table.values()) == 20_000
    assert min(table) >= 1
    assert max(table) == request_sizes.LIMIT
    # A heavy tail: half of the calls are short, and most rows are in the others.
    assert sum(count for size, count in table.items() if size <= 512) > 10_000
    assert sum(size * count for size, count in table.items() if size > 512) > 0.8 * sum(s * c for s, c in table.items())


def test_each_new_process_has_caches_of_its_own(tmp_path: Path):
    one, other = (fresh.in_new_process(os.getenv, "FXBUCKET_CACHE_DIR") for _ in range(2))
    assert len({one, other, os.getenv("FXBUCKET_CACHE_DIR")}) == 3
    assert fresh.in_new_process(os.getenv, "FXBUCKET_CACHE_DIR", store=tmp_path) == str(tmp_path)
    with pytest.raises(RuntimeError, match="TypeError: str expected"):
        fresh.in_new_process(os.getenv, 1)


def test_requests_are_the_same_each_time_and_every_range_and_size_serves_them():
    sizes = misses.stream(200)
    assert sizes == misses.stream(200)
    assert set(sizes) <= set(request_sizes.request_sizes())
    ladder = [10, 500, request_sizes.LIMIT]
    assert misses.ranges_up_to(ladder) == [(2, 10), (11, 500), (501, request_sizes.LIMIT)]
    assert sum(misses.padded_calls(sizes, ladder).values()) == len(sizes)


def test_the_share_of_padding_counts_rows():
    assert misses.padded_calls([3, 4, 5, 8], [4, 8, 16]) == {4: 2, 8: 2, 16: 0}
    assert misses.padding_share([3, 4, 5, 8], [4, 8, 16]) == 1 - 20 / 24
    assert misses.padding_share([4, 8], [4, 8]) == 0


def test_attention_reads_no_row_behind_the_tokens():
    qkv = torch.randn(12, 3 * misses.WIDTH)
    alone = misses.attention_of_first(qkv[:5].clone(), torch.tensor(5))
    for fill in (0.0, float("nan"), float("inf")):
        qkv[5:] = fill
        padded = misses.attention_of_first(qkv, torch.tensor(5))
        assert torch.equal(padded[:5], alone)
        assert not padded[5:].any()


def test_each_way_takes_as_many_turns_as_the_others():
    made: list[str] = []
    ways = {name: lambda name=name: made.append(name) for name in ("one", "other")}
    found = call_cost.taking_turns(ways, turns=5, calls=3)
    assert list(found) == ["one", "other"]
    assert made.count("one") == made.count("other") == (5 + 2) * 3
