"""A compiled model is used like the model."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.compiled import CompiledFunction, CompiledModule
from fxbucket.passes.errors import AxisError, BoundaryError
from tests.equality import assert_equals_eager


class Net(torch.nn.Module):
    """Has a parameter, a buffer that a call changes, a mode, and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.sigmoid(self.linear(x))) * self.scale

    def helper(self) -> str:
        return "helped"


OPTIONS: dict[str, Any] = {"sizes": {"x.shape[0]": [4, 8]}, "splitting_ops": ["aten::sigmoid"], "compiler": "eager"}


def compiled_net(**options: Any) -> tuple[Any, Net]:
    net = Net()
    return fxbucket.compile(net, **{**OPTIONS, **options}), net


def relu(x: torch.Tensor) -> torch.Tensor:
    """Return x without its negative part."""
    return x.relu()


def test_parameters_buffers_and_state_are_the_modules_own():
    compiled, net = compiled_net()
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert all(mine is theirs for mine, theirs in zip(compiled.parameters(), net.parameters(), strict=True))
    assert all(mine is theirs for mine, theirs in zip(compiled.buffers(), net.buffers(), strict=True))
    assert compiled.state_dict().keys() == net.state_dict().keys()
    assert isinstance(compiled, torch.nn.Module)


def test_a_loaded_state_serves_the_next_call():
    compiled, net = compiled_net()
    x = torch.randn(4, 3)
    compiled(x)
    other = Net()
    compiled.load_state_dict(other.state_dict())
    assert torch.equal(net.linear.weight, other.linear.weight)
    assert torch.equal(compiled(x), other(x))
    assert len(compiled.programs) == 1


def test_a_call_in_training_mode_updates_buffers_as_eager_does():
    compiled, net = compiled_net()
    eager = copy.deepcopy(net)
    for rows in (4, 8, 5):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), eager(x))
    assert torch.equal(net.norm.running_mean, eager.norm.running_mean)  # type: ignore[arg-type]
    assert int(net.norm.num_batches_tracked) == 3  # type: ignore[arg-type]


def test_train_and_eval_are_the_modules_mode_and_each_has_its_own_capture():
    compiled, net = compiled_net()
    x = torch.randn(4, 3)
    compiled(x)
    assert compiled.eval() is compiled
    assert (net.training, compiled.training, net.norm.training) == (False, False, False)
    assert torch.equal(compiled(x), net(x))
    compiled.train()
    assert (net.training, compiled.training) == (True, True)
    assert len(compiled.programs) == 2


def test_gradients_reach_the_modules_parameters():
    compiled, net = compiled_net(compiler="aot_eager")
    eager = copy.deepcopy(net)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (compiled, eager))
    for rows in (4, 6, 8):
        x = torch.randn(rows, 3)
        for model, steps in ((compiled, optimizer), (eager, other)):
            steps.zero_grad()
            model(x).square().sum().backward()
            steps.step()
    for mine, theirs in zip(net.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert len(compiled.programs) == 1, "a new value of a parameter is no new capture"


def test_attributes_are_read_from_written_to_and_deleted_from_the_module():
    compiled, net = compiled_net()
    assert compiled.helper() == "helped"
    compiled.scale = 3.0
    assert net.scale == 3.0
    x = torch.randn(4, 3)
    assert torch.equal(compiled(x), net(x))
    compiled.extra = torch.nn.Linear(1, 1)
    assert "extra.weight" in net.state_dict()
    del compiled.extra
    assert "extra.weight" not in net.state_dict()
    assert "helper" in dir(compiled)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = compiled.no_such_thing


def test_a_changed_attribute_is_seen_by_the_next_call():
    compiled, net = compiled_net()
    x = torch.randn(4, 3)
    net.eval()
    first = compiled(x)
    compiled.scale = 4.0
    assert torch.equal(compiled(x), first * 2)


def test_moving_the_module_moves_what_is_compiled():
    compiled, net = compiled_net()
    compiled(torch.randn(4, 3))
    assert compiled.double() is compiled
    assert net.linear.weight.dtype is torch.float64
    x = torch.randn(4, 3, dtype=torch.float64)
    net.eval()
    assert_equals_eager(compiled, net, (x,), (x.clone(),))


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("before", [True, False], ids=["before the first call", "after it"])
def test_hooks_of_the_module_and_of_the_compiled_one_run_once_a_call(register: str, before: bool):
    compiled, net = compiled_net()
    x = torch.randn(4, 3)
    if not before:
        compiled(x)
    ran: list[str] = []
    handles = [
        getattr(net, register)(lambda *_: ran.append("module")),
        getattr(compiled, register)(lambda *_: ran.append("compiled")),
    ]
    compiled(x)
    assert ran == ["module", "compiled"]
    for handle in handles:
        handle.remove()
    compiled(x)
    assert ran == ["module", "compiled"]


def test_a_hook_that_changes_the_output_does_so():
    compiled, net = compiled_net()
    x = torch.randn(4, 3)
    net.eval()
    plain = net(x)
    net.register_forward_hook(lambda module, args, output: output + 1)
    assert torch.equal(compiled(x), plain + 1)


def test_a_compiled_module_is_a_submodule_like_any_other():
    compiled, net = compiled_net()
    outer = torch.nn.Sequential(compiled, torch.nn.ReLU())
    assert list(outer.state_dict()) == [f"0.{name}" for name in net.state_dict()]
    outer.eval()
    assert not net.training
    x = torch.randn(4, 3)
    assert torch.equal(outer(x), net(x).relu())
    assert compiled.explain().calls()["x.shape[0]=4"] == 1


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), lambda model: saved_and_loaded(model)],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_a_copy_has_parameters_of_its_own_and_the_same_options(copied: Callable[[Any], Any]):
    compiled, net = compiled_net()
    net.eval()
    x = torch.randn(4, 3)
    expected = compiled(x)
    other = copied(compiled)
    assert type(other) is CompiledModule
    assert other.explain().graphs == (), "nothing compiled is copied"
    assert torch.equal(other(x), expected)
    with torch.no_grad():
        other.linear.weight.zero_()
    assert not torch.equal(other(x), expected)
    assert torch.equal(compiled(x), expected)
    assert other.explain().calls() == {"x.shape[0]=4": 2, "x.shape[0]=8": 0}


def saved_and_loaded(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))], ids=["deepcopy", "pickle"])
def test_a_compiled_function_can_be_copied_too(copied: Callable[[Any], Any]):
    compiled = fxbucket.compile(relu, sizes={"x.shape[0]": [4]}, compiler="eager")
    x = torch.randn(4)
    compiled(x)
    other = copied(compiled)
    assert type(other) is CompiledFunction
    assert torch.equal(other(x), x.relu())
    assert compiled.explain().calls() == other.explain().calls() == {"x.shape[0]=4": 1}


def test_a_compiled_function_keeps_its_name_and_documentation():
    compiled = fxbucket.compile(relu, compiler="eager")
    assert compiled.__name__ == "relu"
    assert compiled.__doc__ == relu.__doc__
    assert compiled.__wrapped__ is relu
    assert "relu" in repr(compiled)
    assert repr(fxbucket.compile(torch.nn.ReLU(), compiler="eager")) == "fxbucket.compile(ReLU())"


class Callable_(torch.nn.Module):  # noqa: N801 - beside typing's Callable
    def forward(self, *tensors: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return sum(tensors) * weight  # type: ignore[return-value]


def test_methods_and_callable_objects_are_compiled_as_functions():
    net = Net().eval()
    compiled = fxbucket.compile(net.forward, sizes={"x.shape[0]": [4]}, compiler="eager")
    x = torch.randn(4, 3)
    assert type(compiled) is CompiledFunction
    assert torch.equal(compiled(x), net(x))
    assert torch.equal(compiled(x=x), net(x))
    variadic = fxbucket.compile(Callable_(), sizes={"tensors[1].shape[0]": [4]}, compiler="eager")
    a, b = torch.randn(4), torch.randn(4)
    assert torch.equal(variadic(a, b, weight=2.0), (a + b) * 2)
    assert variadic.explain().calls() == {"tensors[1].shape[0]=4": 1}


def test_arguments_that_do_not_fit_are_the_models_own_type_error():
    compiled, _ = compiled_net()
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        compiled()
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        compiled(torch.randn(4, 3), y=1)


def test_an_error_of_the_model_is_an_error_of_the_call_and_the_next_call_is_served():
    compiled, net = compiled_net()
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4, 7))
    net.eval()
    x = torch.randn(4, 3)
    assert torch.equal(compiled(x), net(x))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"sizes": {"y.shape[0]": [4]}}, AxisError, r"'y.shape\[0\]' names no argument of the model.*'x.shape\[0\]'"),
        ({"sizes": {"x.shape[2]": [4]}}, AxisError, "2 dimensions"),
        ({"sizes": {"x": [4]}}, AxisError, "must read an int, but this call gives Parameter|must read an int.*Tensor"),
        ({"axes": {"b": "x.rows"}}, AxisError, "no attribute 'rows'"),
        ({"splitting_ops": ["aten::sigmoidd"]}, BoundaryError, "'aten::sigmoid'"),
    ],
)
def test_what_only_the_first_call_can_tell_is_wrong_is_an_error_there_and_nothing_is_half_made(
    options: dict[str, Any], kind: type[Exception], said: str, compiler: Any
):
    compiled, net = compiled_net(**{"compiler": compiler, **options})
    for _ in range(2):
        with pytest.raises(kind, match=said):
            compiled(torch.randn(4, 3))
    assert compiler.count == 0
    assert compiled.programs == ()
    assert compiled.explain().graphs == ()
    assert int(net.norm.num_batches_tracked) == 0, "the model did not run"  # type: ignore[arg-type]


def test_warmup_compiles_everything_and_the_calls_after_it_nothing(compiler: Any):
    compiled, _ = compiled_net(compiler=compiler, compile_when="lazily")
    compiled.warmup(torch.randn(4, 3))
    assert compiler.count == 6, "two pieces for each of two sizes, and for all other sizes"
    for rows in (4, 8, 5):
        compiled(torch.randn(rows, 3))
    assert compiler.count == 6


def test_warmup_runs_the_model_once():
    compiled, net = compiled_net()
    compiled.warmup(torch.randn(4, 3))
    assert int(net.norm.num_batches_tracked) == 1  # type: ignore[arg-type]


def test_programs_are_what_was_captured_symbolic_and_cut():
    compiled, _ = compiled_net()
    assert compiled.programs == ()
    compiled(torch.randn(4, 3))
    (program,) = compiled.programs
    assert program.open_symbols
    assert len(program.pieces) == 3
    assert [step.name for step in program.trail] == ["split", "discover", "admit", "deduplicate"]


class Own(torch.nn.Module):
    """Overrides what torch.nn.Module defines, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.asked: list[str] = []

    def train(self, mode: bool = True) -> Own:
        self.asked.append("train")
        return super().train(False)

    def to(self, *args: Any, **kwargs: Any) -> Own:
        self.asked.append("to")
        return super().to(*args, **kwargs)

    def parameters(self, recurse: bool = True) -> Any:
        self.asked.append("parameters")
        yield self.linear.weight

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append("state_dict")
        return super().state_dict(*args, **kwargs)

    def extra_repr(self) -> str:
        return "own"

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        return self.linear(x) * scale


def compiled_own() -> tuple[Any, Own]:
    own = Own()
    return fxbucket.compile(own, sizes={"x.shape[0]": [4]}, compiler="eager"), own


def test_methods_that_the_module_overrides_are_the_module_s_and_give_the_compiled_one():
    compiled, own = compiled_own()
    assert compiled.train() is compiled
    assert compiled.to(torch.float64) is compiled
    assert [p is own.linear.weight for p in compiled.parameters()] == [True]
    assert compiled.eval() is compiled
    assert (compiled.training, own.training) == (False, False)
    outer = torch.nn.Sequential(compiled)
    assert list(outer.state_dict()) == ["0.linear.weight", "0.linear.bias"]
    assert own.asked == ["train", "to", "parameters", "train", "state_dict"]
    assert compiled.extra_repr() == "own"
    assert [type(module).__name__ for module in compiled.modules()] == ["CompiledModule", "Linear"]


def test_a_compiled_module_is_of_its_module_s_class_to_who_asks_for_that():
    compiled, own = compiled_own()
    assert isinstance(compiled, Own)
    assert isinstance(compiled, CompiledModule)
    assert compiled.__class__ is Own
    assert type(compiled) is CompiledModule
    assert not isinstance(compiled, Net)
    assert isinstance(own, Own)
    assert not isinstance(own, CompiledModule)


def test_forward_is_a_compiled_call_with_the_module_s_signature():
    compiled, own = compiled_own()
    assert inspect.signature(compiled.forward) == inspect.signature(own.forward)
    x = torch.randn(4, 3)
    assert torch.equal(compiled.forward(x, scale=3.0), own(x, scale=3.0))
    assert compiled.explain().calls()["x.shape[0]=4"] == 1


def test_what_is_put_in_the_place_of_forward_runs_around_calls():
    compiled, own = compiled_own()
    x = torch.randn(4, 3)
    inner = compiled.forward
    seen: list[int] = []

    def around(*args: Any, **kwargs: Any) -> Any:
        seen.append(len(args))
        return inner(*args, **kwargs) + 1

    compiled.forward = around
    for _ in range(2):
        assert torch.equal(compiled(x), own(x) + 1)
    assert seen == [1, 1], "it is not captured"
    assert compiled.explain().calls()["x.shape[0]=4"] == 2
    del compiled.forward
    assert torch.equal(compiled(x), own(x))
    assert seen == [1, 1]
