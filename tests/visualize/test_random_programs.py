"""Random programs, cut anywhere: what is in the program is in its drawing, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Concretize, Program, Split, every_n_nodes, where
from fxbucket.passes.admit import decide
from fxbucket.passes.buckets import Bucket
from fxbucket.visualize import dot_text, svg_text
from tests.programs import RandomProgram, programs
from tests.visualize.test_dot import body_of, edges_of

AXES = {"a": ["x.shape[0]", "y.shape[1]"], "b": "y.shape[0]"}
CUTS = {
    "whole": (),
    "each node": (every_n_nodes(1),),
    "threes": (every_n_nodes(3),),
    "boundaries": (where(lambda node: len(node.name) % 2 == 0),),
}


def captured(program: RandomProgram) -> Program:
    note(program.source)
    torch.compiler.reset()
    try:
        return fxbucket.capture(program.function(), *program.arguments(5, 7), axes=AXES)
    except fxbucket.FxbucketError:
        # Drawn programs may leave an argument out, which a capture with its axis must refuse.
        hypothesis.reject()


def subjects_of(program: Program, cut: str) -> list[Program]:
    """Return a program before Split, after it, and concrete where the capture admits the sizes."""
    split = Split(CUTS[cut], missing="ignore")(program)
    sizes = Bucket.of({"a": 6, "b": 4})
    return [program, split, *([Concretize(sizes)(split)] if decide(program.capture, sizes).admitted else [])]


@given(program=programs(), cut=st.sampled_from(sorted(CUTS)))
def test_every_node_edge_and_cut_is_found_again(read_dot: Callable[[str], Any], program: RandomProgram, cut: str):
    for subject in subjects_of(captured(program), cut):
        parsed = read_dot(dot_text(subject, fold=False, fold_parameters=False))
        bodies = body_of(subject)
        inside = {place: {f"{place}.{name}" if place else name for name in names} for place, names in bodies.items()}
        body = set().union(*inside.values())
        assert body <= set(parsed.nodes)
        assert set(parsed.edges) == edges_of(subject)
        arguments = {placeholder.name for placeholder in subject.capture.placeholders}
        assert set(parsed.nodes) - body - arguments == {"output"}
        # An argument that many boxes read is drawn beside each, so it may stand in a cluster.
        clusters = {place: set(names) - arguments for place, names in parsed.clusters.items()}
        assert clusters == {place: names for place, names in inside.items() if place}


@pytest.mark.slow
@hypothesis.settings(max_examples=8)
@given(program=programs(), cut=st.sampled_from(sorted(CUTS)), theme=st.sampled_from(["light", "dark"]))
def test_a_drawing_is_well_formed_and_shows_every_op(
    read_svg: Callable[[str], Any], program: RandomProgram, cut: str, theme: Any
):
    for subject in subjects_of(captured(program), cut):
        drawn = read_svg(svg_text(subject, fold=False, theme=theme))
        shown = {group.get("id") for group in drawn.root.iter("{http://www.w3.org/2000/svg}g")}
        assert {f"{place}.{name}" if place else name for place, names in body_of(subject).items() for name in names} <= shown
