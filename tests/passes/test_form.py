from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Concretize, Deduplicate, Discover, Pipeline, Program, Split, Verify, at_op, every_n_nodes
from fxbucket.passes.errors import PreconditionError
from fxbucket.passes.form import Form, form_of
from fxbucket.passes.recreate import recreate
from fxbucket.passes.symbolic import symbols_in
from fxbucket.passes.verify import differences
from tests.programs import RandomProgram, programs


def program_of(model: Callable[..., Any], *args: Any, rows: int | None = None, split: Any = ()) -> Program:
    """Return a model of ``x`` cut and, with ``rows``, concrete."""
    captured = Pipeline([Split(split), Discover()])(fxbucket.capture(model, *args, axes={"rows": "x.shape[0]"}))
    return captured if rows is None else Concretize({"rows": rows}, remaining="keep")(captured)


def form(model: Callable[..., Any], *args: Any, rows: int | None = 8) -> Form:
    program = program_of(model, *(args or (torch.randn(4, 3),)), rows=rows)
    (piece,) = program.pieces
    return form_of(piece, program)


class Stack(torch.nn.Module):
    """Layers that are equal but for their parameters, and a shared buffer that the first one reads later than the others."""

    def __init__(self, num_layers: int, scales: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(num_layers))
        self.register_buffer("shift", torch.ones(3))
        self.scales = scales or (1.5,) * num_layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = torch.sigmoid((layer(x) + self.shift) * scale)
        return x


def test_layers_of_a_stack_have_one_form_whatever_their_names_and_the_order_of_their_arguments():
    x = torch.randn(4, 3, requires_grad=True) * 1  # no leaf, like what the inner layers get
    program = program_of(Stack(5), x, rows=8, split=at_op("aten::sigmoid"))
    forms = [form_of(piece, program) for piece in program.pieces if piece.is_compiled]
    assert len(forms) == 5
    assert len({found.digest for found in forms}) == 1
    assert len({found.order for found in forms}) > 1, "the arguments come in another order, or this shows nothing"
    assert all(found.is_portable and found.is_static for found in forms)


def test_layers_that_differ_in_a_constant_alone_do_not_share():
    program = program_of(Stack(3, (1.5, 2.5, 1.5)), torch.randn(4, 3), rows=8, split=at_op("aten::sigmoid"))
    first, second, third = (form_of(piece, program).digest for piece in program.pieces if piece.is_compiled)
    assert second not in (first, third)


BASE = form(lambda x: x + 1)

OTHERS: dict[str, Callable[[], Form]] = {
    "op": lambda: form(lambda x: x - 1),
    "constant": lambda: form(lambda x: x + 2),
    "type of a constant": lambda: form(lambda x: x + 1.0),
    "bool for an int": lambda: form(lambda x: x + True),
    "sign of a zero": lambda: form(lambda x: x + -0.0),
    "keyword": lambda: form(lambda x: torch.add(x, 1, alpha=2)),
    "rows": lambda: form(lambda x: x + 1, rows=9),
    "symbolic rows": lambda: form(lambda x: x + 1, rows=None),
    "columns": lambda: form(lambda x: x + 1, torch.randn(4, 5)),
    "dtype": lambda: form(lambda x: x + 1, torch.randn(4, 3).double()),
    "strides": lambda: form(lambda x: x + 1, torch.randn(3, 4).t()),
    "offset": lambda: form(lambda x: x + 1, torch.randn(5, 3)[1:]),
    "requires_grad": lambda: form(lambda x: x + 1, torch.randn(4, 3, requires_grad=True)),
    "leaf": lambda: form(lambda x: x + 1, torch.randn(4, 3, requires_grad=True) * 1),
    "conjugate": lambda: form(lambda x: x + 1, torch.randn(4, 3, dtype=torch.complex64).conj()),
    "one more output": lambda: form(lambda x: (x + 1, x + 2)),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_reaches_a_compiler_is_part_of_the_form(what: str):
    assert OTHERS[what]().digest != BASE.digest


def test_grad_mode_autocast_and_default_dtype_are_part_of_the_form():
    digests = {BASE.digest}
    with torch.no_grad():
        digests.add(form(lambda x: x + 1).digest)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        digests.add(form(lambda x: x + 1).digest)
    torch.set_default_dtype(torch.float64)
    try:
        digests.add(form(lambda x: x + 1, torch.randn(4, 3, dtype=torch.float32)).digest)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        digests.add(form(lambda x: x + 1).digest)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(digests) == 5


def test_whether_arguments_share_memory_is_part_of_the_form():
    base = torch.randn(8, 3)
    apart = form(lambda x, y: x[:2] + y, base[:4].clone(), base[4:6].clone())
    together = form(lambda x, y: x[:2] + y, base[:4], base[4:6])
    assert apart.digest != together.digest
    sharing = [value.untyped_storage()._cdata for value in recreate(together).inputs]
    assert sharing[0] == sharing[1]


def test_whether_an_argument_is_a_parameter_is_part_of_the_form():
    weight = torch.nn.Parameter(torch.randn(3, 3))
    program = program_of(lambda x: x @ weight, torch.randn(4, 3), rows=8)
    found = form_of(program.pieces[0], program)
    plain = form(lambda x, w: x @ w, torch.randn(4, 3), torch.randn(3, 3, requires_grad=True))
    assert found.digest != plain.digest
    kinds = {isinstance(value, torch.nn.Parameter) for value in recreate(found).inputs}
    assert kinds == {True, False}


def test_the_same_model_captured_twice_has_the_same_form():
    assert form(lambda x: x + 1).digest == BASE.digest
    assert form(lambda x: x + 1, rows=None).digest == form(lambda x: x + 1, rows=None).digest


def test_a_function_of_this_process_counts_by_identity_and_is_not_portable():
    @torch.compiler.allow_in_graph
    def own(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.compiler.allow_in_graph
    def other(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found, again, different = form(own), form(lambda x: own(x)), form(other)
    assert not found.is_portable
    assert "own" in found.local_reasons[0]
    assert found.digest == again.digest != different.digest
    with pytest.raises(PreconditionError, match="own"):
        recreate(found)


def held_constant(value: float) -> Callable[..., Any]:
    """Return a graph that holds a real tensor, as a pass may leave one."""
    program = program_of(lambda x: x + 1, torch.randn(4, 3), rows=8)
    (piece,) = program.pieces
    graph = torch.fx.Graph()
    copied = graph.graph_copy(piece.module.graph, {})
    (added,) = (node for node in graph.nodes if node.op == "call_function")
    with graph.inserting_before(added):
        added.args = (added.args[0], graph.get_attr("constant"))
    graph.output(copied)
    module = torch.fx.GraphModule({"constant": torch.full((3,), value)}, graph)
    return lambda: form_of(dataclasses.replace(piece, module=module), program)


def test_constants_count_by_content():
    one, same, other = held_constant(1.0)(), held_constant(1.0)(), held_constant(2.0)()
    assert one.digest == same.digest != other.digest
    assert one.is_portable
    assert torch.equal(recreate(one).module(torch.zeros(8, 3))[0], torch.ones(8, 3))


def same_metadata(form: Form) -> None:
    """A form survives a trip to another process, and the piece made from it has the very same form."""
    sent = pickle.loads(pickle.dumps(form))
    assert sent == form
    made = recreate(sent)
    assert {symbol for value in made.inputs for symbol in symbols_in(value)} <= {symbol for symbol, _, _ in form.symbols}


def again(piece: Any, program: Program, found: Form) -> Form:
    made = recreate(found)
    inputs = tuple(piece.inputs[place] for place in found.order)
    return form_of(dataclasses.replace(piece, module=made.module, inputs=inputs), program)


@given(random=programs(max_steps=8), every=st.integers(1, 4), rows=st.none() | st.integers(2, 9))
def test_a_piece_made_from_its_form_has_that_form_and_that_metadata(random: RandomProgram, every: int, rows: int | None):
    torch.compiler.reset()
    axes = {"a": ["x.shape[0]", "y.shape[1]"], "b": "y.shape[0]"}
    try:
        captured = fxbucket.capture(random.function(), *random.arguments(5, 7), axes=axes)
        program = Pipeline([Split(every_n_nodes(every)), Discover()])(captured)
        if rows is not None:
            program = Concretize({"a": rows}, remaining="keep")(program)
    except fxbucket.FxbucketError:
        return  # nothing to capture, or a size that the program forbids
    for piece in program.pieces:
        found = form_of(piece, program)
        assert found.is_portable
        same_metadata(found)
        assert again(piece, program, found).digest == found.digest
        made = recreate(found)
        hints = {symbol: hint for symbol, _, hint in found.symbols if hint is not None}
        nodes = {node.name: node for node in made.module.graph.nodes}
        for node in piece.module.graph.nodes:
            if node.op != "output":
                told = list(differences(node.meta.get("example_value"), nodes[node.name].meta.get("example_value"), hints))
                assert not told, (piece.name, node.name, told)


def test_deduplicate_tells_which_pieces_are_equal_and_changes_nothing_else():
    before = program_of(Stack(4), torch.randn(4, 3), split=at_op("aten::sigmoid"))
    program = Deduplicate()(before)
    assert program.same == {"piece_4": "piece_2", "piece_6": "piece_2"}
    assert program.pieces == before.pieces
    assert [str(finding) for finding in program.trail[-1].findings] == [
        "program: 4 compiled pieces are 2 different ones",
        "piece_2: also serves piece_4, piece_6",
    ]
    assert Deduplicate()(before) == program


class Sized(torch.nn.Module):
    """Layers whose pieces hand sizes, a view and its base across the cut, and take arguments in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(5))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x * 1
        for layer in self.layers:
            twice, z = x.shape[0] * 2, layer(x)
            x = torch.sigmoid(z)
            x = (x + self.shift + z[: twice // 2]) * twice + y.sum() * x.shape[0]
        return x


@pytest.mark.parametrize("model", [Stack(6), Sized()])
@pytest.mark.parametrize("rows", [None, 2, 8])
def test_equal_pieces_are_made_concrete_once_and_are_what_they_are_alone(model: torch.nn.Module, rows: int | None):
    args = (torch.randn(4, 3), torch.randn(5, 3))[: 2 if isinstance(model, Sized) else 1]
    axes = {"rows": "x.shape[0]"} | ({"others": "y.shape[0]"} if isinstance(model, Sized) else {})
    captured = fxbucket.capture(model, *args, axes=axes)
    split = Pipeline([Split(at_op("aten::sigmoid")), Discover()])(captured)
    sizes = {} if rows is None else {"rows": rows}
    alone = Pipeline([Concretize(sizes, remaining="keep"), Verify()])(split)
    together = Pipeline([Deduplicate(), Concretize(sizes, remaining="keep"), Verify()])(split)
    assert together.same
    for name, first in together.same.items():
        assert together.piece(name).module is together.piece(first).module
    assert [piece.outputs for piece in together.pieces] == [piece.outputs for piece in alone.pieces]
    assert together.outputs == alone.outputs
    for one, other in zip(together.pieces, alone.pieces, strict=True):
        assert sorted(one.inputs) == sorted(other.inputs)
        form, expected = form_of(one, together), form_of(other, alone)
        assert form.digest == expected.digest
        assert [one.inputs[place] for place in form.order] == [other.inputs[place] for place in expected.order]


def test_deduplicate_wants_a_split_program():
    with pytest.raises(PreconditionError, match="Split"):
        Deduplicate()(fxbucket.capture(lambda x: x + 1, torch.randn(4, 3)))
