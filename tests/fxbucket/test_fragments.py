from __future__ import annotations

from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.fragments import hand_on, handed_on
from fxbucket.passes import Split
from tests.equality import assert_equals_eager


@torch.compiler.disable
def outside() -> None:
    """Break the graph."""


def broken(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    z = torch.cat([x, x], dim=1)
    outside()
    return torch.sigmoid(y) * 2, z.sum(1) + y[:, 0]


@pytest.mark.parametrize("compiler_name", ["eager", "aot_eager"])
def test_a_value_between_two_graphs_keeps_its_axis_and_its_buckets(compiler_name: str):
    compiled = fxbucket.compile(broken, sizes={"rows": [4, 8]}, axes={"rows": "x.shape[0]"}, compiler=compiler_name)
    for rows in (4, 8, 5, 4):
        x = torch.randn(rows, 3)
        assert_equals_eager(compiled, broken, (x,), (x.clone(),))
    assert len(compiled.programs) == 2
    assert compiled.explain().calls() == {"rows=4": 4, "rows=8": 2, "dynamic": 2}


@pytest.mark.parametrize("on_miss", ["dynamic", "error"])
def test_a_graph_before_a_break_is_served_by_buckets_though_it_holds_one_of_an_axis_s_arguments_alone(on_miss: str):
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x.sin() if y.dim() == 1 else x
        outside()
        return h + y

    axes = {"rows": ["x.shape[0]", "y.shape[0]"]}
    compiled = fxbucket.compile(model, axes=axes, sizes={"rows": [4, 6]}, on_miss=on_miss, compiler="eager")
    for rows in (4, 6, 4):
        x, y = torch.randn(rows), torch.randn(rows)
        assert torch.equal(compiled(x, y), model(x, y))
    assert {name: count for name, count in compiled.explain().calls().items() if count} == {"rows=4": 4, "rows=6": 2}


def test_a_value_of_other_size_arithmetic_varies_without_a_new_capture():
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x])
        outside()
        return y * 2

    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler="eager")
    for rows in (4, 5, 6, 7):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), model(x))
    assert len(compiled.programs) == 2
    # The second graph knows no axis of the user's: what serves it is called by no size, and no size of one is counted.
    (bucket,) = compiled.explain().graphs[1].buckets
    assert (bucket.bucket, bucket.calls) == ("dynamic", 4)
    assert compiled.explain().graphs[1].sizes_seen == {}


def test_a_graph_of_one_axis_of_two_is_compiled_once_for_each_of_its_own_sizes():
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x.sin()
        outside()
        return h.sum() + y.cos()

    sizes = {"a": [4, 6], "b": [2, 3, 5]}
    compiled = fxbucket.compile(model, axes={"a": "x.shape[0]", "b": "y.shape[0]"}, sizes=sizes, compiler="eager")
    for a, b in ((4, 2), (6, 3), (6, 5), (4, 5)):
        x, y = torch.randn(a), torch.randn(b)
        assert torch.equal(compiled(x, y), model(x, y))
    first, second = compiled.explain().graphs
    assert {bucket.bucket: bucket.calls for bucket in first.buckets} == {"a=4": 2, "a=6": 2}
    assert {bucket.bucket: bucket.calls for bucket in second.buckets if bucket.calls} == {
        "a=4, b=2": 1,
        "a=6, b=3": 1,
        "a=6, b=5": 1,
        "a=4, b=5": 1,
    }


def test_a_graph_that_ends_the_call_hands_nothing_on():
    program = Split()(fxbucket.capture(lambda x: x + 1, torch.randn(4), dynamic=["x.shape[0]"]))
    assert hand_on(program) == {}


def test_a_tensor_that_no_graph_marked_has_no_axis():
    x = torch.randn(4)
    assert handed_on(x, x) == {}


def test_the_outputs_of_the_call_carry_no_marks():
    compiled = fxbucket.compile(broken, sizes={"x.shape[0]": [4]}, compiler="eager")
    outputs: Any = compiled(torch.randn(4, 3))
    assert [vars(output) for output in outputs] == [{}, {}]
