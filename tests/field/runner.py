"""Run a case: compile its model one way, make its calls, and compare each with eager."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import fxbucket
from fxbucket.axes import bound_arguments, parse_reading
from fxbucket.backend import Backend
from fxbucket.explain import Explanation
from fxbucket.frame import signature_of
from fxbucket.passes import every_n_nodes
from tests.equality import assert_equals_eager, assert_same_tree
from tests.field.case import Case, Model, Wrap

Ways = Sequence[tuple[Any, ...]]

MODES = ("seen", "one_axis", "none")
"""What is pinned: every combination of sizes, one axis at its size in the first call, or nothing."""

CUTS = ("at_ops", "every_node", "uncut")
"""Where the graph is cut: where the case wants it, at every node, or nowhere."""


LONG = pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "long", reason="runs with HYPOTHESIS_PROFILE=long")
"""Takes too long for every day."""


def spread(cases: Sequence[Case], always: Ways, share: int, others: Ways, mark: pytest.MarkDecorator) -> list[Any]:
    """Return every case with every way, as parameters of a test.

    Args:
        cases: what is run.
        always: ways that are taken in turn.
        share: how many of these each case takes: the next ones, so that each way is taken by as many cases.
        others: the rest of the ways.
        mark: the mark of what is not taken.
    """
    found = []
    for number, case in enumerate(cases):
        taken = {(number * share + step) % len(always) for step in range(share)}
        for index, way in enumerate([*always, *others]):
            marks = [] if index in taken else [mark]
            found.append(pytest.param(case, *way, marks=marks, id="-".join([case.name, *way])))
    return found


def backend_for(case: Case, mode: str, cut: str, compiler: str) -> Backend:
    """Return the backend that compiles a case one way."""
    sizes: Any = {"seen": "seen", "one_axis": {case.axis: [_first_size(case)]}, "none": {}}[mode]
    return fxbucket.backend(sizes=sizes, splitting_ops=boundaries(case, cut), compiler=compiler)


def boundaries(case: Case, cut: str) -> tuple[object, ...]:
    """Return where a case is cut."""
    return {"at_ops": case.splitting_ops, "every_node": (every_n_nodes(1),), "uncut": ()}[cut]


def _first_size(case: Case) -> int:
    model, calls = case.world()
    return parse_reading(case.axis).read(bound_arguments(signature_of(model), calls[0], {}))


def run(case: Case, mode: str, cut: str, compiler: str) -> None:
    """Compile a case as a backend of torch.compile, make its calls, and compare."""
    backend = backend_for(case, mode, cut, compiler)
    settings = {"capture_dynamic_output_shape_ops": case.unbacked, "capture_scalar_outputs": case.unbacked}
    with torch.compiler.config.patch(settings), explained(case), only_warning(case.warns):
        check(case, lambda model: torch.compile(model, backend=backend, dynamic=True), 0.0 if compiler == "eager" else None)
        if case.inspect is not None:
            case.inspect(backend)
        if not case.warns:
            assert_compiled(backend.explain())


def assert_compiled(explanation: Explanation) -> None:
    """Check that compiled buckets served every call, so that nothing is equal to eager by being eager."""
    for graph in explanation.graphs:
        assert graph.refusal == ""
        assert graph.eager_calls == 0
        assert [bucket.state for bucket in graph.buckets if bucket.calls and bucket.state != "compiled"] == []


def check(case: Case, wrap: Wrap, tolerance: float | None = None) -> None:
    """Make a case's calls and compare each with eager; or do what the case says instead."""
    if case.check is not None:
        case.check(wrap)
        return
    tolerance = case.tolerance if tolerance is None else tolerance
    (model, calls), (eager, eager_calls) = case.world(), case.world()
    compiled = wrap(model)
    for number, (ours, theirs) in enumerate(zip(calls, eager_calls, strict=True)):
        outputs: list[Any] = []

        def call(*arguments: Any, kept: list[Any] = outputs) -> Any:
            kept.append(compiled(*arguments))
            return kept[0]

        try:
            assert_equals_eager(call, eager, ours, theirs, (_parameters(model), _parameters(eager)), tolerance)
            assert_same_tree(_buffers(model), _buffers(eager), "buffer", tolerance)
            if case.holds is not None:
                case.holds(number, outputs[0], ours)
        except AssertionError as error:
            error.add_note(f"in call {number} of {len(calls)}")
            raise


def _parameters(model: Model) -> list[torch.Tensor]:
    return list(model.parameters()) if isinstance(model, nn.Module) else []


def _buffers(model: Model) -> Mapping[str, torch.Tensor]:
    return dict(model.named_buffers()) if isinstance(model, nn.Module) else {}


@contextlib.contextmanager
def explained(case: Case) -> Iterator[None]:
    """Tell with a failure what the case is about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{case.name}: {case.fault}\nmet in {', '.join(case.sources)}")
        raise


@contextlib.contextmanager
def only_warning(said: str) -> Iterator[None]:
    """Check that fxbucket warns once with this text (a pattern); of nothing where it is empty."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    found = [str(warning.message) for warning in caught if issubclass(warning.category, fxbucket.FxbucketWarning)]
    if not said:
        assert found == []
    else:
        assert len(set(found)) == 1, found
        assert re.search(said, found[0]), found
