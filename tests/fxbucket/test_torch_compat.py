from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch
from torch import fx

import fxbucket
from fxbucket import torch_compat
from fxbucket.passes.errors import UnsupportedTorchError
from fxbucket.passes.symbolic import fresh_environment
from fxbucket.passes.torch_version import check_torch_version
from tests.threads import in_threads


@pytest.mark.parametrize(
    "version", ["2.11", "2.11.0", "2.13.0+cpu", "2.14.0.dev20250101+cu130", "2.11.0a0+git1234", "3.0.0"]
)
def test_supported_versions_of_torch_pass(version: str):
    check_torch_version(version)


@pytest.mark.parametrize("version", ["2.10.1", "2.9.0+cu128", "1.13.1", "2.2.0a0"])
def test_an_older_torch_is_an_error_that_names_both_versions(version: str):
    with pytest.raises(UnsupportedTorchError, match=rf"torch {version.replace('+', '.')} is too old.*2\.11.*upgrade"):
        check_torch_version(version)


@pytest.mark.parametrize(
    "use",
    [
        lambda: fxbucket.compile(lambda x: x + 1),
        lambda: fxbucket.backend(),
        lambda: fxbucket.capture(lambda x: x + 1, torch.ones(3)),
    ],
)
def test_every_way_in_refuses_an_older_torch_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, use: Any):
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    with pytest.raises(UnsupportedTorchError, match=r"torch 2\.10\.0 is too old"):
        use()


def test_the_installed_torch_is_supported():
    check_torch_version()


def test_backends_of_torch_are_listed_and_found_by_name():
    names = torch_compat.backend_names()
    assert {"inductor", "eager", "aot_eager", "fxbucket"} <= set(names)
    assert callable(torch_compat.registered_backend("aot_eager"))


def test_outside_a_capture_there_is_no_environment():
    assert torch_compat.tracing_shape_env() is None


def test_a_compiler_sees_the_given_mode_and_real_work_sees_none():
    env, mode = fresh_environment()
    with torch_compat.compiling_under(mode):
        assert torch_compat.tracing_shape_env() is env
        with torch_compat.without_tracing():
            assert torch_compat.tracing_shape_env() is None
    assert torch_compat.tracing_shape_env() is None


def test_real_tensors_can_be_made_in_the_midst_of_a_fake_mode():
    _, mode = fresh_environment()
    with mode, torch_compat.without_tracing():
        assert float(torch.ones(3).sum()) == 3.0


def test_a_mark_on_a_dim_is_taken_away_again():
    x = torch.randn(3, 4)
    undo = torch_compat.mark_dim_dynamic(x, 1)
    assert vars(x)
    undo()
    assert vars(x) == {}


def test_marks_are_taken_away_in_any_number_and_leave_the_earlier_ones():
    x = torch.randn(3, 4)
    first = torch_compat.mark_dim_dynamic(x, 0)
    kept = {name: set(value) if isinstance(value, set) else value for name, value in vars(x).items()}
    second = torch_compat.mark_dim_dynamic(x, 1)
    second()
    assert vars(x) == kept
    first()
    assert vars(x) == {}


def test_an_error_of_a_backend_is_taken_out_of_torchs_wrapping():
    class Stop(Exception):  # noqa: N818 (a stand-in for any error)
        pass

    def backend(module: fx.GraphModule, inputs: Any) -> Any:
        raise Stop("here")

    with pytest.raises(Exception, match="here") as caught:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    assert type(torch_compat.original_error(caught.value)) is Stop
    plain = ValueError("plain")
    assert torch_compat.original_error(plain) is plain


def seen_by_a_backend(model: Any, *args: Any) -> list[tuple[fx.GraphModule, list[tuple[str, Any]]]]:
    """Return each captured graph with what each of its placeholders is told to be, while Dynamo still knows."""
    found: list[tuple[fx.GraphModule, list[tuple[str, Any]]]] = []

    def backend(module: fx.GraphModule, _: Any) -> Any:
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        found.append((module, [torch_compat.captured_argument(node) for node in nodes]))
        return module.forward

    torch.compile(model, backend=backend, dynamic=False)(*args)
    return found


def test_a_placeholder_is_told_its_source_and_the_real_tensor():
    x = torch.randn(3)
    ((_, arguments),) = seen_by_a_backend(lambda x: x + 1, x)
    ((source, real),) = arguments
    assert source == "L['x']"
    assert real is x


def test_a_placeholder_of_no_capture_is_its_own_name():
    assert torch_compat.captured_argument(fx.Graph().placeholder("x")) == ("x", None)


def test_a_graph_after_which_python_goes_on_is_a_fragment():
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.compiler.disable(lambda: None)()
        return y * 2

    assert torch_compat.is_graph_fragment(seen_by_a_backend(broken, torch.ones(3))[0][0])
    ((whole, _),) = seen_by_a_backend(lambda x: x + 1, torch.ones(3))
    assert not torch_compat.is_graph_fragment(whole)


def test_a_watch_sees_each_capture_begin_and_end_even_after_a_reset():
    events: list[str] = []
    watch = torch_compat.CaptureWatch(lambda: events.append("start"), lambda: events.append("end"))
    for _ in range(2):
        torch.compiler.reset()
        watch.ensure()
        watch.ensure()
        compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    assert events == ["start", "end"] * 2


def test_a_trace_in_a_thread_that_compiles_is_none_of_another_thread_s_calls():
    compiled = fxbucket.compile(lambda x: x * 2, sizes={"x.shape[0]": [4]}, compiler="eager")
    x = torch.randn(4)
    compiled(x)
    is_traced, may_end = threading.Event(), threading.Event()

    def traced(x: torch.Tensor) -> torch.Tensor:
        is_traced.set()
        may_end.wait(60)
        return x + 1

    def trace() -> None:
        with torch_compat.no_other_compilation():
            fx.symbolic_trace(traced)

    def call() -> None:
        try:
            assert is_traced.wait(60)
            assert torch.equal(compiled(x), x * 2)
        finally:
            may_end.set()

    in_threads(lambda part: part(), [trace, call])


def test_a_trace_of_a_compiled_model_itself_is_the_error_that_it_is_in_torch():
    compiled = fxbucket.compile(lambda x: x * 2, sizes={"x.shape[0]": [4]}, compiler="eager")
    compiled(torch.randn(4))
    for lock in (contextlib.nullcontext(), torch_compat.no_other_compilation()):
        with lock, pytest.raises(RuntimeError, match="symbolically trace a dynamo-optimized function"):
            fx.symbolic_trace(lambda x: compiled(x))
