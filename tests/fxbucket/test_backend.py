from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import fxbucket
from fxbucket.backend import Backend, default_pipeline
from fxbucket.options import Options
from fxbucket.passes import Program, at_op
from fxbucket.passes.errors import AxisError, BoundaryError, FxbucketError
from fxbucket.passes.pipeline import BasePass
from fxbucket.passes.program import Finding


def fxbucket_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in caught if issubclass(warning.category, fxbucket.FxbucketWarning)]


def test_torch_compile_takes_the_backend_by_name_with_the_same_options(compiler: Any):
    options = {"sizes": {"x.shape[0]": [4, 8]}, "splitting_ops": ["aten::sigmoid"], "compiler": compiler}
    compiled = torch.compile(lambda x: torch.sigmoid(x + 1) * 2, backend="fxbucket", dynamic=True, options=options)
    for rows in (4, 8, 9):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), torch.sigmoid(x + 1) * 2)
    assert compiler.count == 6, "two pieces each for 4, 8 and the dynamic one"


def test_torch_compile_takes_a_backend_value_that_tells_what_it_did(compiler: Any):
    backend = fxbucket.backend(sizes={"x.shape[0]": [4, 8]}, compiler=compiler)
    compiled = torch.compile(lambda x: x + 1, backend=backend, dynamic=True)
    for rows in (8, 4, 5, 8):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), x + 1)
    assert backend.explain().calls() == {"x.shape[0]=4": 1, "x.shape[0]=8": 2, "dynamic": 1}
    assert len(backend.programs) == 1
    assert compiler.count == 3


def test_the_method_of_a_module_and_nested_arguments_are_axes_under_torch_compile_too():
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, batch: dict[str, torch.Tensor], n: int) -> torch.Tensor:
            return self.linear(batch["ids"]) * n

    net = Net()
    backend = fxbucket.backend(sizes={"batch['ids'].shape[0]": [4, 8], "n": [3]}, compiler="eager")
    compiled = torch.compile(net, backend=backend, dynamic=True)
    for rows, n in ((4, 3), (8, 3), (5, 3), (4, 7)):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled({"ids": x}, n), net({"ids": x}, n))
    assert backend.explain().calls()["batch['ids'].shape[0]=8, n=3"] == 1
    assert backend.explain().calls()["dynamic"] == 2


def test_seen_sizes_are_pinned_under_torch_compile_too(compiler: Any):
    backend = fxbucket.backend(sizes="seen", compiler=compiler)
    compiled = torch.compile(lambda x: x * 2, backend=backend, dynamic=True)
    for rows in (4, 8, 4, 8):
        compiled(torch.randn(rows))
    assert sorted(backend.explain().calls().items()) == [("x.shape[0]=4", 2), ("x.shape[0]=8", 2)]
    assert compiler.count == 2


def test_two_models_with_one_options_dict_are_two_models_by_name_too():
    options = {"splitting_ops": ["aten::sigmoid"], "compiler": "eager"}
    first, second = (
        torch.compile(model, backend="fxbucket", options=options, dynamic=False)
        for model in (lambda x: torch.sigmoid(x), lambda x: torch.tanh(x))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxbucket.FxbucketWarning)
        first(torch.randn(4, 3))
        with pytest.raises(RuntimeError, match=r"aten::sigmoid.*matches no node"):
            second(torch.randn(4, 5))


def test_a_wrong_option_by_name_reaches_the_user_in_its_own_words():
    compiled = torch.compile(lambda x: x + 1, backend="fxbucket", options={"size": [4]})
    with pytest.raises(RuntimeError, match="unknown option 'size'; did you mean 'sizes'"):
        compiled(torch.randn(4))


def test_a_wrong_option_of_a_backend_value_is_an_error_at_once():
    with pytest.raises(FxbucketError, match="unknown option 'size'"):
        fxbucket.backend(size=[4])


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"sizes": {"y.shape[0]": [4]}}, AxisError, r"'y.shape\[0\]' names no argument.*'x.shape\[0\]'"),
        ({"sizes": {"x.shape[0]": [4]}, "splitting_ops": ["aten::sigmoidd"]}, BoundaryError, "'aten::sigmoid'"),
    ],
)
def test_an_axis_or_a_boundary_of_nothing_is_an_error_at_the_first_call_and_nothing_is_kept(
    options: dict[str, Any], kind: type[FxbucketError], said: str, compiler: Any
):
    backend = fxbucket.backend(compiler=compiler, **options)
    compiled = torch.compile(lambda x: torch.sigmoid(x), backend=backend, dynamic=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said) as caught:
            compiled(torch.randn(4))
        assert type(caught.value.inner_exception) is kind  # type: ignore[attr-defined]
    assert backend.programs == ()
    assert compiler.count == 0


@pytest.mark.parametrize("calls", [[4, 5], [4, 5, 6, 5]])
def test_an_unnamed_dim_that_changes_is_right_and_warned_of_once_with_the_mend(calls: list[int]):
    compiled = fxbucket.compile(lambda x, y: x * y.sum(), sizes={"x.shape[0]": [4]}, compiler="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in calls:
            x, y = torch.randn(4), torch.randn(2, rows)
            assert torch.equal(compiled(x, y), x * y.sum())
    (said,) = fxbucket_warnings(caught)
    assert "y.shape[1] changed from 4 to 5 and was not named as an axis" in said
    assert "axes={'y_shape_1': 'y.shape[1]'}" in said


def test_naming_the_dim_that_the_warning_names_captures_once_and_warns_of_nothing():
    compiled = fxbucket.compile(
        lambda x, y: x * y.sum(), sizes={"x.shape[0]": [4]}, axes={"y_shape_1": "y.shape[1]"}, compiler="eager"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxbucket.FxbucketWarning)
        for rows in (4, 5, 6):
            compiled(torch.randn(4), torch.randn(2, rows))
    assert len(compiled.programs) == 1


@pytest.mark.parametrize("spelling", ["x.shape[0]", "x.size(0)", "x.shape[-1]", "x.size(-1)"])
def test_a_named_axis_is_never_called_unnamed_however_it_is_spelled(spelling: str):
    compiled = fxbucket.compile(lambda x: x + 1, sizes={spelling: [4]}, compiler="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxbucket.FxbucketWarning)
        for rows in (4, 1, 0, 1, 5):
            compiled(torch.randn(rows))


def test_a_dim_of_another_number_of_rows_is_no_change_of_size():
    """One argument may be a vector now and a matrix then; that is another capture, not an axis to name."""
    compiled = fxbucket.compile(lambda x, y: x * y.sum(), sizes={"x.shape[0]": [4]}, compiler="eager")
    x = torch.randn(4)
    for y in (torch.randn(3), torch.randn(3, 7)):
        assert torch.equal(compiled(x, y), x * y.sum())
    assert len(compiled.programs) == 2


@dataclass(frozen=True)
class Remark(BasePass):
    text: str
    name: ClassVar[str] = "remark"

    def run(self, program: Program) -> Program:
        return program.with_findings(Finding("here", f"{self.text}: {len(program.pieces)} pieces"))


def test_extra_passes_run_on_every_program_after_split():
    compiled = fxbucket.compile(
        lambda x: torch.sigmoid(x) + 1, compiler="eager", passes=[Remark("saw")], splitting_ops=["aten::sigmoid"]
    )
    compiled(torch.randn(4))
    (program,) = compiled.programs
    assert [step.name for step in program.trail] == ["split", "remark", "discover", "admit", "deduplicate"]
    assert str(program.trail[1].findings[0]) == "here: saw: 2 pieces"


def test_the_default_pipeline_cuts_at_the_boundaries_of_the_options():
    options = Options(splitting_ops=["aten::sigmoid"], sizes={"x.shape[0]": [4, 1]})
    program = fxbucket.capture(lambda x: torch.sigmoid(x) + 1, torch.randn(4), dynamic=["x.shape[0]"])
    prepared = default_pipeline(options)(program)
    assert [piece.is_boundary for piece in prepared.pieces] == [True, False]
    assert [decision.admitted for decision in prepared.decisions] == [True, False]
    assert prepared.uses


@torch.compiler.disable
def outside() -> None:
    """Break the graph."""


def test_a_graph_break_gives_a_program_for_each_graph_and_the_axes_hold_in_both():
    def model(x: torch.Tensor) -> torch.Tensor:
        y = (x + 1).sum()
        outside()
        return torch.sigmoid(x) * y

    compiled = fxbucket.compile(
        model, sizes={"x.shape[0]": [4, 8]}, splitting_ops=["aten::sigmoid"], compiler="eager", on_miss="error"
    )
    for rows in (4, 8, 4):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), model(x))
    assert len(compiled.programs) == 2
    assert [len(program.pieces) for program in compiled.programs] == [1, 2]
    assert compiled.explain().calls()["x.shape[0]=4"] == 4


def test_a_value_that_is_computed_before_a_graph_break_is_never_proposed_as_an_axis():
    """It is no argument: naming it, as a warning would propose, is an error."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        outside()
        return torch.sigmoid(x) * y

    compiled = fxbucket.compile(model, sizes={"x.shape[0]": [4, 8]}, compiler="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (4, 8, 5, 4):
            x = torch.randn(rows)
            assert torch.equal(compiled(x), model(x))
    assert [said for said in fxbucket_warnings(caught) if "'y.shape[0]'" in said] == []


def test_a_capture_that_cannot_be_made_concrete_runs_as_it_is_with_a_warning():
    compiled = fxbucket.compile(lambda x: x * 2, compiler="eager")
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    with pytest.warns(fxbucket.FxbucketWarning, match="runs as it is, uncompiled: .* wraps other tensors"):
        found = compiled(jagged)
    assert torch.equal(found.values(), jagged.values() * 2)
    assert compiled.explain().graphs[0].eager_calls == 1


def test_two_backends_share_nothing():
    one, other = Backend(Options(compiler="eager")), Backend(Options(compiler="eager"))
    torch.compile(lambda x: x + 1, backend=one)(torch.randn(4))
    assert len(one.programs) == 1
    assert other.programs == ()
    assert other.explain().graphs == ()


def test_boundaries_given_as_values_cut_under_torch_compile():
    backend = fxbucket.backend(splitting_ops=at_op(torch.sigmoid) | at_op("aten::cos"), compiler="eager")
    x = torch.randn(4)
    found = torch.compile(lambda x: torch.sigmoid(x).cos() + 1, backend=backend)(x)
    assert torch.equal(found, torch.sigmoid(x).cos() + 1)
    assert [piece.kind for piece in backend.explain().graphs[0].pieces] == ["boundary", "boundary", "compiled"]


def test_an_axis_that_the_model_fixes_at_one_size_is_told():
    compiled = fxbucket.compile(
        lambda x: x + torch.arange(5.0), axes={"rows": "x.shape[0]"}, sizes={"rows": [8, 16]}, compiler="eager"
    )
    x = torch.randn(5)
    with pytest.warns(fxbucket.FxbucketWarning, match="axis 'rows' is fixed at 5 in this capture, so no bucket serves it"):
        assert torch.equal(compiled(x), x + torch.arange(5.0))
    alone = fxbucket.compile(lambda x: x + 1, axes={"rows": "x.shape[0]"}, sizes={"rows": [8, 16]}, compiler="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxbucket.FxbucketWarning)
        alone(torch.randn(1))
