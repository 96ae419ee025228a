"""Calls that are padded up to a pinned size: equal to eager, or refused with a reason."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import fxbucket
from fxbucket.passes.errors import FxbucketWarning, OptionError
from tests.equality import assert_equals_eager
from tests.field.runner import LONG
from tests.programs import RandomProgram, programs
from tests.threads import in_threads


def padded(model: Callable[..., Any], axis: Any = "x.shape[0]", **options: Any) -> Any:
    given = {"compiler": "eager", "on_miss": "pad", "axes": {"t": axis}, "sizes": {"t": [8, 32]}, **options}
    return fxbucket.compile(model, **given)


def served(compiled: Any) -> dict[str, tuple[int, int]]:
    """Return calls and padded calls of each bucket that served some."""
    found: dict[str, tuple[int, int]] = {}
    for graph in compiled.explain().graphs:
        for bucket in graph.buckets:
            if bucket.calls:
                calls, more = found.get(bucket.bucket, (0, 0))
                found[bucket.bucket] = (calls + bucket.calls, more + bucket.padded)
    return found


def refusal(compiled: Any) -> str:
    (graph,) = compiled.explain().graphs
    return "; ".join(graph.unpadded)


class Block(nn.Module):
    """Returns rows, a transposed view of them, a size, and its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        hidden = F.gelu(self.norm(self.up(x)))
        return hidden, hidden.t().contiguous(), 2 * x.shape[0] + 1, x


@pytest.mark.parametrize(
    ("compiler", "needs_grad"),
    [
        *itertools.product(["eager", "aot_eager"], [False, True]),
        pytest.param("inductor", False, marks=pytest.mark.slow),
        pytest.param("inductor", True, marks=[pytest.mark.slow, LONG]),
    ],
)
def test_a_call_between_pinned_sizes_is_served_by_the_next_larger_one(compiler: str, needs_grad: bool):
    model = Block().double().requires_grad_(needs_grad)
    compiled = padded(model, compiler=compiler)
    for rows in (8, 3, 20, 32, 33, 5):
        x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=needs_grad)
        arguments = ((x,), (x.detach().clone().requires_grad_(needs_grad),))
        parameters = tuple(model.parameters()) if needs_grad else ()
        assert_equals_eager(compiled, model, *arguments, parameters=(parameters, parameters), tolerance=1e-9)
        assert compiled(x)[3] is x
    assert served(compiled) == {"t=8": (6, 4), "t=32": (4, 2), "dynamic": (2, 0)}
    assert refusal(compiled) == ""
    assert len(compiled.programs) == 1


def test_nothing_is_compiled_for_sizes_that_are_padded(compiler: Any):
    compiled = padded(Block(), compiler=compiler)
    with torch.no_grad():
        for rows in range(2, 33):
            compiled(torch.randn(rows, 4))
    assert compiler.count == 2
    assert compiled.explain().graphs[0].misses == {f"t={rows}": 1 for rows in range(2, 32) if rows != 8}


REFUSED = {
    "mean": (lambda x: x.mean(0), "reduces over dim 0"),
    "softmax": (lambda x: x.softmax(0), "softmax"),
    "the number of rows": (lambda x: x / x.shape[0], "the number t goes into its result"),
    "sort": (lambda x: x.sort(0).values, "sort"),
    "flip": (lambda x: x.flip(0), "flip"),
    "last row": (lambda x: x[-1] * 2, "select"),
    "mixed view": (lambda x: x.t().reshape(2, -1), ""),
    "random": (lambda x: x + torch.rand_like(x), "random"),
    "dropout": (lambda x: F.dropout(x, 0.5, True), ""),
    "second half": (lambda x: x.chunk(2)[1], ""),
    "batch norm": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True), ""),
    "a view of the argument": (lambda x: (x[1:], x * 2), "a result shares memory with argument"),
    "results that share memory": (lambda x: (lambda y: (y, y[:, 1:]))((x * 2).t().contiguous()), "two results share memory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_padding_could_reach_is_refused_with_node_line_and_reason(name: str):
    function, reason = REFUSED[name]
    compiled = padded(function)
    x = torch.randn(5, 4)
    with pytest.warns(FxbucketWarning, match="calls are not padded, and run symbolically compiled"):
        assert_equals_eager(compiled, function, (x,), (x.clone(),), tolerance=1e-6)
    assert reason in refusal(compiled)
    assert served(compiled) == {"dynamic": (1, 0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.randn(6, 4))
    if name in ("mean", "softmax", "sort"):
        assert "test_padding.py" in refusal(compiled)


def test_a_refusal_is_in_the_log_and_in_explain(caplog: pytest.LogCaptureFixture):
    compiled = padded(lambda x: x.mean(0))
    with pytest.warns(FxbucketWarning), caplog.at_level("WARNING", "fxbucket"):
        compiled(torch.randn(5, 4))
    assert any("calls are not padded: mean" in record.getMessage() for record in caplog.records)
    assert "not padded" in str(compiled.explain())


def test_the_first_size_beyond_all_pinned_ones_runs_dynamically_without_a_warning():
    compiled = padded(lambda x: x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.randn(40))
    assert served(compiled) == {"dynamic": (1, 0)}


def test_two_axes_are_padded_to_the_smallest_bucket_that_holds_both():
    def scores(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ y.t()) + 1

    combinations = [{"a": 16, "b": 16}, {"a": 8, "b": 64}, {"a": 64, "b": 8}]
    compiled = fxbucket.compile(
        scores, axes={"a": "x.shape[0]", "b": "y.shape[0]"}, sizes=combinations, on_miss="pad", compiler="eager"
    )
    for a, b in ((5, 7), (7, 20), (33, 8), (16, 16), (65, 2)):
        arguments = (torch.randn(a, 3).double(), torch.randn(b, 3).double())
        assert_equals_eager(compiled, scores, arguments, tuple(t.clone() for t in arguments))
    assert served(compiled) == {"a=16, b=16": (2, 1), "a=8, b=64": (1, 1), "a=64, b=8": (1, 1), "dynamic": (1, 0)}


def test_any_strides_and_any_dim_are_padded():
    def both(x: torch.Tensor) -> torch.Tensor:
        return x.relu() * 2

    compiled = padded(both, axis="x.shape[1]")
    for x in (torch.randn(3, 5), torch.randn(5, 3).t(), torch.randn(3, 10)[:, ::2], torch.randn(3, 1).expand(3, 5)):
        assert_equals_eager(compiled, both, (x,), (x.clone() if x.is_contiguous() else x,))
    assert set(served(compiled)) == {"t=8"}


def test_derived_sizes_of_arguments_and_results():
    def pairs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.shape[0]
        return y.view(rows, 2, 3) + x[:, None], (y * 2).view(rows * 2 * 3)

    compiled = padded(pairs, axes={"t": "x.shape[0]", "flat": "y.shape[0]"})
    for rows in (3, 8, 5):
        arguments = (torch.randn(rows, 3), torch.randn(rows * 2 * 3))
        assert_equals_eager(compiled, pairs, arguments, tuple(t.clone() for t in arguments))
    assert served(compiled) == {"t=8": (3, 2)}


def test_writes_to_a_padded_argument_reach_the_argument_of_the_call():
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        y[:, 0] = 7
        return x + y

    compiled = padded(write, axis=["x.shape[0]", "y.shape[0]"])
    for rows in (5, 8, 20):
        arguments = (torch.randn(rows, 4), torch.randn(rows, 4))
        assert_equals_eager(compiled, write, arguments, tuple(t.clone() for t in arguments))
    assert served(compiled) == {"t=8": (2, 1), "t=32": (1, 1)}


def test_a_write_to_a_cache_beyond_the_call_s_own_rows_is_refused():
    def write(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache[: x.shape[0]] = x
        return x * 2

    compiled = padded(write)
    x, cache = torch.randn(5, 4), torch.zeros(64, 4)
    with pytest.warns(FxbucketWarning):
        assert_equals_eager(compiled, write, (x, cache), (x.clone(), cache.clone()))
    assert cache[5:].eq(0).all()
    assert set(served(compiled)) == {"dynamic"}


def test_values_of_padding_may_make_a_proof():
    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x * 2, labels)

    x, labels = torch.randn(5, 4, dtype=torch.float64), torch.randint(4, (5,))
    rows = ["x.shape[0]", "labels.shape[0]"]
    alone = padded(loss, axis=rows)
    with pytest.warns(FxbucketWarning, match="ignore_index"):
        assert_equals_eager(alone, loss, (x, labels), (x, labels), tolerance=1e-12)
    torch.compiler.reset()
    told = padded(loss, axis=rows, pad_values={"labels": -100})
    x.requires_grad_()
    assert_equals_eager(told, loss, (x, labels), (x.detach().clone().requires_grad_(), labels), tolerance=1e-12)
    assert served(told) == {"t=8": (1, 1)}


@pytest.fixture
def attention() -> Callable[..., torch.Tensor]:
    with torch.library._scoped_library("fxbucket_padding", "FRAGMENT") as library:
        library.define("rows(Tensor x) -> Tensor")
        library.impl("rows", lambda x: x * 3, "CompositeExplicitAutograd")
        library.impl("rows", torch.empty_like, "Meta")
        yield torch.ops.fxbucket_padding.rows


def test_an_op_that_nobody_knows_is_refused_unless_it_is_declared(attention: Any):
    x = torch.randn(5, 4)
    unknown = padded(lambda x: attention(x) + 1, splitting_ops=["fxbucket_padding::rows"])
    with pytest.warns(FxbucketWarning, match=r"fxbucket_padding::rows.*row_safe_ops"):
        unknown(x)
    torch.compiler.reset()
    declared = padded(
        lambda x: attention(x) + 1, splitting_ops=["fxbucket_padding::rows"], row_safe_ops=["fxbucket_padding::rows"]
    )
    assert torch.equal(declared(x), x * 3 + 1)
    assert served(declared) == {"t=8": (1, 1)}


def test_a_trial_takes_the_place_of_a_proof_where_that_was_asked_for(attention: Any):
    def rows(x: torch.Tensor) -> torch.Tensor:
        return attention(x) + 1

    compiled = padded(rows, padding="tested")
    for number in (5, 6, 30):
        x = torch.randn(number, 4)
        assert torch.equal(compiled(x), rows(x))
    assert served(compiled) == {"t=8": (2, 2), "t=32": (1, 1)}


TRIALS = {
    "mean": lambda x: x - x.mean(0),
    "the number of rows": lambda x: x * x.shape[0],
    "masked attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True)[0, 0],
    "an index": lambda x: x[(x[:, 0] * 0).long() - 1] + 1,
}


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_that_fails_refuses(name: str):
    compiled = padded(TRIALS[name], padding="tested")
    x = torch.randn(5, 4)
    with pytest.warns(FxbucketWarning, match="a trial of padding t to t=8 failed"):
        torch.testing.assert_close(compiled(x), TRIALS[name](x))
    assert served(compiled) == {"dynamic": (1, 0)}


def test_a_trial_leaves_no_trace():
    calls = torch.zeros(())

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", calls)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            x.add_(1)
            return x[(x[:, 0] * 0).long()] * 2

    model, compiled = Counts(), None
    compiled = padded(model, padding="tested")
    x = torch.randn(5, 4)
    before, state = x.clone(), torch.get_rng_state()
    with torch.no_grad():
        result = compiled(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, before + 1)
    assert torch.equal(result, (before + 1)[:1].expand(5, 4) * 2)
    assert model.count == 1


def test_gradients_that_padding_would_spoil_are_refused():
    """The norm of a row of zeros has an infinite derivative, and zero times that is NaN."""
    model = nn.Linear(3, 3, bias=False).double()

    def norms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x @ weight).pow(2).sum(1).sqrt()

    compiled = padded(norms)
    x = torch.randn(5, 3, dtype=torch.float64)
    weight = model.weight
    with pytest.warns(FxbucketWarning, match="gradients differ"):
        assert_equals_eager(compiled, norms, (x, weight), (x, weight), parameters=([weight], [weight]), tolerance=1e-9)
    with torch.no_grad():
        assert_equals_eager(compiled, norms, (x, weight.detach()), (x, weight.detach()), tolerance=1e-9)


def test_a_function_may_ask_for_padding_of_some_sizes_only():
    compiled = padded(lambda x: x * 2, on_miss=lambda sizes: "pad" if sizes["t"] > 4 else "dynamic")
    for rows in (3, 5, 20):
        compiled(torch.randn(rows))
    assert served(compiled) == {"t=8": (1, 1), "t=32": (1, 1), "dynamic": (1, 0)}


def test_sizes_seen_are_padded_to_those_that_were_pinned_at_their_first_call():
    compiled = fxbucket.compile(
        lambda x: x * 2, axes={"t": "x.shape[0]"}, sizes="seen", max_seen=2, on_miss="pad", compiler="eager"
    )
    for rows in (8, 16, 5, 12, 40):
        compiled(torch.randn(rows))
    assert served(compiled) == {"t=8": (2, 1), "t=16": (2, 1), "dynamic": (1, 0)}


def test_ranges_serve_before_padding_does():
    compiled = padded(lambda x: x * 2, ranges={"t": [(9, 12)]})
    for rows in (5, 10, 20):
        compiled(torch.randn(rows))
    assert served(compiled) == {"t=8": (1, 1), "t=9..12": (1, 0), "t=32": (1, 1)}


def test_calls_in_threads_are_padded_right():
    compiled = padded(Block())

    def call(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(int(torch.randint(2, 33, (), generator=generator)), 4, generator=generator)
            with torch.no_grad():
                hidden, flipped, number, same = compiled(x)
                assert hidden.shape == (x.shape[0], 8)
                assert torch.equal(hidden.t(), flipped)
                assert (number, same is x) == (2 * x.shape[0] + 1, True)

    with torch.no_grad():
        compiled(torch.randn(8, 4))
    in_threads(call, range(4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"padding": "prove"}, "padding='prove' is not possible; .*proved"),
        ({"pad_values": [1]}, "give a dict from arguments to numbers"),
        ({"pad_values": {"x": "0"}}, "give a dict from arguments to numbers"),
        ({"row_safe_ops": "aten::sin"}, "give a list of op names"),
        ({"on_miss": "padded"}, "on_miss='padded' is not possible; .*pad"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(options: dict[str, Any], said: str):
    with pytest.raises(OptionError, match=said):
        padded(lambda x: x, **options)


def test_a_pad_value_of_no_argument_is_told():
    compiled = padded(lambda x: x * 2, pad_values={"labls": 3})
    with pytest.warns(FxbucketWarning, match="pad_values: no argument of the captured graph is 'labls'"):
        compiled(torch.randn(8))


@settings(max_examples=settings().max_examples * 2)
@given(
    programs(),
    st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), min_size=1, max_size=3),
    st.sampled_from(["proved", "proved", "tested"]),
)
def test_random_programs_equal_eager_padded_or_not(program: RandomProgram, calls: list[tuple[int, int]], padding: str):
    torch.compiler.reset()
    function = program.function()
    compiled = fxbucket.compile(
        function, axes={"a": ["x.shape[0]", "y.shape[1]"], "b": "y.shape[0]"}, sizes={"a": [4, 8], "b": [4, 8]},
        on_miss="pad", padding=padding, compiler="eager", compile_when="lazily",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxbucketWarning)
        for seed, (a, b) in enumerate(calls):
            assert_equals_eager(compiled, function, program.arguments(a, b, seed), program.arguments(a, b, seed))


def test_an_op_that_is_declared_row_safe_and_in_no_graph_is_an_error_with_the_nearest_name():
    compiled = padded(lambda x: x.sin(), row_safe_ops=["aten::sinn"])
    with pytest.raises(OptionError, match=r"row_safe_ops: 'aten::sinn' is no op of the graph; .*aten::sin"):
        compiled(torch.randn(5))


def test_a_later_graph_may_lack_an_op_that_is_declared_row_safe():
    def branches(x: torch.Tensor, wide: bool) -> torch.Tensor:
        return x.sin() if wide else x.cos()

    compiled = padded(branches, row_safe_ops=["aten::sin"])
    x = torch.randn(5)
    assert torch.equal(compiled(x, True), x.sin())
    assert torch.equal(compiled(x, False), x.cos())
    assert served(compiled) == {"t=8": (2, 2)}


def spread(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Each element is made from itself, and the sizes are told, so that another bucket's could not go unnoticed."""
    return x.relu() + 1, x.shape[0] * 100 + x.shape[1]


pairs = st.tuples(st.integers(2, 9), st.integers(2, 9))


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(pairs, min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.integers(2, 6), st.integers(0, 3)), max_size=1),
    st.lists(pairs, min_size=1, max_size=5),
)
def test_the_bucket_that_serves_is_the_one_that_a_plain_specification_picks(
    pinned: list[tuple[int, int]], ranged: list[tuple[int, int]], calls: list[tuple[int, int]]
):
    torch.compiler.reset()
    ranges = [{"a": (start, start + length)} for start, length in ranged]
    compiled = fxbucket.compile(
        spread, axes={"a": "x.shape[0]", "b": "x.shape[1]"}, sizes=[{"a": a, "b": b} for a, b in pinned], ranges=ranges,
        on_miss="pad", compiler="eager", compile_when="lazily",
    )  # fmt: skip
    expected: dict[str, int] = {}
    for a, b in calls:
        x = torch.randn(a, b)
        assert_equals_eager(compiled, spread, (x,), (x.clone(),))
        larger = [(size_a * size_b, place) for place, (size_a, size_b) in enumerate(pinned) if size_a >= a and size_b >= b]
        if (a, b) in pinned:
            bucket = f"a={a}, b={b}"
        elif any(start <= a <= start + length for start, length in ranged):
            bucket = next(f"a={start}..{start + length}" for start, length in ranged)
        elif larger:
            size_a, size_b = pinned[min(larger)[1]]
            bucket = f"a={size_a}, b={size_b}"
        else:
            bucket = "dynamic"
        expected[bucket] = expected.get(bucket, 0) + 1
    assert {bucket: calls for bucket, (calls, _) in served(compiled).items()} == expected


@pytest.mark.gpu
@pytest.mark.parametrize("cudagraphs", ["off", "full"])
def test_calls_on_a_gpu_are_padded_with_gradients_and_without(cudagraphs: str):
    model = Block().cuda()
    compiled = padded(model, axis="x.shape[0]", compiler="inductor", cudagraphs=cudagraphs)
    for call in range(8):
        x = torch.randn(3 + 5 * (call % 4), 4, device="cuda")
        with torch.no_grad():
            for one, other in zip(compiled(x)[:2], model(x)[:2], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
                assert one.stride() == other.stride()
        wanted = tuple(model.parameters())
        for one, other in zip(
            torch.autograd.grad(compiled(x)[0].pow(2).sum(), wanted), torch.autograd.grad(model(x)[0].pow(2).sum(), wanted),
            strict=True,
        ):  # fmt: skip
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    assert sum(bucket.padded for graph in compiled.explain().graphs for bucket in graph.buckets) >= 12
