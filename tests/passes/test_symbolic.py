"""Expressions are exact: what symbolic arithmetic wrote down evaluates to what Python's own arithmetic gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes.buckets import NO_LOWER_BOUND, Range
from fxbucket.passes.captured import value_of
from fxbucket.passes.conditions import holds, python_condition
from fxbucket.passes.symbolic import (
    SYMBOLIC_TYPES,
    adopt_symbol,
    conditions_in,
    evaluate,
    expression_of,
    fake_mode_of,
    fresh_environment,
    is_fake,
    is_float_symbol,
    is_unbacked,
    is_wrapper_subclass,
    recorded_guards,
    resolve,
    source_name,
    substitute,
    symbols_in,
    without_guards,
)

NAMES = ("s0", "s1", "s2")
SYMBOLS = {name: sympy.Symbol(name, positive=True, integer=True) for name in NAMES}

Term = Callable[[Mapping[str, Any]], Any]
"""Size arithmetic as a model writes it: the same Python runs on ints and on symbolic ints."""


def binary(make: Callable[[Any, Any], Any], text: str) -> Callable[[tuple[Term, str], tuple[Term, str]], tuple[Term, str]]:
    def combine(left: tuple[Term, str], right: tuple[Term, str]) -> tuple[Term, str]:
        return (lambda values: make(left[0](values), right[0](values))), text.format(left[1], right[1])

    return combine


OPERATIONS = [
    binary(lambda a, b: a + b, "({} + {})"),
    binary(lambda a, b: a - b, "({} - {})"),
    binary(lambda a, b: a * b, "({} * {})"),
    binary(lambda a, b: a // (b * b + 1), "({} // ({}**2 + 1))"),
    binary(lambda a, b: a % (b * b + 1), "({} % ({}**2 + 1))"),
    binary(lambda a, b: -(-a // (b * b + 1)), "ceil({} / ({}**2 + 1))"),
    binary(torch.sym_min, "min({}, {})"),
    binary(torch.sym_max, "max({}, {})"),
    binary(lambda a, b: torch.sym_max(a, 0) ** 2 + b, "(max({}, 0)**2 + {})"),
    binary(lambda a, b: a // 2 * 2 + b % 3, "({}//2*2 + {}%3)"),
]


def leaf(value: str | int) -> tuple[Term, str]:
    if isinstance(value, str):
        return (lambda values: values[value]), value
    return (lambda values: value), str(value)


terms = st.recursive(
    st.sampled_from([*NAMES, 1, 2, 3, 7, 8, 64]).map(leaf),
    lambda inner: st.tuples(st.sampled_from(OPERATIONS), inner, inner).map(lambda parts: parts[0](parts[1], parts[2])),
    max_leaves=5,
)
sizes = st.fixed_dictionaries({name: st.integers(2, 40) for name in NAMES})


def symbolic_ints() -> dict[str, torch.SymInt]:
    env, _ = fresh_environment()
    return {name: adopt_symbol(env, symbol, 5, Range(2)) for name, symbol in SYMBOLS.items()}


@given(terms, sizes)
def test_substitution_gives_what_python_gives(term: tuple[Term, str], numbers: dict[str, int]):
    written = expression_of(term[0](symbolic_ints()))
    found = substitute(written, {SYMBOLS[name]: number for name, number in numbers.items()})
    assert found == term[0](numbers)
    assert type(found) is int


@given(terms, sizes, st.sets(st.sampled_from(NAMES)))
def test_symbols_without_a_number_stay_and_the_rest_may_follow_later(
    term: tuple[Term, str], numbers: dict[str, int], first: set[str]
):
    written = expression_of(term[0](symbolic_ints()))
    early = {SYMBOLS[name]: numbers[name] for name in first}
    late = {SYMBOLS[name]: number for name, number in numbers.items()}
    half = substitute(written, early)
    assert symbols_in(half).isdisjoint(early)
    assert symbols_in(half) <= symbols_in(written)
    assert substitute(half, late) == term[0](numbers)


@given(terms, sizes)
def test_evaluation_with_symbolic_ints_gives_expressions_of_their_own_environment(
    term: tuple[Term, str], numbers: dict[str, int]
):
    written = expression_of(term[0](symbolic_ints()))
    other = symbolic_ints()
    moved = evaluate(written, {SYMBOLS[name]: value for name, value in other.items()})
    found = substitute(expression_of(moved), {SYMBOLS[name]: number for name, number in numbers.items()})
    assert found == term[0](numbers)


@given(terms, terms, sizes)
def test_a_condition_holds_exactly_where_python_says_so(left: tuple[Term, str], right: tuple[Term, str], numbers: Any):
    values = symbolic_ints()
    binding = {SYMBOLS[name]: number for name, number in numbers.items()}
    a, b = left[0](values), right[0](values)
    for compare in (lambda x, y: x < y, lambda x, y: x == y, lambda x, y: x % 4 != y, lambda x, y: x >= y + 1):
        expected = compare(left[0](numbers), right[0](numbers))
        written = compare(a, b)
        condition = written.node.expr if isinstance(written, SYMBOLIC_TYPES) else written
        assert holds(condition, binding) is expected


@given(terms, sizes)
def test_a_condition_prints_as_python_that_means_the_same(term: tuple[Term, str], numbers: dict[str, int]):
    written = term[0](symbolic_ints()) % 5 == 2
    if isinstance(written, SYMBOLIC_TYPES) and symbols_in(written):
        code = python_condition(written.node.expr)
        assert eval(code, {"math": math}, dict(numbers)) is (term[0](numbers) % 5 == 2), code


def test_large_sizes_stay_exact():
    a = SYMBOLS["s0"]
    env, _ = fresh_environment()
    value = adopt_symbol(env, a, 5, Range(2))
    large = 2**40 + 1
    assert substitute(expression_of(value * value * 3), {a: large}) == large * large * 3
    assert substitute(expression_of(value // 3 * 3), {a: large}) == large // 3 * 3


@pytest.mark.parametrize(("number", "kind"), [(5, int), (True, bool), (2.5, float)])
def test_a_plain_number_is_its_own_expression(number: Any, kind: type):
    assert expression_of(number) is number
    assert type(substitute(number, {})) is kind
    assert evaluate(number, {}) is number
    assert symbols_in(number) == frozenset()


def test_an_expression_without_symbols_becomes_a_python_number():
    assert type(substitute(sympy.Integer(4), {})) is int
    assert type(substitute(sympy.Float(4.5), {})) is float
    assert substitute(sympy.true, {}) is True
    assert substitute(sympy.false, {}) is False


def test_a_symbol_without_a_value_is_an_error_and_never_a_guess():
    with pytest.raises(KeyError, match="s1"):
        evaluate(SYMBOLS["s0"] + SYMBOLS["s1"], {SYMBOLS["s0"]: 3})


def test_whether_a_condition_holds_is_unknown_while_a_symbol_has_no_value():
    condition = sympy.Lt(SYMBOLS["s0"], SYMBOLS["s1"])
    assert holds(condition, {SYMBOLS["s0"]: 3}) is None
    assert holds(condition, {SYMBOLS["s0"]: 3, SYMBOLS["s1"]: 4}) is True


def test_symbols_are_found_wherever_a_value_hides_them():
    a, b, c = SYMBOLS.values()
    values = symbolic_ints()
    env, mode = fresh_environment()
    rows = adopt_symbol(env, a, 5, Range(2))
    with mode:
        fake = torch.empty(3, 4).as_strided((2,), (1,), rows)
    assert symbols_in(fake) == {a}
    assert symbols_in({"x": [values["s0"], (values["s1"] * 2,)], "y": slice(None, values["s2"])}) == {a, b, c}
    assert symbols_in((None, 3, "s0", 2.0, torch.empty(3))) == frozenset()
    assert symbols_in(a * b + 1) == {a, b}


def test_the_length_of_a_storage_counts_among_a_tensors_symbols():
    a = SYMBOLS["s0"]
    env, mode = fresh_environment()
    rows = adopt_symbol(env, a, 5, Range(2))
    with mode:
        first_row = torch.empty(rows, 4)[0]
    assert symbols_in(first_row) == {a}


def test_fake_tensors_and_their_mode_are_told_apart_from_real_ones():
    _, mode = fresh_environment()
    with mode:
        fake = torch.empty(3)
    assert is_fake(fake)
    assert not is_fake(torch.empty(3))
    assert fake_mode_of([None, 4, (torch.empty(2), [fake])]) is mode
    assert fake_mode_of([torch.empty(2), 3]) is None


def test_a_tensor_that_wraps_others_is_told_apart():
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert is_wrapper_subclass(jagged)
    assert not is_wrapper_subclass(torch.ones(2))
    assert not is_wrapper_subclass(torch.nn.Parameter(torch.ones(2)))


def test_an_adopted_symbol_keeps_its_name_and_its_range():
    env, _ = fresh_environment()
    symbol = SYMBOLS["s0"]
    value = adopt_symbol(env, symbol, 8, Range(4, 16))
    assert expression_of(value) == symbol
    assert bool(value >= 4)
    assert bool(value <= 16)
    assert recorded_guards(env) == ()


def test_what_an_environment_is_asked_beyond_its_ranges_is_recorded():
    env, _ = fresh_environment()
    symbol = SYMBOLS["s0"]
    value = adopt_symbol(env, symbol, 8, Range(2))
    assert bool(value % 8 == 0)
    assert not bool(value > 100)
    (divisible, first_line), (bounded, _) = recorded_guards(env)
    for size, expected in ((8, True), (12, False), (160, True)):
        assert holds(divisible, {symbol: size}) is expected
    assert holds(bounded, {symbol: 101}) is False
    assert "test_symbolic.py" in first_line or first_line == ""
    assert set(conditions_in(env, frozenset({symbol}))) == {divisible, bounded}
    assert conditions_in(env, frozenset()) == ()


def test_a_settled_symbol_is_resolved_but_its_condition_can_still_be_read_back():
    env, _ = fresh_environment()
    symbol = SYMBOLS["s0"]
    value = adopt_symbol(env, symbol, 8, Range(2))
    assert bool(value == 8)
    assert resolve(env, symbol) == 8
    (condition,) = conditions_in(env, frozenset({symbol}))
    assert holds(condition, {symbol: 8}) is True
    assert holds(condition, {symbol: 9}) is False


def test_metadata_may_be_built_without_leaving_a_guard_behind():
    env, _ = fresh_environment()
    value = adopt_symbol(env, SYMBOLS["s0"], 8, Range(2))
    with without_guards(env):
        assert bool(value % 8 == 0)
    assert recorded_guards(env) == ()
    with without_guards(None):
        pass


def test_values_that_the_data_decides_are_told_apart():
    x = torch.tensor([1.0, -1.0, 2.0])
    program = fxbucket.capture(lambda x: x[x > 0], x, dynamic=["x.shape[0]"])
    (result,) = [value_of(node) for node in program.capture.module.graph.nodes if node.name.startswith("getitem")]
    (rows,) = symbols_in(tuple(result.shape))
    assert is_unbacked(rows)
    assert not is_float_symbol(rows)
    assert rows not in program.capture.hints
    assert [found for found, _ in program.capture.unbacked] == [rows]


def test_only_symbols_can_be_unbacked_or_floats():
    assert not is_unbacked(SYMBOLS["s0"])
    assert not is_unbacked(SYMBOLS["s0"] + 1)
    assert not is_float_symbol(SYMBOLS["s0"])
    assert is_unbacked(sympy.Symbol("u0", integer=True))
    assert is_float_symbol(sympy.Symbol("zf0"))


def test_the_name_of_a_source_is_read_as_property_and_as_method():
    class Old:
        def name(self) -> str:
            return "L['x']"

    class New:
        name = "L['x']"

    assert source_name(Old()) == source_name(New()) == "L['x']"


@pytest.mark.parametrize("start", [NO_LOWER_BOUND, -5, 0, 3])
def test_an_adopted_range_without_an_end_admits_everything_from_its_start(start: int):
    env, _ = fresh_environment()
    value = adopt_symbol(env, sympy.Symbol("s0", integer=True), 10**9, Range(start))
    assert bool(value >= max(start, -(10**6)))
    recorded = recorded_guards(env)
    assert (recorded == ()) is (start > NO_LOWER_BOUND)
