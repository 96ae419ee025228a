"""Which bucket serves which call, how often things are captured and compiled, and what a miss does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

import fxbucket
from fxbucket.dispatch import MAX_DYNAMIC
from fxbucket.passes.errors import MissError
from tests.equality import assert_equals_eager
from tests.threads import in_threads


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def pad_to_even(x: torch.Tensor, n: int = 3) -> tuple[torch.Tensor, int]:
    """Gives sizes back, so that a call served by another size's bucket cannot go unnoticed."""
    rows, columns = x.shape
    return x.reshape(rows * columns).cumsum(0) * n, rows * 100 + columns


def test_each_pinned_size_is_served_by_its_own_bucket_and_compiled_once(compiler: Any):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4, 8, 16]}, compiler=compiler)
    for rows in (8, 4, 8, 16, 8):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), double(x))
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "x.shape[0]=8": 3, "x.shape[0]=16": 1}
    assert len(compiled.programs) == 1
    assert compiler.count == 3


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 5]), st.sampled_from([1, 4, 6]), st.integers(2, 3)), max_size=6))
def test_no_sequence_of_calls_is_ever_served_by_another_size(calls: list[tuple[int, int, int]]):
    torch.compiler.reset()
    compiled = fxbucket.compile(
        pad_to_even, sizes={"x.shape[0]": [0, 1, 5], "x.shape[1]": [1, 4], "n": [3]}, compiler="eager", compile_when="lazily"
    )
    served: dict[str, int] = {}
    for rows, columns, n in calls:
        x = torch.randn(rows, columns)
        assert_equals_eager(compiled, pad_to_even, (x, n), (x.clone(), n))
        if rows in (0, 1, 5) and columns in (1, 4) and n == 3:
            bucket = f"x.shape[0]={rows}, x.shape[1]={columns}, n={n}"
            served[bucket] = served.get(bucket, 0) + 1
    found = compiled.explain().calls()
    assert {bucket: number for bucket, number in found.items() if number and bucket != "dynamic"} == served
    assert sum(found.values()) == len(calls)


def test_first_call_compiles_every_size_at_the_first_call(compiler: Any):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4, 8, 16]}, compiler=compiler)
    assert compiler.count == 0
    compiled(torch.randn(8))
    assert compiler.count == 3


def test_lazily_compiles_each_size_at_its_first_use(compiler: Any):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4, 8, 16]}, compiler=compiler, compile_when="lazily")
    counts = []
    for rows in (8, 8, 16, 8):
        compiled(torch.randn(rows))
        counts.append(compiler.count)
    assert counts == [1, 1, 2, 2]
    states = {bucket.bucket: bucket.state for bucket in compiled.explain().graphs[0].buckets}
    assert states == {"x.shape[0]=4": "waiting", "x.shape[0]=8": "compiled", "x.shape[0]=16": "compiled"}


def test_a_miss_is_served_by_one_symbolic_compilation(compiler: Any):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4]}, compiler=compiler)
    for rows in (4, 5, 6, 99, 5):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), double(x))
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "dynamic": 4}
    assert compiled.explain().graphs[0].misses == {"x.shape[0]=5": 2, "x.shape[0]=6": 1, "x.shape[0]=99": 1}
    assert compiler.count == 2
    assert any(isinstance(size, torch.SymInt) for size in compiler.given[1][1])


def test_a_miss_may_run_the_captured_graph_as_it_is(compiler: Any):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4]}, compiler=compiler, on_miss="eager")
    for rows in (4, 5, 6):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), double(x))
    assert compiled.explain().calls() == {"x.shape[0]=4": 1}
    assert compiled.explain().graphs[0].eager_calls == 2
    assert compiler.count == 1


def test_a_miss_may_be_an_error_that_names_the_sizes_and_the_mend(compiler: Any):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4, 8]}, compiler=compiler, on_miss="error")
    compiled(torch.randn(4))
    with pytest.raises(MissError, match=r"no bucket serves x.shape\[0\]=5 .*x.shape\[0\]=4; x.shape\[0\]=8.*Add the size"):
        compiled(torch.randn(5))
    x = torch.randn(8)
    assert torch.equal(compiled(x), double(x)), "the next call is served as before"
    assert compiler.count == 2


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows_and_one_row_are_misses_where_they_are_not_pinned(rows: int):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4]}, compiler="eager", on_miss="error")
    with pytest.raises(MissError, match=rf"x.shape\[0\]={rows}"):
        compiled(torch.randn(rows))


def test_no_rows_and_one_row_may_be_pinned_like_any_size(compiler: Any):
    compiled = fxbucket.compile(pad_to_even, sizes={"x.shape[0]": [0, 1, 5]}, compiler=compiler, on_miss="error")
    for rows in (5, 1, 0, 1, 5):
        x = torch.randn(rows, 3)
        assert_equals_eager(compiled, pad_to_even, (x,), (x.clone(),))
    assert compiled.explain().calls() == {"x.shape[0]=5": 2, "x.shape[0]=1": 2, "x.shape[0]=0": 1}
    assert compiler.count == 3


def test_a_model_without_axes_is_compiled_once_and_serves_every_call(compiler: Any):
    compiled = fxbucket.compile(double, compiler=compiler, on_miss="error")
    for _ in range(3):
        compiled(torch.randn(4))
    assert compiler.count == 1
    assert compiled.explain().calls() == {"dynamic": 3}


def test_both_axes_are_looked_up():
    compiled = fxbucket.compile(
        pad_to_even, sizes=[{"x.shape[0]": 4, "x.shape[1]": 8}, {"x.shape[0]": 8, "x.shape[1]": 4}], compiler="eager"
    )
    for shape in ((4, 8), (8, 4), (4, 4), (8, 8), (4, 8)):
        x = torch.randn(shape)
        assert_equals_eager(compiled, pad_to_even, (x,), (x.clone(),))
    assert compiled.explain().calls() == {
        "x.shape[0]=4, x.shape[1]=8": 2,
        "x.shape[0]=8, x.shape[1]=4": 1,
        "dynamic": 2,
    }


def test_equal_sizes_in_the_first_call_do_not_tie_two_axes():
    compiled = fxbucket.compile(pad_to_even, sizes={"x.shape[0]": [4, 8]}, axes={"columns": "x.shape[1]"}, compiler="eager")
    for shape in ((8, 8), (8, 3), (4, 8), (3, 3)):
        x = torch.randn(shape)
        assert_equals_eager(compiled, pad_to_even, (x,), (x.clone(),))
    assert len(compiled.programs) == 1
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "x.shape[0]=8": 2, "dynamic": 1}


def test_a_bucket_that_pins_one_of_two_axes_serves_any_size_of_the_other(compiler: Any):
    compiled = fxbucket.compile(pad_to_even, sizes={"x.shape[0]": [4]}, axes={"columns": "x.shape[1]"}, compiler=compiler)
    for shape in ((4, 8), (4, 3), (4, 77)):
        x = torch.randn(shape)
        assert_equals_eager(compiled, pad_to_even, (x,), (x.clone(),))
    assert compiler.count == 1
    assert compiled.explain().calls() == {"x.shape[0]=4": 3}


@dataclass
class Settings:
    n: int


@pytest.mark.parametrize(
    ("axis", "model", "call"),
    [
        ("n", lambda x, n: x * n, lambda x, n: ((x, n), {})),
        ("n", lambda x, *, n=2: x * n, lambda x, n: ((x,), {"n": n})),
        ("o['n']", lambda x, o: x * o["n"], lambda x, n: ((x, {"n": n}), {})),
        ("o[1]", lambda x, o: x * o[1], lambda x, n: ((x, [0, n]), {})),
        ("o[1]", lambda x, *o: x * o[1], lambda x, n: ((x, 0, n), {})),
        ("o.n", lambda x, o: x * o.n, lambda x, n: ((x, Settings(n)), {})),
        ("n", lambda x, **o: x * o["n"], lambda x, n: ((x,), {"n": n})),
        ("o[-1]", lambda x, o: x * o[-1], lambda x, n: ((x, [0, n]), {})),
    ],
    ids=["positional", "keyword", "dict", "list", "variadic", "dataclass", "variadic keyword", "from the end"],
)
def test_an_int_is_an_axis_wherever_the_call_holds_it(axis: str, model: Any, call: Any):
    compiled = fxbucket.compile(model, sizes={axis: [3, 5]}, compiler="eager")
    x = torch.randn(4)
    for n in (3, 5, 7, 9, 3):
        args, kwargs = call(x, n)
        assert torch.equal(compiled(*args, **kwargs), x * n)
    assert len(compiled.programs) == 1
    assert compiled.explain().calls() == {f"{axis}=3": 2, f"{axis}=5": 1, "dynamic": 2}


def test_a_value_that_no_bucket_holds_is_a_miss_even_where_the_capture_took_it_for_a_constant():
    def repeated(x: torch.Tensor, **o: int) -> torch.Tensor:
        for _ in range(o["n"]):
            x = x + 1
        return x

    compiled = fxbucket.compile(repeated, sizes={"n": [3]}, compiler="eager", on_miss="error")
    compiled(torch.randn(4), n=3)
    with pytest.raises(MissError, match="n=5"):
        compiled(torch.randn(4), n=5)


def branches(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] % 8 == 0 else x - 1


@pytest.mark.parametrize("order", [[8, 12, 16, 17], [17, 16, 12, 8]])
@pytest.mark.parametrize("sizes", [[8, 12, 16], [8], []])
def test_a_branch_on_a_size_is_right_at_every_size(order: list[int], sizes: list[int]):
    options: dict[str, Any] = {"sizes": {"x.shape[0]": sizes}} if sizes else {"axes": {"rows": "x.shape[0]"}}
    compiled = fxbucket.compile(branches, compiler="eager", **options)
    for rows in (*order, *order):
        x = torch.randn(rows)
        assert_equals_eager(compiled, branches, (x,), (x.clone(),))
    assert len(compiled.programs) == 2, "one capture a branch"
    calls = compiled.explain().calls()
    name = "x.shape[0]" if sizes else "rows"
    assert {rows: calls[f"{name}={rows}"] for rows in sizes} == dict.fromkeys(sizes, 2)


def test_a_bucket_that_breaks_a_guard_is_not_compiled_for_that_capture(compiler: Any):
    compiled = fxbucket.compile(branches, sizes={"x.shape[0]": [8, 12]}, compiler=compiler)
    compiled(torch.randn(16))
    assert compiler.count == 2, "8, and the dynamic one that served the call"
    refused = [bucket for bucket in compiled.explain().graphs[0].buckets if bucket.state == "refused"]
    assert [bucket.bucket for bucket in refused] == ["x.shape[0]=12"]
    assert "x.shape[0] % 8" in refused[0].reason


def test_a_symbolic_compilation_serves_only_what_its_compiler_did_not_rule_out():
    """tensor_split decides by the size while it is traced, so one symbolic artifact cannot serve odd and even."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(part * 2 for part in torch.tensor_split(x, 2))

    compiled = fxbucket.compile(model, axes={"rows": "x.shape[0]"}, compiler="aot_eager")
    for rows in (6, 8, 7, 9, 2, 3, 100):
        x = torch.randn(rows, 2)
        assert_equals_eager(compiled, model, (x,), (x.clone(),))


def needs_its_parity(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile as some compilers do: decide something by a size, and rely on it ever after."""
    (rows,) = [size for value in inputs if isinstance(value, torch.SymInt) for size in [value]]
    parity = 0 if rows % 2 == 0 else 1

    def run(rows: int, x: torch.Tensor) -> Any:
        assert rows % 2 == parity, "served a size that was ruled out"
        return module.forward(rows, x)

    return run


def test_what_a_compiler_decided_by_a_size_binds_its_artifact():
    compiled = fxbucket.compile(double, axes={"rows": "x.shape[0]"}, compiler=needs_its_parity)
    for rows in (4, 8, 5, 6, 7, 9):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), double(x))
    even, odd = compiled.explain().graphs[0].buckets
    assert (even.calls, odd.calls) == (3, 3)
    assert any("rows % 2" in condition for condition in even.conditions)


def test_a_graph_gets_a_bounded_number_of_symbolic_compilations_and_stays_right():
    made = 0

    def needs_its_size(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal made
        made += 1
        assert any(value == rows for value in inputs if isinstance(value, torch.SymInt))
        return module.forward

    compiled = fxbucket.compile(double, axes={"rows": "x.shape[0]"}, compiler=needs_its_size)
    for rows in (*range(2, MAX_DYNAMIC + 5), 2, MAX_DYNAMIC + 4):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), double(x))
    assert made == MAX_DYNAMIC
    assert compiled.explain().graphs[0].eager_calls == 4


def test_seen_pins_each_size_at_its_first_call_up_to_a_number(compiler: Any):
    compiled = fxbucket.compile(double, sizes="seen", axes={"rows": "x.shape[0]"}, max_seen=2, compiler=compiler)
    for rows in (4, 8, 4, 16, 32, 8):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), double(x))
    assert compiled.explain().calls() == {"rows=4": 2, "rows=8": 2, "dynamic": 2}
    assert compiled.explain().graphs[0].misses == {"rows=16": 1, "rows=32": 1}
    assert compiler.count == 3


def test_seen_pins_combinations_of_all_axes():
    compiled = fxbucket.compile(
        pad_to_even, sizes="seen", axes={"b": "x.shape[0]", "t": "x.shape[1]", "n": "n"}, compiler="eager"
    )
    for rows, columns, n in ((4, 8, 1), (8, 4, 1), (4, 8, 2), (4, 8, 1)):
        x = torch.randn(rows, columns)
        assert_equals_eager(compiled, pad_to_even, (x, n), (x.clone(), n))
    assert sorted(compiled.explain().calls().values()) == [1, 1, 2]


def equal_axes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    return x.sum(1) + y.sum(1), x.shape[1], y.shape[1]


@pytest.mark.parametrize("sizes", ["seen", {"t": [4, 6]}])
def test_axes_that_were_said_to_be_equal_and_are_not_never_reach_an_artifact_of_equal_ones(sizes: Any):
    compiled = fxbucket.compile(equal_axes, sizes=sizes, axes={"t": ["x.shape[1]", "y.shape[1]"]}, compiler="eager")
    for left, right in ((4, 4), (4, 6), (6, 6), (6, 4)):
        x, y = torch.randn(2, left), torch.randn(2, right)
        assert_equals_eager(compiled, equal_axes, (x, y), (x.clone(), y.clone()))
    assert compiled.explain().calls()["t=4"] == 1


def test_an_optional_argument_may_hold_an_axis_in_some_calls_only():
    def model(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x if mask is None else x * mask

    compiled = fxbucket.compile(model, axes={"t": ["x.shape[0]", "mask.shape[0]"]}, sizes={"t": [4]}, compiler="eager")
    x, mask = torch.randn(4), torch.ones(4)
    assert torch.equal(compiled(x, mask), x * mask)
    assert torch.equal(compiled(x + 1), x + 1)
    assert torch.equal(compiled(x, mask), x * mask)


def updates(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Writes to an argument around a cut, and gives views of arguments and of its own values."""
    state.add_(x.sum())
    y = torch.sigmoid(x.t() * state)
    state[0].mul_(2)
    return y, y[:, 1:], state.view(-1)


@pytest.mark.parametrize("compiler_name", ["eager", "aot_eager"])
@pytest.mark.parametrize("cut", [(), ("aten::sigmoid",)])
def test_effects_aliases_and_strides_are_those_of_eager(compiler_name: str, cut: tuple[str, ...]):
    compiled = fxbucket.compile(updates, sizes={"x.shape[0]": [4, 8]}, compiler=compiler_name, splitting_ops=list(cut))
    for rows in (4, 8, 5, 4):
        x, state = torch.randn(rows, 3), torch.randn(3, 1)
        assert_equals_eager(compiled, updates, (x, state), (x.clone(), state.clone()))
    assert compiled.explain().calls() == {"x.shape[0]=4": 2, "x.shape[0]=8": 1, "dynamic": 1}


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.sigmoid(self.first(x)))


@pytest.mark.parametrize("compiler_name", ["eager", "aot_eager"])
def test_gradients_flow_through_cuts_to_arguments_and_parameters(compiler_name: str):
    model = Mlp()
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler=compiler_name, splitting_ops=["aten::sigmoid"])
    parameters = list(model.parameters())
    for rows in (4, 6, 4):
        x = torch.randn(rows, 4, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        assert_equals_eager(compiled, model, (x,), (other,), (parameters, parameters))
    assert compiled.explain().calls() == {"x.shape[0]=4": 2, "dynamic": 1}


def test_with_and_without_gradients_are_captured_apart():
    model = Mlp()
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler="aot_eager")
    x = torch.randn(4, 4)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert torch.equal(compiled(x), model(x))
    assert compiled(x).requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_each_dtype_is_served_in_its_own_kind(dtype: torch.dtype):
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flatten(), x.sum(0)

    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, compiler="aot_eager")
    for given_dtype in (torch.float32, dtype):
        x = torch.ones(4, 3).to(given_dtype)
        assert_equals_eager(compiled, model, (x,), (x.clone(),))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "expanded", "offset"])
def test_arguments_of_every_layout_are_served(layout: str):
    def argument(rows: int) -> torch.Tensor:
        base = torch.arange(rows * 12.0).view(rows, 12)
        return {
            "contiguous": base[:, :4].clone(),
            "transposed": base[:, :4].t().clone().t(),
            "sliced": base[:, 2:10:2],
            "expanded": base[:, :1].expand(rows, 4),
            "offset": torch.arange(rows * 4.0 + 3)[3:].view(rows, 4),
        }[layout]

    compiled = fxbucket.compile(pad_to_even, sizes={"x.shape[0]": [4, 8]}, compiler="aot_eager")
    for rows in (4, 8, 5):
        assert_equals_eager(compiled, pad_to_even, (argument(rows),), (argument(rows),))
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "x.shape[0]=8": 1, "dynamic": 1}


def test_the_look_up_happens_once_a_call_in_front_of_all_pieces(compiler: Any):
    compiled = fxbucket.compile(
        lambda x: torch.sigmoid(torch.sigmoid(x + 1) + 1) + 1,
        sizes={"x.shape[0]": [4, 8]}, splitting_ops=["aten::sigmoid"], compiler=compiler,
    )  # fmt: skip
    compiled(torch.randn(4))
    graph = compiled.explain().graphs[0]
    assert len(graph.pieces) == 5
    assert graph.source.count("_find_") == 1
    for source in graph.bucket_sources.values():
        head, title, *lines = source.splitlines()
        assert "Serves x.shape[0]=" in title
        assert sum("_run_piece_" in line for line in lines) == 5
        assert not any(word in line for line in (head, *lines) for word in ("_find", "shape", "if "))


def test_threads_that_meet_a_size_for_the_first_time_compile_it_once(compiler: Any):
    compiled = fxbucket.compile(double, sizes={"x.shape[0]": [4, 8]}, compiler=compiler, compile_when="lazily")
    compiled(torch.randn(4))

    def call(_: int) -> None:
        x = torch.randn(8)
        assert torch.equal(compiled(x), double(x))

    in_threads(call, range(4))
    assert compiler.count == 2
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "x.shape[0]=8": 4}


def test_inductor_serves_each_size_and_the_rest_like_eager():
    model = Mlp()
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4]}, splitting_ops=["aten::sigmoid"])
    parameters = list(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxbucket.FxbucketWarning)
        for rows in (4, 6):
            x = torch.randn(rows, 4, requires_grad=True)
            other = x.detach().clone().requires_grad_()
            assert_equals_eager(compiled, model, (x,), (other,), (parameters, parameters), tolerance=1e-5)
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "dynamic": 1}
