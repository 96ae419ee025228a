"""Recordings between boundaries, recordings made before they are needed, and results that tell when they are read late."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxbucket
from fxbucket.passes.errors import OptionError, StaleResultError
from tests.fxbucket.recorded_models import assert_calls_equal_eager, rows, states
from tests.threads import in_threads

pytestmark = pytest.mark.gpu
NAMESPACE = "fxbucket_graph_modes"
MODES = ["full", "piecewise", "auto"]


@pytest.fixture(autouse=True)
def ops() -> Iterator[Any]:
    """Ops that no compiler looks into: one that mixes rows, one that writes, one that asks the host."""
    with torch.library._scoped_library(NAMESPACE, "FRAGMENT") as library:
        library.define("mix(Tensor x) -> Tensor")
        library.impl("mix", lambda x: (x @ x.t()).softmax(-1) @ x, "CompositeExplicitAutograd")
        library.impl("mix", torch.empty_like, "Meta")
        library.define("store(Tensor(a!) cache, Tensor x) -> ()")
        library.impl("store", _add, "CompositeExplicitAutograd")
        library.impl("store", lambda cache, x: None, "Meta")
        library.define("host(Tensor x) -> Tensor")
        library.impl("host", lambda x: x * float(x.sum().item() > -1e9), "CompositeExplicitAutograd")
        library.impl("host", torch.empty_like, "Meta")
        yield getattr(torch.ops, NAMESPACE)


def _add(cache: torch.Tensor, x: torch.Tensor) -> None:
    cache[: x.shape[0]].add_(x)


class Layers(nn.Module):
    """Layers with an op between, a counter, and a residual that crosses the op."""

    def __init__(self, op: str = "mix", num_layers: int = 3) -> None:
        super().__init__()
        self.op = op
        self.up = nn.ModuleList(nn.Linear(16, 16) for _ in range(num_layers))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        for up in self.up:
            x = x + getattr(getattr(torch.ops, NAMESPACE), self.op)(up(x).relu()) * 0.5
        return x, x.t().contiguous()


def compiled_of(model: Any, mode: str, sizes: tuple[int, ...] = (4, 8), op: str = "mix", **options: Any) -> Any:
    given = {"sizes": {"t": list(sizes)}, "axes": {"t": "x.shape[0]"}, "cudagraphs": mode, "compiler": "eager"}
    return fxbucket.compile(model, **{**given, "splitting_ops": [f"{NAMESPACE}::{op}"], **options})


def pair(op: str = "mix") -> tuple[Layers, Layers]:
    model, plain = Layers(op).cuda(), Layers(op).cuda()
    plain.load_state_dict(model.state_dict())
    return model, plain


@pytest.mark.parametrize("compiler", ["eager", "inductor"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_equals_eager_and_gives_results_of_its_own(mode: str, compiler: str):
    model, plain = pair()
    compiled = compiled_of(model, mode, compiler=compiler)
    assert_calls_equal_eager(compiled, model, plain)
    graphs = 4 if mode == "piecewise" else 1
    assert all(f"{graphs} graph" in state for state in states(compiled).values()), states(compiled)


@pytest.mark.parametrize("mode", MODES)
def test_parameters_that_move_are_noticed_in_every_mode(mode: str):
    model, plain = pair()
    compiled = compiled_of(model, mode)
    with torch.no_grad():
        for step in range(4):
            for layers in (model, plain):
                weight = layers.up[1].weight
                weight.data = weight.data.clone() * (1 + step)
            for seed in range(3):
                torch.testing.assert_close(compiled(rows(4, seed))[0], plain(rows(4, seed))[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_boundary_that_writes_to_a_cache_writes_once_a_call(mode: str, ops: Any):
    def attend(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        hidden = x.relu() + 1
        ops.store(cache, hidden)
        return hidden * 2 + cache[0]

    compiled = compiled_of(attend, mode, op="store")
    cache, plain = torch.zeros(32, 16, device="cuda"), torch.zeros(32, 16, device="cuda")
    with torch.no_grad():
        for call in range(9):
            x = rows((4, 8)[call % 2], call)
            torch.testing.assert_close(compiled(x, cache), attend(x, plain))
            torch.testing.assert_close(cache, plain)


def test_what_asks_the_host_makes_auto_record_the_rest():
    model, plain = pair("host")
    compiled = compiled_of(model, "auto", op="host")
    with torch.no_grad():
        for call in range(8):
            torch.testing.assert_close(compiled(rows(4, call))[0], plain(rows(4, call))[0])
    assert model.calls.item() == 8
    assert "4 graphs" in states(compiled)["t=4"]


def test_a_piece_that_asks_the_host_is_left_out_and_its_effects_happen_once(ops: Any):
    model, plain = pair("host")
    compiled = compiled_of(model, "piecewise", op="mix", splitting_ops=["aten::relu"])
    with torch.no_grad():
        for call in range(8):
            torch.testing.assert_close(compiled(rows(4, call))[0], plain(rows(4, call))[0])
            assert model.calls.item() == call + 1
    assert "recording failed" in states(compiled)["t=4"]


@pytest.mark.parametrize("mode", ["piecewise", "auto"])
def test_sizes_that_the_data_decides_run_between_recordings(mode: str):
    def chosen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.sigmoid(x.relu() + 1)
        return hidden.sum(1) * 2, hidden[hidden[:, 0] > 0.9] * 3

    compiled = fxbucket.compile(
        chosen,
        sizes={"t": [4]},
        axes={"t": "x.shape[0]"},
        cudagraphs=mode,
        compiler="eager",
        splitting_ops=["aten::sigmoid"],
    )
    with torch.no_grad():
        for call in range(6):
            x = rows(4, call)
            for one, other in zip(compiled(x), chosen(x), strict=True):
                torch.testing.assert_close(one, other)


def test_a_float_that_changes_is_never_replayed():
    compiled = compiled_of(lambda x, scale: x.relu() * scale, "full", splitting_ops=[])
    with torch.no_grad():
        for call in range(9):
            x, scale = rows(4, call), (1.5, 1.5, 1.5, 2.5)[call % 4]
            assert torch.equal(compiled(x, scale), x.relu() * scale)


@pytest.mark.parametrize("mode", MODES)
def test_padded_calls_go_straight_into_the_buffers(mode: str, ops: Any):
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ops.mix((x + y).relu()) * 0 + x * 2 + y

    axes = {"t": ["x.shape[0]", "y.shape[1]"]}
    compiled = compiled_of(
        lambda x, y: model(x, y.t()), mode, sizes=(8,), axes=axes, on_miss="pad", row_safe_ops=[f"{NAMESPACE}::mix"]
    )
    with torch.no_grad():
        for call in range(16):
            number = 2 + call % 7
            x, y = rows(number, call), rows(number, call + 99)
            assert torch.equal(compiled(x, y.t()), model(x, y))
    (bucket,) = (bucket for bucket in compiled.explain().graphs[0].buckets if bucket.calls)
    assert bucket.padded == 14
    assert bucket.recording.startswith("recorded")


@pytest.mark.parametrize("mode", MODES)
def test_warmup_records_everything_and_changes_nothing(mode: str):
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).cuda()
    compiled = compiled_of(model, mode, sizes=(4, 8, 16), axes={"t": "input.shape[0]"}, splitting_ops=[], on_miss="error")
    with torch.no_grad():
        torch.manual_seed(0)
        compiled.warmup(rows(8))
        state = torch.cuda.get_rng_state()
        torch.manual_seed(0)
        model(rows(8))
        assert torch.equal(state, torch.cuda.get_rng_state())
        assert all(state.startswith("recorded") for state in states(compiled).values()), states(compiled)
        assert compiled.explain().calls() == {"t=4": 0, "t=8": 1, "t=16": 0}
        for number in (16, 4, 8):
            torch.manual_seed(number)
            got = compiled(rows(number))
            torch.manual_seed(number)
            assert torch.equal(got, model(rows(number)))


def test_warmup_does_not_run_what_writes_to_the_model_s_own_memory():
    model, plain = pair()
    compiled = compiled_of(model, "full")
    with torch.no_grad():
        compiled.warmup(rows(8))
        assert model.calls.item() == 1
        assert set(states(compiled).values()) == {"to be recorded"}
        plain(rows(8))
        for call in range(5):
            assert torch.equal(compiled(rows(4, call))[0], plain(rows(4, call))[0])


@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_memory_does_not_grow_with_buckets_and_pieces(mode: str):
    def bytes_of(sizes: tuple[int, ...]) -> int:
        torch.manual_seed(0)
        model = Wide().cuda()
        compiled = compiled_of(model, mode, sizes=sizes, axes={"t": "x.shape[0]"})
        with torch.no_grad():
            compiled.warmup(torch.randn(sizes[-1], 1024, device="cuda"))
            for number in sizes:
                x = torch.randn(number, 1024, device="cuda")
                torch.testing.assert_close(compiled(x), model(x))
        assert all(state.startswith("recorded") for state in states(compiled).values())
        return int(compiled.explain().recorded_bytes)

    largest = bytes_of((4096,))
    assert largest > 0
    assert bytes_of((64, 128, 256, 512, 1024, 2048, 3072, 4096)) <= 1.15 * largest


class Wide(nn.Module):
    """Layers whose memory between pieces is more than a few blocks of the allocator."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up in self.up:
            x = x + getattr(torch.ops, NAMESPACE).mix(up(x).relu()[:64]).sum() * 1e-3 + up(x)
        return x


@pytest.mark.parametrize("mode", MODES)
def test_a_static_result_that_is_read_too_late_is_an_error_in_debug_mode(mode: str):
    model, _ = pair()
    compiled = compiled_of(model, mode, cudagraph_outputs="static", debug=True)
    with torch.no_grad():
        for seed in range(4):
            first, _ = compiled(rows(4, seed))
        part = first[1:]
        assert torch.equal(first.clone()[1:], part)
        expected = model(rows(4, 3))[0]
        assert torch.equal(first, expected)
        fed, _ = compiled(first)
        torch.testing.assert_close(fed, model(expected)[0])
        for late in (first, part):
            with pytest.raises(StaleResultError, match="read after 1 later call wrote over its memory"):
                late.sum()
        with pytest.raises(StaleResultError):
            compiled(first)


def test_static_results_outlive_the_model():
    compiled = compiled_of(lambda x: x * 2 + 1, "full", cudagraph_outputs="static", splitting_ops=[])
    with torch.no_grad():
        for seed in range(3):
            result = compiled(rows(4, seed))
    del compiled
    torch.cuda.empty_cache()
    noise = [torch.full((4, 16), 7.0, device="cuda") for _ in range(64)]
    assert torch.equal(result, rows(4, 2) * 2 + 1)
    assert len(noise) == 64


def test_rows_that_are_one_row_of_memory_are_copied_right():
    compiled = compiled_of(lambda x: x.relu() + 1, "full", splitting_ops=[])
    with torch.no_grad():
        for seed in range(6):
            x = rows(1, seed).expand(4, 16)
            assert torch.equal(compiled(x), x.relu() + 1)


@torch.compiler.disable
def outside() -> None:
    """Break the graph."""


def in_two_parts(x: torch.Tensor) -> torch.Tensor:
    y = x.relu() + x
    outside()
    return y.sum(1) * 2


def in_two_parts_of_two_sizes(x: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x.relu(), x])
    outside()
    return y.sum(1) * 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("model", "counts"), [(in_two_parts, [2, 2]), (in_two_parts_of_two_sizes, [2, 0])])
def test_each_graph_of_a_model_that_breaks_is_recorded_where_its_sizes_are_pinned(mode: str, model: Any, counts: list[int]):
    compiled = compiled_of(model, mode, splitting_ops=[])
    with torch.no_grad():
        for call in range(12):
            x = rows((4, 8, 4)[call % 3], call)
            torch.testing.assert_close(compiled(x), model(x))
    graphs = compiled.explain().graphs
    found = [[bucket.recording for bucket in graph.buckets] for graph in graphs]
    assert [sum(state.startswith("recorded") for state in recordings) for recordings in found] == counts, found
    if 0 in counts:
        (bucket,) = graphs[1].buckets
        assert (bucket.calls, bucket.recording) == (12, "not recorded: not every size is pinned")


@pytest.mark.parametrize("mode", MODES)
def test_a_view_that_a_boundary_returns_is_the_caller_s_own(mode: str):
    compiled = compiled_of(lambda x: torch.transpose(x.relu() + 1, 0, 1), mode, splitting_ops=["aten::transpose"])
    with torch.no_grad():
        kept = [(compiled(rows(4, seed)), (rows(4, seed).relu() + 1).t()) for seed in range(6)]
        for got, expected in kept:
            assert torch.equal(got, expected)
            assert got.stride() == expected.stride()


def test_two_threads_record_beside_each_other():
    sizes = tuple(range(4, 12))
    models = [pair() for _ in range(2)]
    compiled = [compiled_of(model, "piecewise", sizes) for model, _ in models]

    def call(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for seed in range(10 * len(sizes)):
                x = rows(sizes[seed % len(sizes)], seed)
                torch.testing.assert_close(compiled[number](x)[0], models[number][1](x)[0], atol=1e-5, rtol=1e-5)

    with torch.no_grad():
        for one in compiled:
            one(rows(4))
    in_threads(call, range(2))
    for one in compiled:
        assert all(state.startswith("recorded") and ": 4 graphs" in state for state in states(one).values()), states(one)


@pytest.mark.parametrize("mode", MODES)
def test_recordings_beside_a_thread_that_compiles_are_made_sooner_or_later(mode: str):
    sizes = tuple(range(4, 12))
    model, plain = pair()
    compiled = compiled_of(model, mode, sizes)
    has_ended = threading.Event()

    def compile_meanwhile() -> None:
        # What is tuned is measured between two waits for the device.
        options = {"max_autotune": True, "triton.cudagraphs": False}
        for factor in range(2, 5):
            other = torch.compile(lambda x, factor=factor: (x @ x.t() * factor).softmax(-1).sum(0), options=options)
            x = torch.randn(64, 64).cuda()  # not drawn there, as docs/cudagraphs.md says
            torch.testing.assert_close(other(x), (x @ x.t() * factor).softmax(-1).sum(0))

    def call() -> None:
        calls = 0
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            while not has_ended.is_set() or calls < 4 * len(sizes):
                x = rows(sizes[calls % len(sizes)], calls)
                torch.testing.assert_close(compiled(x)[0], plain(x)[0], atol=1e-5, rtol=1e-5)
                calls += 1
            # A call that met a compilation was not recorded; the next one of its size is.
            for size in sizes * 2:
                compiled(rows(size))

    def run(part: Callable[[], None]) -> None:
        try:
            part()
        finally:
            has_ended.set()

    with torch.no_grad():
        compiled(rows(4))
    in_threads(run, [compile_meanwhile, call])
    assert all(state.startswith("recorded") for state in states(compiled).values()), states(compiled)


def test_a_wrong_mode_is_an_error_at_once():
    with pytest.raises(OptionError, match="cudagraphs='pieces' is not possible; possible: 'piecewise'"):
        compiled_of(lambda x: x, "pieces")
    with pytest.raises(OptionError, match="debug=1: give True or False"):
        compiled_of(lambda x: x, "full", debug=1)


STEPS: dict[str, Any] = {
    "relu": lambda a, b: a.relu() + 1,
    "add": lambda a, b: a + b,
    "mix": lambda a, b: getattr(torch.ops, NAMESPACE).mix(a),
    "view": lambda a, b: a.view(-1, 2, 8).transpose(1, 2).reshape(-1, 16),
    "flip": lambda a, b: torch.transpose(torch.transpose(a, 0, 1), 0, 1),
    "part": lambda a, b: torch.cat([a[:, 8:], b[:, :8]], 1),
    "write": lambda a, b: (a * 1).mul_(0.5),
    "sigmoid": lambda a, b: torch.sigmoid(b),
}


@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8),
    mode=st.sampled_from(MODES),
    outputs=st.sampled_from(["copy", "static"]),
    sizes=st.lists(st.integers(2, 8), min_size=6, max_size=12),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs_equal_eager_at_random_sizes(steps: list[str], mode: str, outputs: str, sizes: list[int]):
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x, x * 2
        for step in steps:
            a, b = STEPS[step](a, b), a
        return a + 0.5, b * 1

    cuts = [
        name
        for name, step in ((f"{NAMESPACE}::mix", "mix"), ("aten::sigmoid", "sigmoid"), ("aten::transpose", "flip"))
        if step in steps
    ]
    compiled = compiled_of(
        model, mode, sizes=(4, 8), splitting_ops=cuts, cudagraph_outputs=outputs, on_miss="pad",
        padding="proved", row_safe_ops=cuts, debug=outputs == "static",
    )  # fmt: skip
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", fxbucket.FxbucketWarning)
        for seed, size in enumerate(sizes):
            # An op that mixes rows is only called at pinned sizes.
            number = size if "mix" not in steps else (4, 8)[size % 2]
            x = rows(number, seed)
            for one, other in zip(compiled(x), model(x), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
                assert one.stride() == other.stride()
