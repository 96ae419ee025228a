"""Two programs side by side, in words and drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.passes import Concretize, Program, Split, every_n_nodes
from fxbucket.passes.errors import DrawingError, OptionError
from fxbucket.visualize import diff_text, save_diff_svg
from fxbucket.visualize.labels import TIMES


def lines_of(text: str, place: str) -> list[str]:
    """Return the lines below a place, without their indent."""
    lines = text.splitlines()
    start = lines.index(place) + 1
    end = next((index for index in range(start, len(lines)) if not lines[index].startswith("  ")), len(lines))
    return [line.strip() for line in lines[start:end]]


def test_numbers_in_the_place_of_symbols(split: Program, concrete: Program):
    text = diff_text(split, concrete)
    assert text.splitlines()[:3] == [
        "before: program · tokens in 2..∞ · 5 pieces, 21 nodes",
        "after:  program · for tokens=512 · 5 pieces, 21 nodes",
        "21 changed, 1 gone, 0 new",
    ]
    assert lines_of(text, "program") == ["s23: placeholder gone: it is 512 now", "l_ids_: shape (tokens,) → (512,)"]
    assert lines_of(text, "piece_1") == ["attention: shape (tokens, 16) → (512, 16)"]
    assert "reshape: shape (tokens, 16) → (512, 16); argument tokens → 512" in lines_of(text, "piece_2")
    assert f"chunk: value 2 {TIMES} f32[tokens, 16] → 2 {TIMES} f32[512, 16]" in lines_of(text, "piece_0")


def test_one_bucket_and_another(split: Program, concrete: Program):
    other = Concretize({"tokens": 8})(split)
    assert "reshape: shape (512, 16) → (8, 16); argument 512 → 8" in diff_text(concrete, other)


def test_cuts(captured: Program, split: Program):
    assert diff_text(captured, split).splitlines() == [
        "before: program, not split · tokens in 2..∞ · 21 nodes",
        "after:  program · tokens in 2..∞ · 5 pieces, 21 nodes",
        "0 changed, 0 gone, 0 new",
        "piece_0: piece new: what is left between cuts",
        "piece_1: piece new: boundary op drawing::attention",
        "piece_2: piece new: what is left between cuts",
        "piece_3: piece new: boundary op drawing::attention",
        "piece_4: piece new: what is left between cuts",
    ]


def test_a_program_does_not_differ_from_itself(captured: Program, split: Program, concrete: Program):
    for program in (captured, split, concrete, split.pieces[2]):
        assert diff_text(program, program) == "no difference"


def test_pieces_alone(split: Program, concrete: Program):
    text = diff_text(split.pieces[2], concrete.pieces[2])
    assert text.splitlines()[:2] == ["before: piece_2", "after:  piece_2"]
    assert "s23: placeholder gone" in lines_of(text, "piece_2")
    assert "x: shape (tokens, 16) → (512, 16)" in lines_of(text, "piece_2")


def test_what_a_pass_may_change(plain: Callable[..., Program]):
    before = plain([(0, [0]), (3, [1])])
    after = plain([(0, [0]), (3, [1])])
    relu, tanh = (node for node in after.capture.module.graph.nodes if node.op == "call_function")
    relu.meta["example_value"] = torch.empty(4, 8, device="meta", dtype=torch.float16).t()
    tanh.target = torch.sigmoid
    tanh.args = (relu, "fast")
    assert lines_of(diff_text(before, after), "program") == [
        "relu: dtype f32 → f16; strides contiguous → (1, 8)",
        "tanh: op torch.tanh → torch.sigmoid; arguments (relu) → (relu, 'fast')",
    ]


def test_nodes_that_come_and_go(plain: Callable[..., Program]):
    short, long = plain([(0, [0])]), plain([(0, [0]), (3, [1]), (3, [2])])
    assert "tanh_1: node new: f32 (8, 4)" in lines_of(diff_text(short, long), "program")
    assert "tanh_1: node gone" in lines_of(diff_text(long, short), "program")
    assert "output: returns (relu, relu, 7) → (tanh_1, tanh, 7)" in lines_of(diff_text(short, long), "program")


def test_pieces_that_come_and_go(plain: Callable[..., Program]):
    program = plain([(0, [0]), (3, [1]), (0, [2])])
    two, three = (Split(every_n_nodes(count))(program) for count in (2, 1))
    assert "piece_2: piece new: piece of 1 nodes" in diff_text(two, three).splitlines()
    assert "piece_2: piece gone" in diff_text(three, two).splitlines()
    assert "relu_1: piece piece_1 → piece_2" in lines_of(diff_text(two, three), "piece_2")
    kept = replace(three, pieces=(*three.pieces[:2], replace(three.pieces[2], is_boundary=True)))
    assert "piece_2: compiled → runs as it is" in diff_text(three, kept).splitlines()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=10), st.integers(1, 4), st.integers(1, 4)
)
def test_another_cut_changes_no_node(plain: Callable[..., Program], steps: Any, one: int, other: int):
    program = plain([(op, [min(read, position)]) for position, (op, read) in enumerate(steps)])
    first, second = (Split(every_n_nodes(count))(program) for count in (one, other))
    assert "0 changed, 0 gone, 0 new" in diff_text(program, first).splitlines()
    assert diff_text(first, Split(every_n_nodes(one))(program)) == "no difference"
    summary = diff_text(first, second)
    assert "node gone" not in summary
    assert "node new" not in summary


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_are_drawn_and_marked(
    split: Program, concrete: Program, tmp_path: Path, read_svg: Callable[[str], Any], theme: Any
):
    path = tmp_path / "diff.svg"
    save_diff_svg(split, concrete, path, theme=theme)
    drawn = read_svg(path.read_text(encoding="utf-8"))
    assert {"before: program", "after: program", "21 changed, 1 gone, 0 new"} <= set(drawn.texts)
    assert drawn.texts_of("before.s23")[-1] == "gone"
    assert drawn.texts_of("before.piece_1.attention")[-1] == "changed"
    assert drawn.texts_of("after.piece_1.attention")[-1] == "shape (tokens, 16) → (512, 16)"
    assert drawn.texts_of("after.piece_4.sum_1") == ["sum", "sum_1"]
    assert drawn.title("after.piece_1.attention").startswith("shape (tokens, 16) → (512, 16)\n")


def test_a_large_one_is_folded_on_both_sides(deep: Program, tmp_path: Path, read_svg: Callable[[str], Any]):
    path = tmp_path / "diff.svg"
    save_diff_svg(deep, Concretize({"tokens": 512})(deep), path)
    assert read_svg(path.read_text(encoding="utf-8")).texts.count(f"{TIMES} 31") == 2


def test_two_of_a_kind_are_compared(split: Program, tmp_path: Path):
    with pytest.raises(OptionError, match="Program and Piece cannot be compared; give two Programs, or two Pieces"):
        diff_text(split, split.pieces[0])
    with pytest.raises(OptionError, match="Program and int cannot be compared"):
        save_diff_svg(split, 3, tmp_path / "diff.svg")  # type: ignore[arg-type]


def test_bad_options_are_errors(split: Program, tmp_path: Path):
    with pytest.raises(OptionError, match="theme 'blue' is unknown"):
        save_diff_svg(split, split, tmp_path / "diff.svg", theme="blue")  # type: ignore[arg-type]
    with pytest.raises(DrawingError, match="cannot be written"):
        save_diff_svg(split, split, tmp_path / "nowhere" / "diff.svg")
