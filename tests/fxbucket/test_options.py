from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fxbucket
from fxbucket.options import Options
from fxbucket.passes import Discover, Split, Verify, at_module, at_op, every_n_nodes
from fxbucket.passes.buckets import Bucket, Range
from fxbucket.passes.errors import AxisError, BoundaryError, FxbucketError, OptionError, SizeError

ROWS, COLUMNS = "x.shape[0]", "x.shape[1]"


def test_every_option_has_a_default_and_the_documentation_names_each():
    options = Options()
    assert (options.buckets, options.specs, options.boundaries) == ((), (), ())
    assert not options.pins_seen
    documented = Options.__doc__ or ""
    assert [field.name for field in dataclasses.fields(Options) if field.init and f"{field.name}:" not in documented] == []


def test_options_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().max_seen = 3  # type: ignore[misc]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
)
def test_a_mapping_of_sizes_crosses_its_axes_in_order(rows: list[int], columns: list[int]):
    options = Options(sizes={ROWS: rows, COLUMNS: columns})
    assert options.buckets == tuple(Bucket.of({ROWS: row, COLUMNS: column}) for row in rows for column in columns)


def test_a_list_of_sizes_is_the_combinations_themselves():
    combinations = [{"b": 1, "t": 128}, {"b": 8, "t": 64}, {"b": 8}]
    options = Options(axes={"b": ROWS, "t": COLUMNS}, sizes=combinations)
    assert options.buckets == tuple(map(Bucket.of, combinations))  # type: ignore[arg-type]


def test_a_size_may_be_given_by_the_expression_of_a_named_axis():
    assert Options(axes={"b": ROWS}, sizes={ROWS: [4]}).buckets == (Bucket.of({"b": 4}),)


def test_seen_pins_nothing_beforehand():
    options = Options(sizes="seen")
    assert options.pins_seen
    assert options.buckets == ()


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("aten::gelu", 1),
        (torch.sigmoid, 1),
        (at_op("aten::gelu"), 1),
        (["aten::gelu", torch.sigmoid, at_module("M")], 3),
        ((), 0),
    ],
)
def test_places_to_cut_are_given_alone_or_in_a_list(given: Any, number: int):
    assert len(Options(splitting_ops=given).boundaries) == number


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"size": {ROWS: [4]}}, OptionError, "unknown option 'size'.*'sizes'"),
        ({"specs": ()}, OptionError, "unknown option 'specs'"),
        ({"on_miss": "dynamc"}, OptionError, "on_miss='dynamc' is not possible.*'dynamic'"),
        ({"compile_when": "now"}, OptionError, "compile_when='now' is not possible.*'first_call'"),
        ({"compiler": 5}, OptionError, "compiler=5.*'inductor'"),
        ({"compiler": "inducter"}, OptionError, "compiler='inducter' is not a backend.*'inductor'"),
        ({"inductor_options": {"max_autotun": True}}, OptionError, "no option 'max_autotun'.*'max_autotune'"),
        ({"inductor_options": {"max_autotune": True}, "compiler": "eager"}, OptionError, "the compiler is 'eager'"),
        ({"inductor_options": [1]}, OptionError, r"inductor_options=\[1\].*dict"),
        ({"max_seen": 0}, OptionError, "max_seen=0.*at least 1"),
        ({"max_seen": True}, OptionError, "max_seen=True"),
        ({"axes": ["x.shape[0]"]}, OptionError, "axes=.*dict"),
        ({"sizes": "sen"}, OptionError, "sizes='sen' is not possible.*'seen'"),
        ({"sizes": 8}, OptionError, "sizes=8"),
        ({"sizes": []}, OptionError, r"sizes=\[\] is empty"),
        ({"sizes": [8, 16]}, OptionError, "8 is not a combination"),
        ({"sizes": [{}]}, OptionError, "{} is not a combination"),
        ({"sizes": {ROWS: 8}}, OptionError, r"8 is not a list of ints; write \[8\]"),
        ({"sizes": {ROWS: "8"}}, OptionError, "'8' is not a list of ints"),
        ({"sizes": {ROWS: []}}, OptionError, "'x.shape.0.'.*the list is empty"),
        ({"sizes": {ROWS: [8, 16, 8]}}, OptionError, r"\[8\] is listed more than once"),
        ({"sizes": [{ROWS: 8}, {ROWS: 8}]}, OptionError, "listed twice"),
        ({"sizes": {ROWS: [8.0]}}, OptionError, "8.0 is float"),
        ({"sizes": {ROWS: [True]}}, OptionError, "True is bool"),
        ({"sizes": {ROWS: [(1, 8)]}}, OptionError, r"\(1, 8\) is tuple; use ranges"),
        ({"sizes": {ROWS: [Range(1, 8)]}}, OptionError, "use ranges"),
        ({"sizes": [{ROWS: "8"}]}, OptionError, "'8' is str"),
        ({"sizes": {ROWS: [-1]}}, SizeError, "size -1 of axis 'x.shape.0.' is negative"),
        ({"sizes": {"x.shape": [8]}}, AxisError, "'x.shape' is not an expression"),
        ({"sizes": {5: [8]}}, AxisError, "axis 5 is not an expression"),
        ({"axes": {"b": "x.shape["}}, AxisError, "is not an expression"),
        ({"axes": {"b": ROWS}, "sizes": {"b": [8], ROWS: [4]}}, OptionError, "'b' and 'x.shape.0.' are one axis"),
        ({"splitting_ops": [5]}, BoundaryError, r"at_op\(5\)"),
        ({"splitting_ops": 5}, OptionError, "splitting_ops=5.*list"),
        ({"passes": 5}, OptionError, "passes=5.*list"),
        ({"passes": [Discover]}, OptionError, "Discover.*is not a pass"),
        ({"passes": ["split"]}, OptionError, "'split' is not a pass"),
    ],
)
def test_a_wrong_option_is_an_error_at_once_that_names_it_and_the_mend(
    options: dict[str, Any], kind: type[FxbucketError], said: str
):
    for make in (lambda: fxbucket.compile(lambda x: x, **options), lambda: fxbucket.backend(**options)):
        with pytest.raises(FxbucketError, match=said) as caught:
            make()
        assert type(caught.value) is kind


def test_a_negative_number_is_a_value_of_an_int_argument():
    assert Options(sizes={"n": [-3]}).buckets == (Bucket.of({"n": -3}),)


@pytest.mark.parametrize(
    "options",
    [
        {"sizes": {ROWS: [8]}, "splitting_ops": ["aten::gelu", at_module("M") & every_n_nodes(3)]},
        {"sizes": "seen", "passes": (Split(), Verify())},
    ],
)
def test_options_can_be_pickled(options: dict[str, Any]):
    loaded = pickle.loads(pickle.dumps(Options(**options)))
    assert loaded.buckets == Options(**options).buckets
    assert loaded.specs == Options(**options).specs
    assert loaded.boundaries == Options(**options).boundaries
