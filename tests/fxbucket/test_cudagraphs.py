"""Recorded buckets: right results, results of one's own, and nothing replayed over stale memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxbucket
from fxbucket.passes.errors import OptionError
from tests.fxbucket.recorded_models import assert_calls_equal_eager, rows, states
from tests.threads import in_threads

gpu = pytest.mark.gpu


class Block(nn.Module):
    """A layer with a buffer that it counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(16, 32), nn.LayerNorm(32)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        hidden = torch.nn.functional.gelu(self.norm(self.up(x)))
        return hidden, hidden.t().contiguous()


def recorded(model: Any, sizes: tuple[int, ...] = (4, 8), axis: str = "x.shape[0]", **options: Any) -> Any:
    given = {"sizes": {"t": list(sizes)}, "axes": {"t": axis}, "cudagraphs": "full", "compiler": "eager", **options}
    return fxbucket.compile(model, **given)


def test_on_a_cpu_nothing_is_recorded_and_explain_says_why():
    model = Block()
    compiled = recorded(model)
    x = torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(3):
            hidden, _ = compiled(x)
    assert torch.equal(hidden, torch.nn.functional.gelu(model.norm(model.up(x))))
    assert states(compiled)["t=4"] == "not recorded: it holds tensors on cpu"
    assert "it holds tensors on cpu" in str(compiled.explain())


def test_gradients_and_open_sizes_are_reasons_too():
    compiled = recorded(lambda x, y: x @ y, axes={"t": "x.shape[0]", "k": "y.shape[1]"})
    compiled(torch.randn(4, 3, requires_grad=True), torch.randn(3, 5))
    assert "not every size is pinned" in states(compiled)["t=4"]
    assert "gradients are recorded" in states(compiled)["t=4"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cudagraphs": "on"}, "cudagraphs='on' is not possible"),
        ({"debug": 1}, "debug=1: give True or False"),
        ({"cudagraph_outputs": "mine"}, "cudagraph_outputs='mine' is not possible"),
        ({"cudagraph_max_buckets": 0}, "cudagraph_max_buckets=0: give an int of at least 1"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(options: dict[str, Any], said: str):
    with pytest.raises(OptionError, match=said):
        recorded(lambda x: x, **options)


@gpu
def test_replays_equal_eager_at_every_size_and_give_results_of_their_own():
    model, plain = Block().cuda(), Block().cuda()
    plain.load_state_dict(model.state_dict())
    compiled = recorded(model)
    assert_calls_equal_eager(compiled, model, plain)
    assert all(state.startswith("recorded") for state in states(compiled).values())


@gpu
def test_static_results_are_the_recording_s_own_memory():
    compiled = recorded(lambda x: (x * 2,), cudagraph_outputs="static")
    with torch.no_grad():
        addresses = [compiled(rows(4, seed))[0].data_ptr() for seed in range(6)]
        first = compiled(rows(4, 1))[0]
        assert torch.equal(first, rows(4, 1) * 2)
        compiled(rows(4, 2))
        assert torch.equal(first, rows(4, 2) * 2)
    # The first call runs as ever, and the second is recorded.
    assert len(set(addresses[2:])) == 1


@gpu
def test_parameters_that_change_in_place_move_or_are_replaced_are_noticed():
    model = Block().cuda()
    compiled = recorded(model)
    x = rows(4)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: model.up.weight.mul_(2),
            lambda: setattr(model.up.weight, "data", model.up.weight.data.clone() * 3),
            lambda: model.up.weight.data.set_(model.up.weight.data.view(16, 32).t()),
            lambda: setattr(model.up, "bias", nn.Parameter(torch.ones(32, device="cuda"))),
            lambda: model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}),
        ):
            change()
            for _ in range(3):
                torch.testing.assert_close(compiled(x)[0], nn.functional.gelu(model.norm(model.up(x))))


@gpu
def test_arguments_at_any_address_and_of_any_stride_are_read_right():
    compiled = recorded(lambda x: x.relu() + 1, sizes=(4,))
    static = rows(4)
    with torch.no_grad():
        for call in range(8):
            x = static if call % 3 else rows(4, call)
            static.add_(1)
            assert torch.equal(compiled(x), x.relu() + 1)
    wide = recorded(lambda x: x.relu() + 1, sizes=(4,))
    with torch.no_grad():
        for call in range(5):
            x = torch.randn(16, 4, device="cuda").t()
            assert torch.equal(wide(x), x.relu() + 1), call


@gpu
def test_writes_to_arguments_reach_the_caller_s():
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = recorded(write, axes={"t": ["x.shape[0]", "y.shape[0]"]})
    with torch.no_grad():
        for call in range(6):
            x, y = rows(4, call), rows(4, call + 50)
            expected = x * 2
            assert torch.equal(compiled(x, y), expected + y)
            assert torch.equal(x, expected)


@gpu
def test_random_numbers_go_on_as_in_eager():
    compiled = recorded(lambda x: nn.functional.dropout(x, 0.5, True) + torch.rand_like(x))
    x = rows(4)
    with torch.no_grad():
        torch.manual_seed(3)
        expected = [nn.functional.dropout(x, 0.5, True) + torch.rand_like(x) for _ in range(5)]
        for _ in range(2):
            compiled(x)
        torch.manual_seed(3)
        for one in expected:
            assert torch.equal(compiled(x), one)


@gpu
def test_streams_wait_for_each_other_and_threads_take_turns():
    compiled = recorded(lambda x: (x @ x.t()).relu().sum(1), sizes=(64,))
    wrong: list[int] = []

    def call(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            for number in range(20):
                x = rows(64, seed * 100 + number)
                got, expected = compiled(x), (x @ x.t()).relu().sum(1)
                stream.synchronize()
                if not torch.allclose(got, expected, atol=1e-3):
                    wrong.append(number)

    with torch.no_grad():
        for seed in range(3):
            compiled(rows(64, seed))
    in_threads(call, range(4))
    assert wrong == []


@gpu
def test_a_recording_of_the_user_s_own_around_it_records_the_pieces():
    compiled = recorded(lambda x: x.relu() * 3)
    x = rows(4)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x)
        x.copy_(rows(4, 9))
        graph.replay()
        assert torch.equal(result, x.relu() * 3)


@gpu
def test_what_asks_the_host_is_not_recorded_and_still_right():
    with torch.library._scoped_library("fxbucket_cudagraphs", "FRAGMENT") as library:
        library.define("host(Tensor x) -> Tensor")
        library.impl("host", lambda x: x * float(x.sum().item() > 0), "CompositeExplicitAutograd")
        library.impl("host", torch.empty_like, "Meta")
        compiled = recorded(lambda x: torch.ops.fxbucket_cudagraphs.host(x) + 1, splitting_ops=["fxbucket_cudagraphs::host"])
        x = rows(4).abs()
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(compiled(x), x + 1)
            with pytest.warns(fxbucket.FxbucketWarning, match="is not recorded: recording failed"):
                assert torch.equal(compiled(x), x + 1)
            assert torch.equal(compiled(x), x + 1)
        assert "recording failed" in states(compiled)["t=4"]


@gpu
def test_the_least_recently_used_recording_goes_where_there_are_too_many():
    compiled = recorded(lambda x: x * 2, sizes=(4, 8, 12), cudagraph_max_buckets=2)
    with torch.no_grad():
        for number in (4, 8, 12):
            for seed in range(3):
                x = rows(number, seed)
                assert torch.equal(compiled(x), x * 2)
        assert [state.split(":")[0] for state in states(compiled).values()] == ["to be recorded", "recorded", "recorded"]
        for seed in range(3):
            assert torch.equal(compiled(rows(4, seed)), rows(4, seed) * 2)


@gpu
def test_padded_calls_are_served_by_recordings():
    compiled = recorded(lambda x: x.relu() * 2, on_miss="pad")
    with torch.no_grad():
        for call in range(8):
            x = rows(3 + call % 4, call)
            assert torch.equal(compiled(x), x.relu() * 2)
    assert sum(bucket.padded for bucket in compiled.explain().graphs[0].buckets) == 6
