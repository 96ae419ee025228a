from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxbucket
from fxbucket.hooks import HookWatch, is_of_no_hooks


class Doubling(nn.Module):
    """A module whose class says nothing of the hooks that one of it has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def stack() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Doubling(), nn.Linear(4, 4)), Doubling())


def plus_one(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output + 1


def swap_in_one_with_a_hook(model: nn.Sequential) -> Any:
    other = Doubling()
    other.register_forward_hook(plus_one)
    return lambda: model[1].__setitem__(0, other)


def delete_and_append_one_with_a_hook(model: nn.Sequential) -> Any:
    other = Doubling()
    other.register_forward_hook(plus_one)

    def change() -> None:
        del model[2]
        model.append(other)

    return change


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "on the model": lambda model: lambda: model.register_forward_hook(plus_one),
    "deep in it": lambda model: lambda: model[1][1].register_forward_hook(plus_one),
    "before a module": lambda model: lambda: model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "with a module that had it before": swap_in_one_with_a_hook,
    "in the place of a deleted module": delete_and_append_one_with_a_hook,
    "on all modules": lambda model: lambda: nn.modules.module.register_module_forward_hook(plus_one),
}


@pytest.mark.parametrize("guards", ["drop", "keep"])
@pytest.mark.parametrize("change", [name for name in CHANGES if name != "on all modules"])
def test_a_hook_that_comes_later_runs(change: str, guards: Any):
    model, x = stack(), torch.randn(8, 4)
    compiled = fxbucket.compile(model, sizes={"input.shape[0]": [8]}, compiler="eager", guards=guards)
    prepared = CHANGES[change](model)
    before = model(x)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), before)
    handle = prepared()
    assert not torch.equal(model(x), before)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    if handle is not None:
        handle.remove()
        for _ in range(2):
            torch.testing.assert_close(compiled(x), before)


@pytest.mark.parametrize("change", CHANGES)
def test_the_watch_sees_each_way_in_which_a_hook_comes(change: str):
    model = stack()
    prepared = CHANGES[change](model)
    watch = HookWatch(model)
    before = watch.state
    assert watch.is_settled()
    handle = prepared()
    try:
        assert not watch.is_settled()
        watch.look()
        assert watch.is_settled()
        assert watch.state != before
    finally:
        if handle is not None:
            handle.remove()


def test_a_hook_of_something_else_changes_nothing():
    model, x = stack(), torch.randn(8, 4)
    compiled = fxbucket.compile(model, sizes={"input.shape[0]": [8]}, compiler="eager")
    compiled(x)
    Doubling().register_forward_hook(plus_one)
    torch.testing.assert_close(compiled(x), model(x))
    assert len(compiled.programs) == 1


def test_hooks_that_come_and_go_again_and_again_are_right_each_time():
    model, x = stack(), torch.randn(8, 4)
    compiled = fxbucket.compile(model, sizes={"input.shape[0]": [8]}, compiler="eager")
    for shift in range(9):
        handle = model[0].register_forward_hook(lambda module, args, output, shift=shift: output + shift)
        torch.testing.assert_close(compiled(x), model(x))
        handle.remove()
        torch.testing.assert_close(compiled(x), model(x))


def test_a_module_that_is_no_child_keeps_its_guards():
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [Doubling()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden[0](x)  # type: ignore[no-any-return]

    model, x = Holder(), torch.randn(8, 4)
    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [8]}, compiler="eager")
    compiled(x)
    model.hidden[0].register_forward_hook(plus_one)
    torch.testing.assert_close(compiled(x), x * 2 + 1)


def test_texts_of_guards_on_hooks_are_known():
    assert is_of_no_hooks(["not G['model']._modules['0']._forward_pre_hooks_with_kwargs   # line"])
    assert not is_of_no_hooks(["not G['model'].training"])
    assert not is_of_no_hooks(["G['model']._forward_hooks == 1"])
