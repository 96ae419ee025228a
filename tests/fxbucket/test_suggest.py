"""Suggested sizes: the cheapest ladder there is, what it says of itself, and what it refuses."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import fxbucket
from fxbucket import suggest_sizes
from fxbucket.passes.errors import OptionError

SIZES = st.integers(0, 40)
HISTOGRAMS = st.dictionaries(SIZES, st.integers(1, 9), min_size=1, max_size=6)
WEIGHTS = st.one_of(st.integers(0, 9), st.floats(0, 10, allow_subnormal=False))
WEIGHTED = st.dictionaries(SIZES, WEIGHTS, min_size=1, max_size=6).filter(lambda found: any(found.values()))
BUDGETS = st.integers(1, 6)
MULTIPLES = st.sampled_from([1, 2, 3, 4, 8])


def quadratic(size: int, pinned: int) -> float:
    return float(pinned**2 - size**2)


def stepped(size: int, pinned: int) -> float:
    """Grow with the pinned size, by jumps, and depend on the size too."""
    return pinned // 5 + (3 if pinned - size > 7 else 0)


def linear(factor: float) -> Callable[[int, int], float]:
    return lambda size, pinned: factor * (pinned - size)


def cost_of(
    sizes: Iterable[int], histogram: Mapping[int, float], cost: Callable[[int, int], float], compile_cost: float
) -> float:
    """Return what a ladder costs, straight from the definition; infinite where it does not cover every call."""
    ladder = sorted(sizes)
    total = compile_cost * len(ladder)
    for size, count in histogram.items():
        if count:
            total += count * min((cost(size, pinned) for pinned in ladder if pinned >= size), default=math.inf)
    return total


def least_cost(
    histogram: Mapping[int, float],
    budget: int,
    cost: Callable[[int, int], float],
    compile_cost: float = 0.0,
    multiple_of: int = 1,
    must_include: Iterable[int] = (),
) -> float:
    """Return the cost of the cheapest of all ladders of all sizes that may be pinned at all."""
    forced = set(must_include)
    largest = max([*forced, *histogram]) + multiple_of
    possible = [size for size in range(0, largest + 1, multiple_of) if size not in forced]
    return min(
        cost_of({*forced, *others}, histogram, cost, compile_cost)
        for length in range(budget - len(forced) + 1)
        for others in itertools.combinations(possible, length)
    )


def test_the_sizes_that_most_calls_have_are_pinned():
    found = suggest_sizes({100: 50, 101: 1, 500: 30, 900: 1, 1000: 20}, budget=3)
    assert found.sizes == (101, 500, 1000)
    assert [(step.size, step.calls, step.waste) for step in found.steps] == [(101, 51, 50), (500, 30, 0), (1000, 21, 100)]
    assert (found.waste, found.calls, found.cost) == (150, 102, 150)
    assert found.waste_share == 150 / (51 * 101 + 30 * 500 + 21 * 1000)


def test_with_a_size_for_each_nothing_is_wasted():
    histogram = Counter([3, 3, 7, 20])
    found = suggest_sizes(histogram)
    assert (found.sizes, found.waste, found.waste_share) == ((3, 7, 20), 0, 0.0)
    assert found.histogram == {3: 2, 7: 1, 20: 1}


def test_sizes_that_may_be_pinned_are_multiples():
    found = suggest_sizes({5: 1, 15: 10, 17: 3, 100: 1}, budget=3, multiple_of=16)
    assert (found.sizes, found.waste) == ((16, 32, 112), 11 + 10 + 45 + 12)


def test_compilation_that_costs_more_than_it_saves_is_left_out():
    histogram = {10: 5, 20: 5, 40: 5}
    assert suggest_sizes(histogram, compile_cost=10).sizes == (10, 20, 40)
    found = suggest_sizes(histogram, compile_cost=70)
    assert (found.sizes, found.cost) == ((20, 40), 50 + 140)
    assert suggest_sizes(histogram, compile_cost=1000).sizes == (40,)


def test_where_ladders_cost_the_same_the_shorter_is_given():
    assert suggest_sizes({10: 1, 20: 1}, compile_cost=10).sizes == (20,)
    assert suggest_sizes({10: 1, 20: 1}, padding_cost=0).sizes == (20,)


def test_what_must_be_included_is_pinned_and_counts():
    histogram = {10: 9, 20: 9, 40: 9}
    found = suggest_sizes(histogram, budget=3, must_include=[64, 5])
    assert found.sizes == (5, 20, 64)
    assert found.steps[0].calls == 0
    assert suggest_sizes(histogram, budget=1, must_include=(64,)).sizes == (64,)


def test_the_cost_of_padding_may_be_any_function():
    histogram = {60: 10, 900: 60, 1000: 4}
    assert suggest_sizes(histogram, budget=2).sizes == (60, 1000)
    found = suggest_sizes(histogram, budget=2, padding_cost=quadratic)
    assert (found.sizes, found.cost, found.waste) == ((900, 1000), 10 * (900**2 - 60**2), 10 * 840)


@given(HISTOGRAMS, st.integers(1, 3), MULTIPLES, st.sampled_from([0, 1, 7, 40]), st.sampled_from([1, 2, quadratic, stepped]))
@example({0: 1}, 1, 1, 0, 1)
@example({0: 3, 1: 1, 2: 1}, 2, 1, 0, quadratic)
def test_no_ladder_of_any_sizes_costs_less(
    histogram: dict[int, int], budget: int, multiple_of: int, compile_cost: float, padding_cost: Any
):
    found = suggest_sizes(histogram, budget, padding_cost=padding_cost, compile_cost=compile_cost, multiple_of=multiple_of)
    cost = padding_cost if callable(padding_cost) else linear(padding_cost)
    assert found.cost == cost_of(found.sizes, histogram, cost, compile_cost)
    assert found.cost == least_cost(histogram, budget, cost, compile_cost, multiple_of)
    assert len(found.sizes) <= budget
    assert all(size % multiple_of == 0 for size in found.sizes)


@given(HISTOGRAMS, MULTIPLES, st.lists(st.integers(0, 6), max_size=3), st.sampled_from([1, quadratic, stepped]), st.data())
def test_no_ladder_with_what_must_be_included_costs_less(
    histogram: dict[int, int], multiple_of: int, forced: list[int], padding_cost: Any, data: st.DataObject
):
    forced = [size * multiple_of for size in forced]
    budget = data.draw(st.integers(len(set(forced)) + 1, len(set(forced)) + 2))
    found = suggest_sizes(histogram, budget, padding_cost=padding_cost, multiple_of=multiple_of, must_include=forced)
    cost = padding_cost if callable(padding_cost) else linear(padding_cost)
    assert set(forced) <= set(found.sizes)
    assert len(found.sizes) <= budget
    assert found.cost == least_cost(histogram, budget, cost, 0, multiple_of, forced)


@given(st.dictionaries(st.integers(0, 5000), st.integers(1, 99), min_size=1, max_size=60), st.integers(1, 20), st.data())
def test_two_ways_to_search_find_one_cost(histogram: dict[int, int], budget: int, data: st.DataObject):
    multiple_of = data.draw(MULTIPLES)
    forced = [size * multiple_of for size in data.draw(st.lists(st.integers(0, 700), max_size=5))]
    budget += len(forced)
    by_rows = suggest_sizes(histogram, budget, multiple_of=multiple_of, must_include=forced)
    by_function = suggest_sizes(
        histogram, budget, multiple_of=multiple_of, must_include=forced, padding_cost=lambda size, pinned: pinned - size
    )
    assert (by_rows.cost, len(by_rows.sizes)) == (by_function.cost, len(by_function.sizes))


@given(WEIGHTED, BUDGETS)
def test_weights_need_not_be_whole(histogram: dict[int, float], budget: int):
    found = suggest_sizes(histogram, budget)
    if budget <= 3:
        assert found.waste == pytest.approx(least_cost(histogram, budget, linear(1)), abs=1e-9)
    assert found.waste == pytest.approx(cost_of(found.sizes, histogram, linear(1), 0), abs=1e-9)
    scaled = suggest_sizes({size: weight * 1024 for size, weight in histogram.items()}, budget)
    assert scaled.sizes == found.sizes


def test_weights_may_be_as_small_and_as_large_as_they_like():
    assert suggest_sizes({1: 5e-324, 2: 1e300, 3: 1.0}, budget=2).sizes == (2, 3)
    assert suggest_sizes({1: 5e-324, 2: 1e300, 3: 1.0}, budget=2, padding_cost=quadratic).sizes == (2, 3)


@given(
    st.dictionaries(st.integers(0, 5000), st.integers(1, 999), min_size=1, max_size=40), st.integers(1, 12), MULTIPLES,
    st.sampled_from([0.0, 5.0, 1000.0]), st.sampled_from([1, quadratic]),
)  # fmt: skip
def test_it_is_never_worse_than_its_rivals(
    histogram: dict[int, int], budget: int, multiple_of: int, compile_cost: float, padding_cost: Any
):
    found = suggest_sizes(histogram, budget, padding_cost=padding_cost, compile_cost=compile_cost, multiple_of=multiple_of)
    assert [ladder.name for ladder in found.ladders] == ["powers of two", "linear"]
    cost = padding_cost if callable(padding_cost) else linear(padding_cost)
    for ladder in (found, *found.ladders):
        assert ladder.cost == pytest.approx(cost_of(ladder.sizes, histogram, cost, compile_cost))
        assert ladder.cost >= found.cost
        assert 1 <= len(ladder.sizes) <= budget
        assert list(ladder.sizes) == sorted(set(ladder.sizes)) == [step.size for step in ladder.steps]
        assert ladder.sizes[-1] >= max(histogram)
        assert all(size % multiple_of == 0 for size in ladder.sizes)
        assert ladder.calls == sum(histogram.values())
        assert 0 <= ladder.waste_share <= 1


@given(HISTOGRAMS, st.sampled_from([1, quadratic, stepped]), MULTIPLES)
def test_a_larger_budget_never_costs_more(histogram: dict[int, int], padding_cost: Any, multiple_of: int):
    costs = [
        suggest_sizes(histogram, budget, padding_cost=padding_cost, multiple_of=multiple_of).cost for budget in range(1, 8)
    ]
    assert costs == sorted(costs, reverse=True)


@given(HISTOGRAMS, BUDGETS, st.sampled_from([1, quadratic]))
def test_the_order_of_a_histogram_does_not_matter(histogram: dict[int, int], budget: int, padding_cost: Any):
    turned = dict(reversed(histogram.items()))
    assert suggest_sizes(turned, budget, padding_cost=padding_cost) == suggest_sizes(
        histogram, budget, padding_cost=padding_cost
    )


@pytest.mark.parametrize(
    ("histogram", "budget", "multiple_of", "powers", "equal_steps"),
    [
        ({3000: 1, 100: 1}, 4, 1, (512, 1024, 2048, 4096), (750, 1500, 2250, 3000)),
        ({3000: 1, 1100: 1}, 8, 1, (2048, 4096), (1125, 1500, 1875, 2250, 2625, 3000)),
        ({5: 1, 100: 1}, 5, 48, (48, 96, 144), (48, 96, 144)),
        ({64: 1}, 8, 1, (64,), (64,)),
        ({65: 1}, 8, 1, (128,), (65,)),
        ({0: 1}, 8, 1, (1,), (0,)),
        ({1: 1, 2: 1}, 8, 1, (1, 2), (1, 2)),
    ],
)
def test_the_other_ladders_are_as_the_document_says(
    histogram: dict[int, int], budget: int, multiple_of: int, powers: tuple[int, ...], equal_steps: tuple[int, ...]
):
    found = suggest_sizes(histogram, budget, multiple_of=multiple_of)
    assert [ladder.sizes for ladder in found.ladders] == [powers, equal_steps]


def test_sizes_without_calls_are_left_out():
    found = suggest_sizes({0: 0, 16: 3, 64: 0, 4096: 0.0}, budget=1)
    assert (found.sizes, found.histogram) == ((16,), {16: 3})


def test_what_numpy_and_torch_count_will_do():
    np = pytest.importorskip("numpy")
    values, counts = np.unique(np.array([7, 7, 9, 200]), return_counts=True)
    found = suggest_sizes(dict(zip(values, counts, strict=True)), np.int64(2), must_include=[np.int64(16)])
    assert found == suggest_sizes({7: 2, 9: 1, 200: 1}, 2, must_include=[16])
    assert all(type(size) is int for size in (*found.sizes, *found.histogram))
    assert type(found.waste) is int
    assert suggest_sizes({7: np.float32(0.5), torch.tensor(9): torch.tensor(0.5)}, 1).waste == 1.0


def test_it_prints_as_tables_and_in_a_notebook():
    found = suggest_sizes({100: 50, 101: 1, 500: 30, 900: 1, 1000: 20.5}, budget=3)
    text, page = str(found), found._repr_html_()
    for said in ("3 sizes for 102 calls: 0.4% of all rows are padding", "101", "49.8%", "powers of two", "256, 512, 1024"):
        assert said in text
        assert said in page
    assert repr(found).startswith("Suggestion(name='suggested', sizes=(101, 500, 1000), cost=")
    assert "1 size for 1 call: 0.0% of all rows are padding" in str(suggest_sizes({7: 1}))
    assert "0.0%" in str(suggest_sizes({0: 1}))


def test_the_sizes_are_used_as_they_are():
    sizes = suggest_sizes({4: 5, 6: 2, 8: 5}, budget=2).sizes
    compiled = fxbucket.compile(lambda x: x.relu(), sizes={"x.shape[0]": sizes}, compiler="eager")
    compiled(torch.ones(4, 2))
    assert compiled.explain().calls() == {"x.shape[0]=4": 1, "x.shape[0]=8": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([3, 4],), "histogram is a list; give a dict from sizes to numbers of calls, such as collections.Counter"),
        (({},), "histogram is empty; give at least one size"),
        (({3: 0, 4: 0.0},), "no size has a call"),
        (({3.0: 1},), "a size of the histogram is 3.0; give an int of at least 0"),
        (({True: 1},), "a size of the histogram is True"),
        (({"3": 1},), "a size of the histogram is '3'"),
        (({-3: 1},), "a size of the histogram is -3"),
        (({3: -1},), "the number of calls of size 3 in the histogram is -1; give a finite number of at least 0"),
        (({3: math.nan},), "the number of calls of size 3 in the histogram is nan"),
        (({3: math.inf},), "the number of calls of size 3 in the histogram is inf"),
        (({3: "1"},), "the number of calls of size 3 in the histogram is '1'"),
        (({3: None},), "the number of calls of size 3 in the histogram is None"),
        (({3: True},), "the number of calls of size 3 in the histogram is True"),
        (({3: 1j},), "the number of calls of size 3 in the histogram is 1j"),
        (({3: 1}, 0), "budget is 0; give an int of at least 1"),
        (({3: 1}, 2.5), "budget is 2.5"),
        (({3: 1}, None), "budget is None"),
    ],
)
def test_a_wrong_histogram_or_budget_is_an_error(arguments: Any, said: str):
    with pytest.raises(OptionError) as raised:
        suggest_sizes(*arguments)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"multiple_of": 0}, "multiple_of is 0; give an int of at least 1"),
        ({"multiple_of": 1.0}, "multiple_of is 1.0"),
        ({"padding_cost": -1}, "padding_cost is -1; give a finite number of at least 0"),
        ({"padding_cost": "1"}, "padding_cost is '1'"),
        ({"padding_cost": lambda size, pinned: size - pinned}, "padding_cost(3, 50) is -47; give a finite number"),
        ({"padding_cost": lambda size, pinned: None}, "padding_cost(3, 3) is None"),
        ({"padding_cost": lambda size, pinned: math.inf}, "padding_cost(3, 3) is inf"),
        ({"compile_cost": -0.5}, "compile_cost is -0.5"),
        ({"compile_cost": math.nan}, "compile_cost is nan"),
        ({"must_include": 64}, "must_include=64: give a list of sizes, such as [256]"),
        ({"must_include": "64"}, "must_include='64': give a list"),
        ({"must_include": [64.0]}, "a size of must_include is 64.0; give an int of at least 0"),
        ({"must_include": [-64]}, "a size of must_include is -64"),
        ({"must_include": [50], "multiple_of": 16}, "must_include: 50 is no multiple of multiple_of=16; give 48 or 64"),
        ({"must_include": [8, 16], "budget": 2}, "budget=2 is too small for must_include=[8, 16]"),
        ({"must_include": [8, 16], "budget": 2}, "covers the largest, 50; give a budget of at least 3"),
        ({"must_include": [64, 128], "budget": 1}, "give a budget of at least 2"),
    ],
)
def test_a_wrong_option_is_an_error(options: dict[str, Any], said: str):
    with pytest.raises(OptionError) as raised:
        suggest_sizes({3: 2, 50: 1}, **options)
    assert said in str(raised.value)


def test_an_error_of_the_users_function_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        suggest_sizes({3: 2, 50: 1}, padding_cost=lambda size, pinned: size // 0)


def test_any_number_that_a_cost_function_returns_will_do():
    np = pytest.importorskip("numpy")
    for convert in (np.float32, np.int64, torch.tensor, Decimal):
        found = suggest_sizes({3: 2, 50: 1}, 1, padding_cost=lambda size, pinned, convert=convert: convert(pinned - size))
        assert (found.cost, found.sizes) == (94, (50,))
