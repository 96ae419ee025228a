from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes import Program
from fxbucket.passes.captured import value_of
from fxbucket.passes.conditions import holds
from fxbucket.passes.errors import AxisError, CaptureError
from fxbucket.passes.symbolic import expression_of


def argument(program: Program, source: str) -> Any:
    """Return the captured value of the argument that torch calls ``source``."""
    (name,) = [held.name for held in program.capture.placeholders if held.source == source]
    return value_of(next(node for node in program.capture.module.graph.nodes if node.name == name))


def shape(program: Program, source: str = "L['x']") -> list[Any]:
    return [expression_of(size) for size in argument(program, source).shape]


def symbol(program: Program, name: str) -> Any:
    return program.capture.axis(name).symbol


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor


def test_a_named_axis_is_a_symbol_and_nothing_else_is():
    program = fxbucket.capture(lambda x, n: x * n, torch.randn(4, 5, 6), 3, dynamic=["x.shape[1]"])
    assert shape(program) == [4, symbol(program, "x.shape[1]"), 6]
    assert [axis.name for axis in program.axes] == ["x.shape[1]"]
    assert not program.capture.axis("x.shape[1]").is_fixed


def test_without_named_axes_every_size_is_a_number():
    program = fxbucket.capture(lambda x, n: x * n, torch.randn(4, 5), 3)
    assert shape(program) == [4, 5]
    assert program.axes == ()


def test_equal_sizes_in_the_example_do_not_make_two_axes_one():
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0)[:, None] * y.sum()

    program = fxbucket.capture(model, torch.randn(8, 8), torch.randn(8), dynamic=["x.shape[0]", "x.shape[1]", "y.shape[0]"])
    symbols = [symbol(program, name) for name in ("x.shape[0]", "x.shape[1]", "y.shape[0]")]
    assert len(set(symbols)) == 3
    assert shape(program) == symbols[:2]


def test_an_unnamed_dim_of_the_same_size_stays_a_number():
    program = fxbucket.capture(lambda x, y: x.sum() * y, torch.randn(8, 8), torch.randn(8), dynamic=["x.shape[0]"])
    assert shape(program)[1] == 8
    assert shape(program, "L['y']") == [8]


def test_axes_that_the_model_makes_equal_are_one_symbol():
    program = fxbucket.capture(lambda x, y: x + y, torch.randn(4), torch.randn(4), dynamic=["x.shape[0]", "y.shape[0]"])
    assert shape(program, "L['x']") == shape(program, "L['y']")
    assert len(program.capture.hints) == 1


def test_an_axis_that_depends_on_another_is_an_expression():
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]) + y

    program = fxbucket.capture(model, torch.randn(4), torch.randn(8), dynamic=["x.shape[0]", "y.shape[0]"])
    (free,) = program.capture.hints
    first, second = (program.capture.axis(name).expression for name in ("x.shape[0]", "y.shape[0]"))
    assert {first, second} in ({free, 2 * free}, {free, free / 2})
    assert program.capture.axis("y.shape[0]").hint == 8


def test_several_expressions_may_name_one_axis():
    program = fxbucket.capture(
        lambda x, y: x.sum() + y.sum(), torch.randn(4), torch.randn(4), axes={"b": ["x.shape[0]", "y.shape[0]"]}
    )
    axis = program.capture.axis("b")
    assert axis.expressions == ("x.shape[0]", "y.shape[0]")
    assert set(axis.symbols) == {*shape(program, "L['x']"), *shape(program, "L['y']")}


@pytest.mark.parametrize(
    ("model", "args", "kwargs", "axis", "source"),
    [
        (lambda x: x + 1, (torch.randn(4, 3),), {}, "x.shape[0]", "L['x']"),
        (lambda x: x + 1, (torch.randn(4, 3),), {}, "x.size(0)", "L['x']"),
        (lambda x: x + 1, (torch.randn(4, 3),), {}, "x.shape[-2]", "L['x']"),
        (lambda *, x: x + 1, (), {"x": torch.randn(4, 3)}, "x.shape[0]", "L['x']"),
        (lambda **k: k["x"] + 1, (), {"x": torch.randn(4, 3)}, "x.shape[0]", "L['k']['x']"),
        (lambda b: b["ids"] + 1, ({"ids": torch.randn(4, 3)},), {}, "b['ids'].shape[0]", "L['b']['ids']"),
        (lambda xs: xs[1] + 1, ([3, torch.randn(4, 3)],), {}, "xs[1].shape[0]", "L['xs'][1]"),
        (lambda *xs: xs[1] + 1, (3, torch.randn(4, 3)), {}, "xs[1].shape[0]", "L['xs'][1]"),
        (lambda b: b.ids + 1, (Batch(torch.randn(4, 3), torch.randn(1)),), {}, "b.ids.shape[0]", "L['b'].ids"),
        (lambda b: b[0]["k"].ids + 1, (({"k": Batch(torch.randn(4, 3), torch.randn(1))},),), {},
         "b[0]['k'].ids.shape[0]", "L['b'][0]['k'].ids"),
    ],
)  # fmt: skip
def test_an_axis_is_found_however_the_argument_is_given(model: Any, args: Any, kwargs: Any, axis: str, source: str):
    program = fxbucket.capture(model, *args, dynamic=[axis], **kwargs)
    rows = symbol(program, axis)
    assert rows is not None
    assert shape(program, source) == [rows, 3]
    assert program.capture.hints == {rows: 4}


def test_an_int_argument_is_an_axis_and_its_value_is_read_in_the_graph():
    program = fxbucket.capture(lambda x, n: x[:n] * n, torch.randn(9), 4, dynamic=["n"])
    assert expression_of(argument(program, "L['n']")) == symbol(program, "n")
    assert program.capture.axis("n").hint == 4


@pytest.mark.parametrize("n", [0, 1, -3])
def test_zero_one_and_negative_ints_are_captured_as_symbols_too(n: int):
    program = fxbucket.capture(lambda x, n: x * n, torch.randn(9), n, dynamic=["n"])
    axis = program.capture.axis("n")
    assert not axis.is_fixed
    assert axis.hint == n
    assert n in axis.range


def test_one_axis_name_in_place_of_a_list_will_do():
    assert fxbucket.capture(lambda x: x + 1, torch.randn(4), dynamic="x.shape[0]").axes


def test_what_the_models_python_asks_becomes_guards_with_their_lines():
    def model(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 4 == 0:
            return x + 1
        return x

    program = fxbucket.capture(model, torch.randn(8), dynamic=["x.shape[0]"])
    (guard,) = program.capture.guards
    rows = symbol(program, "x.shape[0]")
    assert [holds(guard.condition, {rows: size}) for size in (8, 10, 12)] == [True, False, True]
    assert "test_capture.py" in guard.origin


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def test_arguments_parameters_buffers_and_symbols_are_told_apart():
    program = fxbucket.capture(Net(), torch.randn(4, 3), dynamic=["x.shape[0]"])
    roles = {held.role: held.source for held in program.capture.placeholders}
    assert roles["input"] == "L['x']"
    assert "weight" in roles["parameter"] or "bias" in roles["parameter"]
    assert "scale" in roles["buffer"]
    assert [held.index for held in program.capture.placeholders] == list(range(len(program.capture.placeholders)))


def test_a_capture_runs_nothing_of_the_model():
    net = torch.nn.BatchNorm1d(3)
    x = torch.randn(4, 3)
    fxbucket.capture(lambda x: net(x.add_(1)), x.clone(), dynamic=["x.shape[0]"])
    kept = x.clone()
    fxbucket.capture(lambda x: net(x.add_(1)), x, dynamic=["x.shape[0]"])
    assert torch.equal(x, kept)
    assert int(net.num_batches_tracked or 0) == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_the_grad_mode_of_the_call_is_remembered(enabled: bool):
    with torch.set_grad_enabled(enabled):
        program = fxbucket.capture(lambda x: x + 1, torch.randn(4))
    assert program.capture.grad_enabled is enabled


def test_a_capture_gives_the_same_program_again():
    x = torch.randn(4, 3)
    first, second = (fxbucket.capture(lambda x: x.t() @ x, x, dynamic=["x.shape[0]"]) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        (["y.shape[0]"], r"'y.shape\[0\]' names no argument.*'x.shape\[0\]'"),
        (["x.shape[2]"], r"has 2 dimensions.*-2\.\.1"),
        (["x"], "must read an int"),
        (["n"], "'n' must read an int, but this call gives float"),
        (["x.shape"], "is not an expression"),
    ],
)
def test_an_axis_that_is_no_size_of_the_call_is_an_error(dynamic: list[str], said: str):
    with pytest.raises(AxisError, match=said):
        fxbucket.capture(lambda x, n: x * n, torch.randn(4, 3), 1.5, dynamic=dynamic)


def test_an_axis_that_the_model_does_not_use_is_an_error():
    with pytest.raises(AxisError, match=r"axis 'rows' \(y.shape\[0\]\) is read by nothing in the graph; leave it out"):
        fxbucket.capture(lambda x, y: x + 1, torch.randn(4), torch.randn(5), axes={"rows": "y.shape[0]"})


def test_an_axis_that_the_models_python_fixes_is_an_error_that_says_so():
    def model(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4)

    with pytest.raises(AxisError, match=r"axis 'x.shape\[0\]' was fixed to 4 by the capture"):
        fxbucket.capture(model, torch.randn(4), dynamic=["x.shape[0]"])


def test_an_example_with_one_row_is_an_error_that_asks_for_more_rows():
    with pytest.raises(AxisError, match=r"axis 'x.shape\[0\]' was fixed to 1 by the capture.*2 rows") as caught:
        fxbucket.capture(lambda x: x + 1, torch.randn(1), dynamic=["x.shape[0]"])
    assert "nothing was possible" not in str(caught.value)
    assert caught.value.__context__ is None, "no trace of how the capture was made"


def test_a_model_that_breaks_the_graph_is_an_error_with_torchs_reason():
    @torch.compiler.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(CaptureError, match="could not be captured as one graph") as caught:
        fxbucket.capture(lambda x: outside(x + 1) * 2, torch.randn(4))
    assert isinstance(caught.value.__cause__, Exception)


def test_a_model_without_tensor_operations_has_no_graph():
    with pytest.raises(CaptureError, match="no tensor operation"):
        fxbucket.capture(lambda n: n + 1, 3)


def test_a_value_that_cannot_be_made_concrete_is_told_with_its_reason():
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    program = fxbucket.capture(lambda x: x * 2, jagged)
    assert "wraps other tensors" in program.capture.refusal


def test_an_ordinary_graph_is_not_refused():
    assert fxbucket.capture(lambda x: x * 2, torch.randn(4)).capture.refusal == ""


@settings(max_examples=settings().max_examples // 3)
@given(st.lists(st.integers(2, 4), min_size=1, max_size=4), st.data())
def test_exactly_the_named_dims_are_symbols_each_its_own(sizes: list[int], data: st.DataObject):
    torch.compiler.reset()
    dims = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    spelled = {dim: f"x.shape[{dim - len(sizes) if data.draw(st.booleans()) else dim}]" for dim in sorted(dims)}
    program = fxbucket.capture(lambda x: x * 2, torch.empty(sizes), dynamic=list(spelled.values()))
    found = shape(program)
    assert {dim for dim, size in enumerate(found) if not isinstance(size, int)} == dims
    assert len({found[dim] for dim in dims}) == len(dims)
    assert {dim: symbol(program, name) for dim, name in spelled.items()} == {dim: found[dim] for dim in dims}
