from __future__ import annotations

from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.explain import Explanation


def model(x: torch.Tensor, n: int) -> torch.Tensor:
    if x.shape[0] % 2 == 0:
        x = x + 1
    return torch.sigmoid(x.relu()).t() * n


@pytest.fixture(scope="module")
def explained() -> Explanation:
    compiled = fxbucket.compile(
        model,
        sizes={"rows": [4, 8, 7], "n": [3]},
        axes={"rows": "x.shape[0]"},
        splitting_ops=["aten::sigmoid"],
        compiler="eager",
    )
    for rows, n in ((4, 3), (8, 3), (8, 3), (6, 3), (6, 5)):
        compiled(torch.randn(rows, 2), n)
    return compiled.explain()


def test_pieces_tell_their_kind_their_reason_and_what_they_pass_on(explained: Explanation):
    pieces = explained.graphs[0].pieces
    assert [(piece.name, piece.kind) for piece in pieces] == [
        ("piece_0", "compiled"), ("piece_1", "boundary"), ("piece_2", "compiled"),
    ]  # fmt: skip
    assert "aten::sigmoid" in pieces[1].reason
    assert pieces[0].num_nodes == 2
    assert pieces[1].inputs == pieces[0].outputs
    assert set(pieces[1].outputs) <= set(pieces[2].inputs)


def test_axes_tell_their_expressions_symbols_and_ranges(explained: Explanation):
    axes = {axis.name: axis for axis in explained.graphs[0].axes}
    assert axes.keys() == {"rows", "n"}
    assert axes["rows"].expressions == ("x.shape[0]",)
    assert axes["rows"].range == "2..∞"
    assert axes["n"].range == "-∞..∞"
    assert axes["rows"].symbol != axes["n"].symbol
    assert all(axis.named for axis in axes.values())


def test_buckets_tell_what_became_of_them(explained: Explanation):
    buckets = {bucket.bucket: bucket for bucket in explained.graphs[0].buckets}
    assert {name: (bucket.state, bucket.calls) for name, bucket in buckets.items()} == {
        "rows=4, n=3": ("compiled", 1),
        "rows=8, n=3": ("compiled", 2),
        "dynamic": ("compiled", 2),
        "rows=7, n=3": ("refused", 0),
    }
    assert "rows % 2" in buckets["rows=7, n=3"].reason
    assert buckets["rows=4, n=3"].reason == ""
    assert all((bucket.seconds > 0) is (bucket.state == "compiled") for bucket in buckets.values())
    assert explained.seconds == pytest.approx(sum(bucket.seconds for bucket in buckets.values()))


def test_guards_misses_and_calls_are_told(explained: Explanation):
    (graph,) = explained.graphs
    assert [("rows % 2" in guard, "test_explain.py" in guard) for guard in graph.guards] == [(True, True)]
    assert graph.misses == {"rows=6, n=3": 1, "rows=6, n=5": 1}
    assert graph.eager_calls == 0
    assert graph.refusal == ""
    assert explained.calls() == {"rows=4, n=3": 1, "rows=8, n=3": 2, "dynamic": 2, "rows=7, n=3": 0}


def test_generated_code_is_there_to_read(explained: Explanation):
    (graph,) = explained.graphs
    assert graph.source.startswith("def dispatch(*args):")
    assert graph.bucket_sources.keys() == {"rows=4, n=3", "rows=8, n=3", "dynamic"}
    for source in (graph.source, *graph.bucket_sources.values()):
        compile(source, "generated", "exec")


def test_it_prints_as_tables_for_people(explained: Explanation):
    text = str(explained)
    for wanted in ("graph 0", "pieces", "boundary", "axes", "x.shape[0]", "guards", "rows=8, n=3", "refused", "misses"):
        assert wanted in text
    assert max(map(len, text.splitlines())) <= 120
    assert "\x1b" not in text


def test_before_the_first_call_it_says_what_to_do():
    compiled = fxbucket.compile(model, compiler="eager")
    assert compiled.explain().graphs == ()
    assert compiled.explain().calls() == {}
    assert compiled.explain().seconds == 0
    assert "call the model, or warmup(...) it" in str(compiled.explain())


def test_an_explanation_does_not_change_when_calls_go_on():
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [4]}, compiler="eager")
    compiled(torch.randn(4))
    before = compiled.explain()
    for rows in (4, 4, 5):
        compiled(torch.randn(rows))
    assert before.calls() == {"x.shape[0]=4": 1}
    assert before.graphs[0].misses == {}
    assert compiled.explain().calls() == {"x.shape[0]=4": 3, "dynamic": 1}


def test_buckets_that_wait_and_calls_that_ran_uncompiled_are_told_apart():
    compiled = fxbucket.compile(
        lambda x: x + 1, sizes={"x.shape[0]": [4, 8]}, compiler="eager", compile_when="lazily", on_miss="eager"
    )
    compiled(torch.randn(4))
    compiled(torch.randn(5))
    (graph,) = compiled.explain().graphs
    assert {bucket.bucket: bucket.state for bucket in graph.buckets} == {
        "x.shape[0]=4": "compiled",
        "x.shape[0]=8": "waiting",
    }
    assert graph.eager_calls == 1
    assert "calls of the captured graph as it is: 1" in str(compiled.explain())


def test_several_graphs_are_told_one_by_one():
    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [1, 4]}, compiler="eager")
    for rows in (4, 1):
        compiled(torch.randn(rows))
    first, second = compiled.explain().graphs
    assert [bucket.calls for bucket in first.buckets if bucket.state == "compiled"] == [1]
    assert [bucket.calls for bucket in second.buckets if bucket.state == "compiled"] == [1]
    assert "graph 1" in str(compiled.explain())
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "x.shape[0]=1": 1}


def test_a_refused_graph_says_why():
    compiled = fxbucket.compile(lambda x: x * 2, compiler="eager")
    jagged: Any = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    with pytest.warns(fxbucket.FxbucketWarning):
        compiled(jagged)
    (graph,) = compiled.explain().graphs
    assert "wraps other tensors" in graph.refusal
    assert f"runs as it is, {graph.refusal}" in " ".join(str(compiled.explain()).split())
