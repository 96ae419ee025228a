from __future__ import annotations

import pytest
import torch

import fxbucket
from fxbucket.passes.errors import OptionError


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x + 1) * 2


def compiled_model(**options: object) -> fxbucket.compiled.CompiledFunction:
    given = {"sizes": {"x.shape[0]": [4, 8]}, "splitting_ops": ["aten::sigmoid"], "compiler": "eager"}
    return fxbucket.compile(model, **(given | options))


def test_a_profile_holds_each_call_with_its_bucket_and_its_pieces():
    compiled = compiled_model()
    compiled(torch.randn(4, 2))
    with compiled.profile() as recorder:
        for rows in (4, 8, 5, 4):
            x = torch.randn(rows, 2)
            assert torch.equal(compiled(x), model(x))
        assert len(recorder.profile().calls) == len(compiled.explain().profile.calls) == 4
    compiled(torch.randn(4, 2))
    profile = compiled.explain().profile
    assert [call.bucket for call in profile.calls] == ["x.shape[0]=4", "x.shape[0]=8", "dynamic", "x.shape[0]=4"]
    assert {tuple(call.pieces) for call in profile.calls} == {("piece_0", "piece_1", "piece_2")}
    for call in profile.calls:
        assert all(seconds >= 0 for seconds in call.pieces.values())
        assert sum(call.pieces.values()) == pytest.approx(call.seconds)
    starts = [call.start for call in profile.calls]
    assert starts == sorted(starts)
    assert profile.seconds()["x.shape[0]=4", "piece_1"] == pytest.approx(
        sum(call.pieces["piece_1"] for call in profile.calls if call.bucket == "x.shape[0]=4")
    )


def test_without_a_profile_no_clock_is_read():
    compiled = compiled_model()
    compiled(torch.randn(4, 2))
    assert compiled.explain().profile is None
    before = compiled.explain().graphs[0].bucket_sources
    with compiled.profile():
        compiled(torch.randn(4, 2))
        assert "clock" in compiled.explain().graphs[0].bucket_sources["x.shape[0]=4"]
    assert compiled.explain().graphs[0].bucket_sources == before
    assert compiled.explain().calls()["x.shape[0]=4"] == 2


def test_a_graph_captured_during_a_profile_is_recorded_too():
    compiled = compiled_model(compile_when="lazily")
    with compiled.profile():
        compiled(torch.randn(4, 2))
        compiled(torch.randn(4, 2))
        compiled(torch.randn(4, 2).double())
        compiled(torch.randn(4, 2).double())
    assert {call.graph for call in compiled.explain().profile.calls} == {0, 1}
    assert len(compiled.explain().profile.calls) == 4


def test_calls_that_run_as_captured_are_recorded_as_such():
    compiled = compiled_model(on_miss="eager")
    compiled(torch.randn(4, 2))
    with compiled.profile():
        compiled(torch.randn(5, 2))
    (call,) = compiled.explain().profile.calls
    assert call.bucket == "as captured"
    assert not call.pieces
    assert call.seconds > 0


def test_two_profiles_at_once_are_an_error_and_the_first_goes_on():
    compiled = compiled_model()
    with compiled.profile():
        with pytest.raises(OptionError, match="already"), compiled.profile():
            pass
        compiled(torch.randn(4, 2))
    assert len(compiled.explain().profile.calls) == 1


def test_the_code_that_inductor_generated_is_kept():
    compiled = compiled_model(compiler="inductor", sizes={"x.shape[0]": [4]})
    x = torch.randn(4, 2, requires_grad=True)
    compiled(x)
    codes = {artifact.name: artifact for artifact in compiled.explain().graphs[0].buckets[0].artifacts}
    assert "def call(" in codes["piece_0"].code
    assert codes["piece_0"].origin == "compiled"
    assert codes["piece_1"].origin == "as it is"
    assert codes["piece_1"].code == ""
