"""Folding: what repeats is drawn once, nothing is lost on the way, and large graphs become small drawings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.passes import Program, Split, every_n_nodes
from fxbucket.visualize import dot_text, save_svg
from fxbucket.visualize.draw import sketch_of
from fxbucket.visualize.fold import MAX_BOXES, fold_repeats, folded
from fxbucket.visualize.repeats import Link, Run, find_runs
from fxbucket.visualize.shrink import fold_chains, fold_stretches
from fxbucket.visualize.sketch import LEAF_ROLES, Box, Cluster, Member, Sketch
from fxbucket.visualize.svg import svg_of
from fxbucket.visualize.theme import LIGHT


def num_nodes_in(members: Sequence[Member]) -> int:
    """Return how many ops and outputs some members stand for."""
    total = 0
    for member in members:
        if isinstance(member, Cluster):
            total += member.num_repeats * num_nodes_in(member.members)
        elif member.role not in LEAF_ROLES:
            # The box of an argument that lies beside its reader stands for no node.
            total += member.num_nodes
    return total


def frames_in(members: Sequence[Member]) -> list[int]:
    """Return the counts of all frames, outermost first."""
    found = []
    for member in members:
        if isinstance(member, Cluster):
            found += [member.num_repeats] * (member.num_repeats > 1) + frames_in(member.members)
    return found


def is_sound(sketch: Sketch) -> bool:
    """Whether every box has a key of its own and every arrow goes between boxes."""
    keys = [box.key for box in sketch.boxes]
    ends = {end for arrow in sketch.arrows for end in (arrow.tail, arrow.head)}
    ways = [(arrow.tail, arrow.head, arrow.is_carried) for arrow in sketch.arrows]
    return len(set(keys)) == len(keys) and ends <= set(keys) and len(set(ways)) == len(ways)


def test_layers_before_split_are_one_frame(captured_deep: Program):
    sketch = folded(sketch_of(captured_deep), "auto")
    assert frames_in(sketch.members) == [32]
    (frame,) = (member for member in sketch.members if isinstance(member, Cluster))
    assert [box.title for box in sketch.boxes if box in frame.members] == [
        "layer_norm", "linear", "chunk", "getitem", "getitem", "attention", "tokens", "reshape", "linear", "add",
    ]  # fmt: skip


def test_layers_after_split_are_one_frame(deep: Program):
    sketch = folded(sketch_of(deep), "auto")
    assert frames_in(sketch.members) == [31]
    assert len(sketch.boxes) < 40
    assert num_nodes_in(sketch.members) == num_nodes_in(sketch_of(deep).members)


def test_what_goes_from_layer_to_layer_is_one_arrow_back(captured_deep: Program):
    sketch = folded(sketch_of(captured_deep), True)
    titles = {box.key: box.title for box in sketch.boxes}
    carried = {(titles[arrow.tail], titles[arrow.head]) for arrow in sketch.arrows if arrow.is_carried}
    assert carried == {("add", "layer_norm"), ("add", "add")}
    assert "next: f32[tokens, 16]" in dot_text(captured_deep)


def test_parameters_of_folded_layers_are_folded_too(captured_deep: Program):
    sketch = folded(sketch_of(captured_deep, fold_parameters=False), True)
    parameters = [box.title for box in sketch.boxes if box.role == "parameter"]
    assert len(parameters) == 1 + 6 + 2
    assert is_sound(sketch)


def test_a_small_program_is_whole_unless_asked(captured: Program):
    sketch = sketch_of(captured)
    assert folded(sketch, "auto") == sketch
    assert frames_in(folded(sketch, True).members) == [2]


def test_the_whole_drawing_is_still_there(deep: Program, read_dot: Callable[[str], Any]):
    parsed = read_dot(dot_text(deep, fold=False))
    assert len(parsed.clusters) == len(deep.pieces) == 65
    assert set(parsed.nodes) == {box.key.partition("@")[0] for box in sketch_of(deep).boxes}
    assert len(parsed.nodes) > MAX_BOXES


def test_a_straight_chain_is_one_box(plain: Callable[..., Program]):
    program = plain([(0, [0]), (3, [1]), (0, [2]), (3, [3]), (0, [4]), (3, [5]), (1, [6, 0])])
    sketch = fold_chains(sketch_of(program))
    chain = next(box for box in sketch.boxes if box.role == "fold")
    # The middle value is returned too, so the chain ends there.
    assert chain.title == "4 ops in a row"
    assert chain.lines == ("relu → tanh → relu → tanh",)
    assert num_nodes_in(sketch.members) == 8
    assert is_sound(sketch)


def test_stretches_follow_modules(captured_deep: Program):
    sketch = fold_stretches(sketch_of(captured_deep), 40)
    titles = [box.title for box in sketch.boxes if box.role == "fold"]
    assert titles == [f"layers.{index}" for index in range(32)]
    assert num_nodes_in(sketch.members) == num_nodes_in(sketch_of(captured_deep).members)


@pytest.mark.parametrize("kind", ["chain", "near", "far"])
@pytest.mark.parametrize("cut", [None, 5, 100])
def test_a_graph_without_repeats_becomes_small_too(plain: Callable[..., Program], kind: str, cut: int | None):
    choose = random.Random(0)
    steps = []
    for position in range(1500):
        far = choose.randrange(position + 1) if kind == "far" else max(position - choose.randrange(9), 0)
        steps.append((choose.randrange(6), [position] if kind == "chain" else [position, far]))
    program = plain(steps)
    whole = sketch_of(program if cut is None else Split(every_n_nodes(cut))(program))
    sketch = folded(whole, "auto")
    assert len(sketch.boxes) <= MAX_BOXES
    svg_of(sketch, LIGHT, fold=False, timeout=30)
    assert num_nodes_in(sketch.members) == num_nodes_in(whole.members)
    assert is_sound(sketch)


def test_thousands_of_nodes_become_a_readable_drawing(plain: Callable[..., Program], tmp_path: Any):
    """How long it takes, tests/benchmarks/visualize_scale.py measures."""
    layer = [(0, [0]), (3, [0]), (4, [0]), (1, [0, 3]), (2, [0, 1])]
    steps = [(op, [max(number - back, 0) for back in backs]) for number in range(3000) for op, backs in [layer[number % 5]]]
    program = plain(steps)
    sketch = folded(sketch_of(program), "auto")
    assert max(frames_in(sketch.members)) > 200
    assert num_nodes_in(sketch.members) == 3001
    assert len(sketch.boxes) <= 20
    save_svg(program, tmp_path / "large.svg")


@st.composite
def layered(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Draw the steps of a graph that holds several equal stretches among others."""
    steps: list[tuple[int, list[int]]] = []
    for _ in range(draw(st.integers(1, 3))):
        unit = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=5))
        for _ in range(draw(st.integers(1, 8))):
            for op, back in unit:
                steps.append((op, [len(steps), max(len(steps) - back, 0)]))
    return steps


@given(layered(), st.sampled_from([None, 1, 3, 4]), st.integers(1, 20))
def test_nothing_is_lost(plain: Callable[..., Program], steps: Any, cut: int | None, room: int):
    program = plain(steps)
    whole = sketch_of(program if cut is None else Split(every_n_nodes(cut))(program))
    foldings: list[Callable[[Sketch], Sketch]] = [
        fold_repeats, fold_chains, lambda sketch: fold_stretches(sketch, room), lambda sketch: folded(sketch, True),
    ]  # fmt: skip
    for first in foldings:
        for second in foldings:
            sketch = second(first(whole))
            assert num_nodes_in(sketch.members) == num_nodes_in(whole.members)
            assert is_sound(sketch)
            assert {box.role for box in sketch.boxes if isinstance(box, Box)} >= {"output"}


def test_a_size_that_all_layers_read_lies_beside_each(deep: Program, captured: Program):
    sketch = sketch_of(deep)
    copies = [box for box in sketch.boxes if box.role == "symbol"]
    assert len(copies) == 32
    assert {box.name for box in copies} == {"s23"}
    assert all(sum(arrow.tail == box.key for arrow in sketch.arrows) == 1 for box in copies)
    assert [box.key for box in sketch_of(captured).boxes if box.role == "symbol"] == ["s23"]


def test_folding_twice_gives_the_same(deep: Program):
    assert folded(sketch_of(deep), True) == folded(sketch_of(deep), True)


def in_a_row(reads: Sequence[int]) -> list[tuple[Link, ...]]:
    """Return links: each unit reads the unit that lies so many places before it, an argument where that is 0."""
    return [(Link(0, unit - back if back else -1, 0, ""),) for unit, back in enumerate(reads)]


@given(
    st.sampled_from(["", "a", "ab"]),
    st.lists(st.sampled_from("cdef"), min_size=2, unique=True).map("".join),
    st.integers(2, 9),
)
def test_a_stretch_that_repeats_is_found(before: str, unit: str, count: int):
    labels = before + unit * count + before
    links = in_a_row([0, *[1] * (len(labels) - 1)])
    assert find_runs(labels, links, [1] * len(labels), 1) == (Run(len(before), len(unit), count),)


@pytest.mark.parametrize(
    ("labels", "reads", "runs"),
    [
        ("xabababy", [0, 1, 1, 1, 1, 1, 1, 1], [Run(1, 2, 3)]),
        ("xabababy", [0, 1, 1, 1, 2, 1, 1, 1], []),  # the middle one reads its own kind, the others their neighbour
        ("xabababy", [0, 1, 1, 3, 1, 5, 1, 1], [Run(1, 2, 3)]),  # all read the same x
        ("aabbaabb", [0, 1, 1, 1, 1, 1, 1, 1], [Run(0, 4, 2)]),
        ("aaaa", [0, 1, 1, 1], [Run(0, 1, 4)]),
        ("abcd", [0, 1, 1, 1], []),
        ("", [], []),
    ],
)
def test_labels_and_links_must_repeat(labels: str, reads: list[int], runs: list[Run]):
    assert list(find_runs(labels, in_a_row(reads), [1] * len(labels), 2)) == runs


def test_a_layer_begins_where_the_fewest_values_cross():
    # x | r a b s | r a b s | ... where s reads r's input again: between s and r one value crosses, elsewhere two.
    labels = "s" + "rabs" * 3
    links: list[tuple[Link, ...]] = [()]
    for start in range(1, 13, 4):
        links += [(Link(0, start - 1, 0, ""),), (Link(0, start, 0, ""),), (Link(0, start + 1, 0, ""),)]
        links.append((Link(0, start + 2, 0, ""), Link(0, start - 1, 0, "")))
    assert find_runs(labels, links, [1] * 13, 2) == (Run(1, 4, 3),)
