"""The laws that hold for every model and every call, on random programs at random sizes.

``make fuzz`` runs these with thousands of programs; what it found is kept as examples beside the code that was at fault.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Admit, Bucket, Concretize, Discover, Pipeline, Split, Verify, every_n_nodes, where
from fxbucket.passes.symbolic import symbols_in
from tests.programs import RandomProgram, calls, programs

SIZES = st.lists(st.integers(2, 9), min_size=1, max_size=3, unique=True)
CUTS = st.sampled_from(
    [
        "[]",
        "[every_n_nodes(1)]",
        "[every_n_nodes(3)]",
        "[where(lambda node: len(node.name) % 2 == 0) | every_n_nodes(4)]",
    ]
)
"""Ways to cut, as text, so that a script can repeat them."""
COMPILERS = ("eager", "aot_eager")


def boundaries(cut: str) -> Any:
    """Return the boundaries that a text of ``CUTS`` stands for."""
    return eval(cut, {"every_n_nodes": every_n_nodes, "where": where})


def script(program: RandomProgram, compiled: str, sizes: Sequence[tuple[int, int]]) -> str:
    """Return a script that reproduces a failing example on its own, run from the project's folder."""
    return f"""\
import torch, fxbucket
from fxbucket.passes import every_n_nodes, where
from tests.equality import assert_equals_eager
from tests.programs import RandomProgram
program = RandomProgram({program.source!r}, {program.needs_grad})
compiled = {compiled}
for call, (a, b) in enumerate({list(sizes)}):
    assert_equals_eager(compiled, program.function(), program.arguments(a, b, call), program.arguments(a, b, call))
"""


def check(program: RandomProgram, compiled: str, sizes: Sequence[tuple[int, int]]) -> None:
    """Compile a program as a line of Python says, call it at each of these sizes, and compare with eager."""
    text = script(program, compiled, sizes)
    note(f"reproduce with:\n{text}")
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxbucket.FxbucketWarning)
        exec(compile(text, "<reproducer>", "exec"), {})


def pinned(first: list[int], second: list[int], cut: str, compiler: str, debug: bool = False) -> str:
    """Return the line that compiles a program for crossed sizes of two axes, with a third that varies."""
    return (
        f"fxbucket.compile(program.function(), sizes={{'x.shape[0]': {first}, 'y.shape[0]': {second}}}, "
        f"axes={{'t': 'y.shape[1]'}}, splitting_ops={cut}, compiler={compiler!r}, compile_when='lazily', debug={debug})"
    )


@pytest.mark.parametrize("compiler", COMPILERS)
@given(program=programs(), sizes=calls(), first=SIZES, second=SIZES, cut=CUTS)
def test_pinned_and_dynamic_calls_equal_eager(
    compiler: str, program: RandomProgram, sizes: list[tuple[int, int]], first: list[int], second: list[int], cut: str
) -> None:
    """Laws 1 to 4: pinned sizes, misses and guards, over two axes and any cut."""
    check(program, pinned(first, second, cut, compiler), sizes)


@pytest.mark.parametrize("compiler", COMPILERS)
@given(program=programs(), sizes=calls(smallest=0), cut=CUTS)
def test_every_symbol_pinned_at_its_first_call_equals_eager(
    compiler: str, program: RandomProgram, sizes: list[tuple[int, int]], cut: str
) -> None:
    """Laws 1 to 3 with equal sizes by chance, sizes 0 and 1, and every symbol concrete."""
    backend = f"fxbucket.backend(sizes='seen', splitting_ops={cut}, compiler={compiler!r})"
    check(program, f"torch.compile(program.function(), backend={backend}, dynamic=True)", sizes)


@given(program=programs(), a=st.integers(2, 9), b=st.integers(2, 9), cut=CUTS)
def test_passes_are_pure_and_two_ways_give_one_answer(program: RandomProgram, a: int, b: int, cut: str) -> None:
    """Laws 5, 6 and 7 on the passes alone."""
    note(program.source)
    torch.compiler.reset()
    axes = {"a": ["x.shape[0]", "y.shape[1]"], "b": "y.shape[0]"}
    try:
        captured = fxbucket.capture(program.function(), *program.arguments(5, 7), axes=axes)
    except fxbucket.FxbucketError:
        # Drawn programs may leave an argument out, which a capture with its axis must refuse.
        hypothesis.reject()
    front = Pipeline((Split(boundaries(cut)), Discover(), Verify()))
    before = str(captured)
    split = front(captured)
    assert str(captured) == before
    assert front(captured) == split
    sizes = {"a": a, "b": b}
    if not Admit((Bucket.of(sizes),))(split).decisions[0].admitted:
        with pytest.raises(fxbucket.FxbucketError):
            Concretize(sizes)(split)
        return
    text = str(split)
    concrete = Pipeline((Concretize(sizes), Verify()))(split)
    assert str(split) == text
    assert Concretize(sizes)(split) == concrete
    assert not concrete.open_symbols
    for piece in concrete.pieces:
        for node in piece.module.graph.nodes:
            assert not symbols_in((list(node.meta.values()), node.args, node.kwargs)), node


@pytest.mark.slow
@hypothesis.settings(max_examples=4)
@given(program=programs(max_steps=8), sizes=calls(max_calls=2), cut=st.sampled_from(["[]", "[every_n_nodes(3)]"]))
def test_inductor_sample_equals_eager(program: RandomProgram, sizes: list[tuple[int, int]], cut: str) -> None:
    """Law 1 through Inductor, at a sample: calls after the first go below artifacts' wrappers, or through all of them."""
    for debug in (False, True):
        check(program, pinned([sizes[0][0]], [sizes[0][1]], cut, "inductor", debug), sizes * 2)
