"""Which ops a compiler takes apart, so that what was compiled is as old as their definition."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.library import Library

import fxbucket
from fxbucket.custom_ops import reasons_to_keep_here

SCALE = "calls custom_op_tests::scale, which is compiled into it and may be another op tomorrow"


@pytest.fixture
def library() -> Iterator[Library]:
    library = Library("custom_op_tests", "FRAGMENT")
    library.define("scale(Tensor x) -> Tensor")
    library.impl("scale", torch.clone, "CompositeExplicitAutograd")
    torch.library.register_fake("custom_op_tests::scale", torch.empty_like, lib=library)
    yield library
    library._destroy()


def call_packet(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.custom_op_tests.scale(x) + 1


def call_overload(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.custom_op_tests.scale.default(x) + 1


def call_inside(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, call_packet, torch.sin, (x,))


def reasons(function: Callable[[torch.Tensor], torch.Tensor], *, grad: bool = False) -> list[str]:
    program = fxbucket.capture(function, torch.ones(4, requires_grad=grad))
    return reasons_to_keep_here(program.capture.module, program.capture.ambient)


@pytest.mark.parametrize("function", [call_packet, call_overload, call_inside])
def test_an_op_that_is_only_called_may_go_anywhere(library: Library, function: Callable[[torch.Tensor], torch.Tensor]):
    assert reasons(function) == reasons(function, grad=function is not call_inside) == []


@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "Functionalize", "AutocastCPU", "FuncTorchBatched"])
@pytest.mark.parametrize("function", [call_packet, call_overload])
def test_an_op_that_is_taken_apart_stays(library: Library, key: str, function: Callable[[torch.Tensor], torch.Tensor]):
    program = fxbucket.capture(function, torch.ones(4))
    library.impl("scale", torch.sin, key)
    assert reasons_to_keep_here(program.capture.module, program.capture.ambient) == [SCALE]


def test_an_op_inside_a_branch_counts(library: Library):
    program = fxbucket.capture(call_inside, torch.ones(4))
    library.impl("scale", torch.sin, "CompositeImplicitAutograd")
    assert reasons_to_keep_here(program.capture.module, program.capture.ambient) == [SCALE]


def test_a_backward_of_the_users_counts_where_there_is_one(library: Library):
    torch.library.register_autograd("custom_op_tests::scale", lambda ctx, grad: grad * 2, lib=library)
    assert reasons(call_packet, grad=True) == [SCALE]
    assert reasons(call_packet) == []
    with torch.no_grad():
        assert reasons(call_packet, grad=True) == []


def test_a_decomposition_or_a_lowering_counts(library: Library):
    lowering = importlib.import_module("torch._inductor.lowering")
    program = fxbucket.capture(call_packet, torch.ones(4))
    op = torch.ops.custom_op_tests.scale.default
    for table in (torch._decomp.decomposition_table, lowering.lowerings):
        table[op] = torch.sin
        try:
            assert reasons_to_keep_here(program.capture.module, program.capture.ambient) == [SCALE]
        finally:
            del table[op]


def test_ops_of_torch_never_count():
    def usual(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.linear.default(x.reshape(2, 2), torch.eye(2)).relu() + torch.ops.prims.sin.default(x).sum()

    assert reasons(usual, grad=True) == []
