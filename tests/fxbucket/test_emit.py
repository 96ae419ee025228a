from __future__ import annotations

import gc
import math
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

import fxbucket
from fxbucket.artifact import Artifact
from fxbucket.build import Builder
from fxbucket.emit import Emitted, bucket_function, dispatch_function, key_function
from fxbucket.options import Options
from fxbucket.passes import Concretize, Discover, Pipeline, Program, Split, at_op, every_n_nodes
from fxbucket.passes.program import SymbolUse

S0 = sympy.Symbol("s0", integer=True)


def prepared(model: Any, *args: Any, boundary: Any = (), **sizes: int) -> Program:
    """Return the program of a model of ``x``, cut, with axes ``rows`` and ``columns``; concrete for ``sizes``."""
    axes = {"rows": "x.shape[0]", "columns": "x.shape[1]"}
    program = Pipeline([Split(boundary), Discover()])(fxbucket.capture(model, *args, axes=axes))
    return Concretize(sizes, remaining="keep")(program)


def built(program: Program) -> tuple[Artifact, ...]:
    return Builder(Options(compiler="eager")).build([program])[0].artifacts


def emitted(
    program: Program, conditions: Sequence[sympy.Basic] = (), refused: Callable[..., Any] = print
) -> tuple[Emitted, list[int]]:
    counter = [0]
    return bucket_function(program, built(program), conditions, refused, counter), counter


def given(program: Program, x: torch.Tensor) -> list[Any]:
    """Return the arguments of a captured function of one tensor ``x``, as Dynamo gives them."""
    return [eval(held.source, {"L": {"x": x}}) for held in program.capture.placeholders]


def chain(x: torch.Tensor) -> tuple[torch.Tensor, int, float]:
    return torch.sigmoid(torch.sigmoid(x + 1) * 2).reshape(-1), x.shape[0] * x.shape[1], math.inf


def test_a_bucket_is_one_straight_line_function_that_calls_each_piece_once():
    program = prepared(chain, torch.randn(4, 3), boundary=at_op("aten::sigmoid"), rows=8, columns=2)
    function, counter = emitted(program)
    x = torch.randn(8, 2)
    found, expected = function.function(*given(program, x)), chain(x)
    assert torch.equal(found[0], expected[0])
    assert found[1] == 16
    assert counter == [1]
    assert [function.source.count(f"_run_{piece.name}(") for piece in program.pieces] == [1] * len(program.pieces)
    assert "Serves rows=8, columns=2." in function.source


def test_every_call_is_counted():
    program = prepared(chain, torch.randn(4, 3), rows=8, columns=2)
    function, counter = emitted(program)
    for _ in range(3):
        function.function(*given(program, torch.randn(8, 2)))
    assert counter == [3]


def test_an_intermediate_is_freed_after_its_last_use():
    alive: list[weakref.ref[torch.Tensor]] = []
    seen: list[int] = []
    program = prepared(
        lambda x: torch.sigmoid(x + 1).cos() + x.shape[0], torch.randn(4, 3), boundary=every_n_nodes(1), rows=8
    )

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            seen.append(sum(reference() is not None for reference in alive))
            found = call(*args)
            alive.extend(weakref.ref(value) for value in found if isinstance(value, torch.Tensor))
            return found

        return run

    artifacts = [replace(artifact, call=watched(artifact.call)) for artifact in built(program)]
    function = bucket_function(program, artifacts, (), print, [0])
    arguments = given(program, torch.randn(8, 3))
    result = function.function(*arguments)
    gc.collect()
    assert len(artifacts) == 4
    assert max(seen) == 1, "one intermediate lives at a time"
    assert sum(reference() is not None for reference in alive) == 1
    assert alive[-1]() is result[0]


def test_a_call_that_breaks_a_condition_is_handed_on_and_not_counted():
    program = prepared(lambda x: x * 2, torch.randn(4, 3), rows=8)
    columns = program.capture.axis("columns").symbol
    assert columns is not None
    handed: list[tuple[Any, ...]] = []

    def refused(arguments: tuple[Any, ...]) -> str:
        handed.append(arguments)
        return "elsewhere"

    function, counter = emitted(program, [sympy.Eq(sympy.Mod(columns, 2), 0), sympy.Le(columns, 10)], refused)
    right = given(program, torch.randn(8, 4))
    assert torch.equal(function.function(*right)[0], right[-1] * 2)
    for wrong in (3, 12):
        arguments = given(program, torch.randn(8, wrong))
        assert function.function(*arguments) == "elsewhere"
        assert handed[-1] == tuple(arguments)
    assert counter == [1]


@pytest.mark.parametrize("constant", [None, True, 7, "text", 2.5, math.inf, torch.float64, torch.device("cpu")])
def test_constants_among_the_outputs_come_through(constant: Any):
    program = prepared(lambda x: x * 2, torch.randn(4, 3), rows=8, columns=3)
    from dataclasses import replace

    with_constant = replace(program, outputs=(program.outputs[0], (constant, constant)))
    function, _ = emitted(with_constant)
    found = function.function(*given(program, torch.randn(8, 3)))
    assert found[1] == (constant, constant)
    assert type(found[1][0]) is type(constant)


def crossing(x: torch.Tensor) -> torch.Tensor:
    """Its variables have the names that generated code might use for itself, and cross cuts."""
    _counter = x + 1
    _refused = torch.sigmoid(_counter)
    math = _refused + 1
    _run_piece_0 = torch.sigmoid(math)
    bucket = _run_piece_0 + 1
    found = torch.sigmoid(bucket)
    return _counter * _refused + math * _run_piece_0 + bucket * found


def test_variables_of_the_model_are_never_mistaken_for_those_of_generated_code():
    compiled = fxbucket.compile(crossing, sizes={"x.shape[0]": [4]}, splitting_ops=["aten::sigmoid"], compiler="eager")
    for rows in (4, 5):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), crossing(x))


def use(placeholder: int, field: Any, dim: int = -1) -> SymbolUse:
    return SymbolUse(placeholder, field, dim, S0)


def test_a_key_reads_each_size_where_it_lies():
    arguments = (7, torch.empty(5, 4).t()[1:], torch.tensor(2.5, dtype=torch.float64))
    uses = [use(0, "value"), use(1, "size", 0), use(1, "stride", 1), use(1, "offset"), use(2, "item")]
    assert key_function(uses).function(arguments) == (7, 3, 4, 1, 2.5)
    assert key_function(uses[1:2]).function(arguments) == 3
    assert key_function([]).function(arguments) == ()


def test_a_look_up_tries_its_tables_in_order_and_then_misses():
    tables: list[dict[Any, Callable[..., Any]]] = [{(4, 2): lambda n, x: "both"}, {4: lambda n, x: "one"}]
    uses = [[use(1, "size", 0), use(0, "value")], [use(1, "size", 0)]]
    function = dispatch_function(list(zip(uses, tables, strict=True)), lambda arguments: ("missed", arguments[0])).function
    assert function(2, torch.empty(4)) == "both"
    assert function(3, torch.empty(4)) == "one"
    assert function(3, torch.empty(5)) == ("missed", 3)
    tables[1][5] = lambda n, x: "later"
    assert function(3, torch.empty(5)) == "later", "tables may grow"


def test_a_look_up_without_tables_always_misses():
    assert dispatch_function([], len).function(1, 2, 3) == 3


def test_a_traceback_shows_the_line_of_generated_code():
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("in a piece")

    program = prepared(lambda x: x * 2, torch.randn(4, 3), rows=8, columns=3)
    artifacts = [replace(artifact, call=fails) for artifact in built(program)]
    function = bucket_function(program, artifacts, (), print, [0])
    with pytest.raises(ZeroDivisionError) as caught:
        function.function(*given(program, torch.randn(8, 3)))
    lines = "".join(traceback.format_exception(caught.value))
    assert "fxbucket bucket rows=8, columns=3" in lines
    assert "_run_piece_0(" in lines


def test_every_function_has_a_file_of_its_own_in_tracebacks():
    one, other = (dispatch_function([], len).function for _ in range(2))
    assert one.__code__.co_filename != other.__code__.co_filename
