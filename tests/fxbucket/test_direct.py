from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.artifact import Artifact
from fxbucket.direct import direct_call
from fxbucket.entry import Entry


@torch.library.custom_op("fxbucket_tests::turned_when_asked", mutates_args=())
def turned_when_asked(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Return a copy, which has other strides than the op says where ``turns`` holds a 1."""
    return x.t().contiguous().t() if bool(turns) else x.clone()


@turned_when_asked.register_fake
def _(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def through_an_op(x: torch.Tensor, weight: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    return torch.relu(turned_when_asked(x @ weight, turns)) + x.sum(1, keepdim=True)


def compiled_for_8(model: Callable[..., Any], folder: Path, **options: Any) -> Any:
    return fxbucket.compile(model, sizes={"x.shape[0]": [8]}, cache=folder, workers=0, **options)


def entry_of(compiled: Any, graph: int = 0) -> Entry:
    (entry,) = compiled._engine.backend.dispatchers[graph].entries
    return entry  # type: ignore[no-any-return]


def pieces_run(compiled: Any) -> dict[str, Any]:
    """Return what runs each piece now, by the piece's name."""
    function = entry_of(compiled).emitted.function  # type: ignore[union-attr]
    return {name.split("run_")[1]: held for name, held in function.__globals__.items() if "run_" in name}


def checked_in(code: str) -> list[str]:
    """Return the inputs whose sizes and strides generated code checks."""
    calls = re.findall(r"^ +assert_size_stride\w*\(\(?((?:arg\w+, )*arg\w+)", code, re.MULTILINE)
    return sorted(name for call in calls for name in call.split(", "))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("origin", ["compiled", "loaded"])
def test_after_the_first_call_artifacts_run_without_wrappers_and_check_what_ops_return(folder: Path, origin: str):
    x, weight, no, yes = torch.randn(8, 4), torch.randn(4, 4), torch.tensor(False), torch.tensor(True)
    with torch.no_grad():
        compiled = compiled_for_8(through_an_op, folder, splitting_ops=[turned_when_asked])
        expected = through_an_op(x, weight, no)
        torch.testing.assert_close(compiled(x, weight, no), expected)
        first, last = (artifact for artifact in entry_of(compiled).artifacts if artifact.origin != "as it is")
        assert first.origin == last.origin == origin
        assert checked_in(first.code) == ["arg0_1", "arg1_1"]
        run = pieces_run(compiled)
        assert checked_in(inspect.getsource(run[first.piece])) == []
        # What the op gave is the one input of the last piece that nothing else vouches for.
        assert len(checked_in(inspect.getsource(run[last.piece]))) == 1
        assert checked_in(last.code) == ["arg0_1", "arg1_1"]
        torch.testing.assert_close(compiled(x, weight, no), expected)
        with pytest.raises(AssertionError, match="stride"):
            compiled(x, weight, yes)
        torch.testing.assert_close(compiled(x, weight, no), expected)


def test_debug_keeps_every_wrapper_and_check(folder: Path):
    x, weight, no = torch.randn(8, 4), torch.randn(4, 4), torch.tensor(False)
    with torch.no_grad():
        compiled = compiled_for_8(through_an_op, folder, splitting_ops=[turned_when_asked], debug=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, weight, no), through_an_op(x, weight, no))
        run = pieces_run(compiled)
    for artifact in entry_of(compiled).artifacts:
        assert run[artifact.piece] == artifact.call


def writes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.add_(1) @ weight


def returns_a_view(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.view(-1), x @ weight


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight + 1


@pytest.mark.parametrize("model", [writes, returns_a_view])
def test_wrappers_that_have_something_to_do_stay(model: Callable[..., Any], tmp_path: Path):
    with torch.no_grad():
        compiled = compiled_for_8(model, tmp_path)
        for _ in range(3):
            x, weight = torch.randn(8, 4), torch.randn(4, 4)
            mine = x.clone()
            found, expected = compiled(mine, weight), model(x, weight)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(mine, x)
    (artifact,) = entry_of(compiled).artifacts
    assert artifact.direct is None


def test_where_gradients_are_recorded_the_wrappers_stay(tmp_path: Path):
    weight = torch.randn(4, 4)
    compiled = compiled_for_8(product, tmp_path)
    for graph, needs in enumerate((False, True, False)):
        x = torch.randn(8, 4, requires_grad=needs)
        for _ in range(2):
            found = compiled(x, weight)
            assert found.requires_grad is needs
            torch.testing.assert_close(found, product(x, weight))
        if graph < 2:
            (artifact,) = entry_of(compiled, graph).artifacts
            assert (artifact.direct is None) is needs


def test_a_parameter_that_needs_no_gradient_in_its_piece_is_kept_from_autograd(tmp_path: Path):
    weight = torch.nn.Parameter(torch.randn(4, 4))
    compiled = compiled_for_8(lambda x, weight: (x @ weight).argmax(1), tmp_path)
    for _ in range(3):
        x = torch.randn(8, 4)
        assert torch.equal(compiled(x, weight), (x @ weight).argmax(1))


def test_only_artifacts_of_inductor_have_wrappers_to_leave_out():
    assert direct_call(product) is None
    assert Artifact("piece_0", product, ("x", "weight"), "compiled").direct is None
