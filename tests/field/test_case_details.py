"""What is right of a field case beside its calls: what passes write, what a drawing shows, how often is warned of it."""

from __future__ import annotations

import itertools
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes import Concretize, Discover, Pipeline, Program, Split, Verify
from fxbucket.passes.captured import tensors_in, value_of
from fxbucket.visualize import dot_text, svg_text
from tests.field.case import Case
from tests.field.cases import cuts, memory, symbols, training
from tests.field.runner import backend_for

SVG = "{http://www.w3.org/2000/svg}"


def steps_of(case: Case, size: int) -> Iterator[tuple[str, Program]]:
    """Yield what each pass makes of a case, by the pass's name."""
    model, calls = case.world()
    captured = fxbucket.capture(model, *calls[0], axes={"rows": case.axis})
    passes = (Split(case.splitting_ops), Discover(), Verify(), Concretize({"rows": size}), Verify())
    yield "capture", captured
    yield from ((step.name, step.after) for step in Pipeline(passes)(captured).trail)


def nodes_of(program: Program) -> Iterator[Any]:
    for module in [piece.module for piece in program.pieces] or [program.capture.module]:
        yield from (node for node in module.graph.nodes if node.op not in ("placeholder", "output"))


def test_after_each_pass_every_node_tells_what_it_gives_in_its_final_shape():
    seen = []
    for name, program in steps_of(cuts.shape_changed_in_place, size=5):
        seen.append(name)
        for node in nodes_of(program):
            assert value_of(node) is not None, f"{node.name} has no metadata after {name}"
            assert node.meta.get("stack_trace"), f"{node.name} lost its source line at {name}"
            assert "cuts.py" in node.meta["stack_trace"]
        last = {node.name: value_of(node) for node in nodes_of(program)}
        clone = next(value for value_name, value in last.items() if value_name == "y")
        squashed = next(value for value_name, value in last.items() if value_name == "z")
        assert len(squashed.shape) == 3, f"z has the shape before unsqueeze_ after {name}"
        assert clone.shape[0] == 3, f"y has the shape before transpose_ after {name}"
        if name == "concretize":
            assert tuple(clone.shape) == (3, 5)
            assert tuple(squashed.shape) == (1, 3, 5)
    assert seen == ["capture", "split", "discover", "verify", "concretize", "verify"]


@pytest.mark.parametrize("case", [cuts.shape_changed_in_place, memory.transposed_reshape, memory.write_order], ids=str)
def test_no_tensor_of_a_concrete_program_has_a_symbolic_size(case: Case):
    *_, (_, program) = steps_of(case, size=6)
    tensors = [tensor for node in nodes_of(program) for tensor in tensors_in(value_of(node))]
    assert tensors
    for tensor in tensors:
        assert all(type(size) is int for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def test_a_chain_with_hostile_labels_can_be_drawn_after_each_pass_and_shows_each_node_once():
    chain = Case("chain", lambda: (cuts.labelled_chain(60), [(torch.randn(3, 3),)]), "")
    for name, program in steps_of(chain, size=5):
        names = [node.name for node in nodes_of(program)]
        assert len(names) > 100
        dot = dot_text(program, fold=False)
        if name in ("split", "concretize"):
            drawing = ET.fromstring(svg_text(program, fold=False).encode())
            groups = [group.get("id") for group in drawing.iter(f"{SVG}g") if "node" in (group.get("class") or "").split()]
            shown = [(group or "").rpartition(".")[2] for group in groups]
            assert all(shown.count(node) == 1 for node in names), name
        assert all(node in dot for node in names)


def test_overlap_on_a_later_call_is_warned_of_once():
    model, calls = memory.overlap_on_a_later_call.world()
    compiled = torch.compile(
        model, backend=backend_for(memory.overlap_on_a_later_call, "seen", "uncut", "eager"), dynamic=True
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fxbucket.FxbucketWarning)
        for call in calls:
            compiled(*call)
    found = [str(warning.message) for warning in caught if issubclass(warning.category, fxbucket.FxbucketWarning)]
    assert len(found) == 1
    assert "such calls run uncompiled" in found[0]


def test_sizes_equal_by_chance_are_an_entry_of_their_own():
    case = symbols.two_free_axes
    model, calls = case.world()
    backend = backend_for(case, "seen", "at_ops", "eager")
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for call in (*calls, *calls):
        compiled(*call)
    served = {bucket.bucket: bucket.calls for graph in backend.explain().graphs for bucket in graph.buckets}
    assert served == {f"x.shape[0]={n}, t.shape[0]={m}": 2 for n, m in ((5, 8), (4, 4), (4, 7), (8, 5))}


def test_a_boundary_between_pieces_that_only_allocate_leaves_no_piece_to_compile_there():
    *_, (_, program) = steps_of(cuts.adjacent_boundaries, size=6)
    kinds = ["boundary" if piece.is_boundary else "trivial" if piece.is_trivial else "compiled" for piece in program.pieces]
    assert kinds.count("boundary") == 4
    assert kinds.count("compiled") == 1, "the copy into the buffer is all that there is to compile"
    assert all(one != other or one == "boundary" for one, other in itertools.pairwise(kinds))


def test_a_tied_weight_is_one_argument_of_the_graph():
    model, calls = training.tied_weights.world()
    program = fxbucket.capture(model, *calls[0], axes={"rows": "ids.shape[0]"})
    assert [placeholder.role for placeholder in program.capture.placeholders].count("parameter") == 1
