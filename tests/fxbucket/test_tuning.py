"""Options of Inductor for pinned sizes alone: what they change, and what happens when the time for them is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes.errors import OptionError

# On a CPU each of these generates other code, and no measurement is made.
OPTIONS = {"max_fusion_size": 1}


def model(x: torch.Tensor) -> torch.Tensor:
    return (torch.sigmoid(x.sin() + 1) * 2).cos()


def compiled_of(folder: Path, **options: Any) -> Any:
    given = {"axes": {"t": "x.shape[0]"}, "sizes": {"t": [4, 8]}, "on_miss": "dynamic", "cache": folder, "workers": 0}
    return fxbucket.compile(model, **{**given, **options})


def codes(compiled: Any) -> dict[str, str]:
    (graph,) = compiled.explain().graphs
    return {bucket.bucket: bucket.artifacts[0].code for bucket in graph.buckets if bucket.artifacts}


def notes(compiled: Any) -> list[str]:
    (graph,) = compiled.explain().graphs
    return [artifact.note for bucket in graph.buckets for artifact in bucket.artifacts if artifact.note]


def test_pinned_sizes_alone_are_compiled_with_them_and_the_store_keeps_both(tmp_path: Path):
    plain, tuned = compiled_of(tmp_path), compiled_of(tmp_path, pinned_inductor_options=OPTIONS)
    with torch.no_grad():
        for compiled in (plain, tuned):
            for size in (4, 8, 5):
                x = torch.randn(size, 16)
                torch.testing.assert_close(compiled(x), model(x))
    for bucket, code in codes(tuned).items():
        assert (code == codes(plain)[bucket]) == (bucket == "dynamic"), bucket
    again = compiled_of(tmp_path, pinned_inductor_options=OPTIONS)
    with torch.no_grad():
        again(torch.randn(4, 16))
    (graph,) = again.explain().graphs
    assert {artifact.origin for bucket in graph.buckets for artifact in bucket.artifacts} == {"loaded"}


def test_what_is_compiled_after_the_time_is_spent_is_compiled_without_and_says_so(tmp_path: Path):
    compiled = compiled_of(tmp_path, pinned_inductor_options=OPTIONS, tuning_seconds=0)
    plain = compiled_of(tmp_path)
    with torch.no_grad():
        for size in (4, 8):
            x = torch.randn(size, 16)
            torch.testing.assert_close(compiled(x), model(x))
            plain(x)
    assert notes(compiled) == ["not tuned: the 0 seconds for that were spent"] * 2
    assert codes(compiled)["t=4"] == codes(plain)["t=4"]
    # What was compiled without stands in the store under that name, and serves who asks for no tuning.
    (graph,) = plain.explain().graphs
    assert {artifact.origin for bucket in graph.buckets for artifact in bucket.artifacts} <= {"loaded", "shared"}


def test_a_tuned_model_can_be_saved(tmp_path: Path):
    layer = torch.nn.Linear(16, 16)
    options = {"axes": {"t": "input.shape[0]"}, "sizes": {"t": [4]}, "workers": 0, "pinned_inductor_options": OPTIONS}
    compiled = fxbucket.compile(layer, cache=tmp_path / "store", tuning_seconds=0, **options)
    x = torch.randn(4, 16)
    with torch.no_grad():
        expected = compiled(x)
        compiled.save(tmp_path / "model")
        loaded = fxbucket.load(tmp_path / "model", layer)
        assert torch.equal(loaded(x), expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pinned_inductor_options": 3}, "pinned_inductor_options=3: give a dict"),
        ({"pinned_inductor_options": {"max_autotun": True}}, "Inductor has no option 'max_autotun'; did you mean"),
        ({"pinned_inductor_options": OPTIONS, "compiler": "eager"}, "the compiler is 'eager'"),
        ({"tuning_seconds": -1}, "tuning_seconds=-1: give seconds"),
        ({"tuning_seconds": True}, "tuning_seconds=True: give seconds"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(tmp_path: Path, options: dict[str, Any], said: str):
    with pytest.raises(OptionError, match=said):
        compiled_of(tmp_path, **options)
