"""The laws that hold for every model and every call, on random programs at random sizes."""

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
from tests.equality import assert_equals_eager
from tests.programs import RandomProgram, calls, programs

SIZES = st.lists(st.integers(2, 9), min_size=1, max_size=3, unique=True)


def script(program: RandomProgram, how: str, sizes: Sequence[tuple[int, int]]) -> str:
    """Return a script that reproduces a failing example on its own."""
    return (
        "import torch, fxbucket\nfrom fxbucket.passes import *\nfrom tests.programs import RandomProgram\n"
        "from tests.equality import assert_equals_eager\n"
        f"program = RandomProgram({program.source!r}, {program.needs_grad})\n"
        f"compiled = {how}\n"
        f"for call, (a, b) in enumerate({list(sizes)}):\n"
        "    assert_equals_eager(compiled, program.function(), program.arguments(a, b, call), program.arguments(a, b, call))\n"
    )


def check(program: RandomProgram, compiled: Any, how: str, sizes: Sequence[tuple[int, int]], reset: bool = True) -> None:
    """Call a compiled program at each of these sizes and compare with eager."""
    note(f"reproduce with:\n{script(program, how, sizes)}")
    eager = program.function()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxbucket.FxbucketWarning)
        for call, (a, b) in enumerate(sizes):
            assert_equals_eager(compiled, eager, program.arguments(a, b, call), program.arguments(a, b, call))


def boundaries(chosen: int) -> list[Any]:
    """Return one of several ways to cut."""
    if chosen == 0:
        return []
    if chosen == 1:
        return [every_n_nodes(1)]
    if chosen == 2:
        return [every_n_nodes(3)]
    return [where(lambda node: len(node.name) % 2 == 0) | every_n_nodes(4)]


COMPILERS = ("eager", "aot_eager")


@pytest.mark.parametrize("compiler", COMPILERS)
@given(program=programs(), sizes=calls(), first=SIZES, second=SIZES, cut=st.integers(0, 3))
def test_pinned_and_dynamic_calls_equal_eager(
    compiler: str, program: RandomProgram, sizes: list[tuple[int, int]], first: list[int], second: list[int], cut: int
) -> None:
    """Laws 1 to 4: pinned sizes, misses and guards, over two axes and any cut."""
    torch.compiler.reset()
    try:
        options = {"sizes": {"x.shape[0]": first, "y.shape[0]": second}, "axes": {"t": "y.shape[1]"}, "compiler": compiler}
        compiled = fxbucket.compile(program.function(), splitting_ops=boundaries(cut), compile_when="lazily", **options)
        how = f"fxbucket.compile(program.function(), splitting_ops=[], **{options})  # cut {cut}"
        check(program, compiled, how, sizes)
    finally:
        torch.compiler.reset()


@pytest.mark.parametrize("compiler", COMPILERS)
@given(program=programs(), sizes=calls(smallest=0), cut=st.integers(0, 3))
def test_every_symbol_pinned_at_its_first_call_equals_eager(
    compiler: str, program: RandomProgram, sizes: list[tuple[int, int]], cut: int
) -> None:
    """Laws 1 to 3 with equal sizes by chance, sizes 0 and 1, and every symbol concrete."""
    sizes = [(max(a, 2), max(b, 1)) for a, b in sizes]
    torch.compiler.reset()
    try:
        backend = fxbucket.backend(sizes="seen", splitting_ops=boundaries(cut), compiler=compiler)
        compiled = torch.compile(program.function(), backend=backend, dynamic=True)
        how = f"torch.compile(program.function(), backend=fxbucket.backend(sizes='seen', compiler={compiler!r}), dynamic=True)"
        check(program, compiled, f"{how}  # cut {cut}", sizes)
    finally:
        torch.compiler.reset()


@given(program=programs(), a=st.integers(2, 9), b=st.integers(2, 9), cut=st.integers(0, 3))
def test_passes_are_pure_and_two_ways_give_one_answer(program: RandomProgram, a: int, b: int, cut: int) -> None:
    """Laws 5, 6 and 7 on the passes alone."""
    note(program.source)
    torch.compiler.reset()
    axes = {"a": ["x.shape[0]", "y.shape[1]"], "b": "y.shape[0]"}
    try:
        captured = fxbucket.capture(program.function(), *program.arguments(5, 7), axes=axes)
    except fxbucket.FxbucketError:
        # Drawn programs may leave an argument out, which a capture with its axis must refuse.
        hypothesis.assume(False)
    front = Pipeline((Split(boundaries(cut)), Discover(), Verify()))
    before = str(captured)
    split = front(captured)
    assert str(captured) == before
    assert front(captured) == split
    sizes = {"a": a, "b": b}
    admitted = Admit((Bucket.of(sizes),))(split).decisions[0]
    hypothesis.target(float(len(split.pieces)))
    if not admitted.admitted:
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
            assert "SymInt" not in repr([type(value) for value in node.meta.values()])


@pytest.mark.slow
@hypothesis.settings(max_examples=4)
@given(program=programs(max_steps=8), sizes=calls(max_calls=2), cut=st.sampled_from([0, 2]))
def test_inductor_sample_equals_eager(program: RandomProgram, sizes: list[tuple[int, int]], cut: int) -> None:
    """Law 1 through Inductor, at a sample."""
    torch.compiler.reset()
    options = {"sizes": {"x.shape[0]": [sizes[0][0]], "y.shape[0]": [sizes[0][1]]}, "axes": {"t": "y.shape[1]"}}
    compiled = fxbucket.compile(program.function(), splitting_ops=boundaries(cut), compile_when="lazily", **options)
    check(program, compiled, f"fxbucket.compile(program.function(), **{options})  # cut {cut}", sizes)
