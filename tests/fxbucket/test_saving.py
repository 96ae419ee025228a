"""A compiled model is saved in one process and loaded in another, and never gives a wrong value there."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxbucket
from fxbucket.passes.errors import FxbucketWarning, OptionError, StoreError
from tests.equality import assert_equals_eager, assert_same_tree
from tests.fxbucket import saved_models
from tests.fxbucket.saved_models import Block, Broken, block

ROOT = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, Any] = {"sizes": {"x.shape[0]": [4, 8]}, "splitting_ops": ["aten::sigmoid"], "compiler": "eager"}


def rows(count: int, width: int = 4) -> torch.Tensor:
    return torch.arange(count * width, dtype=torch.float32).reshape(count, width) % 5


def saved(path: Path, model: Any = None, **options: Any) -> Path:
    """Compile a block, call it in every mode, and save it."""
    model = block() if model is None else model
    compiled = fxbucket.compile(model, **{**OPTIONS, **options})
    for training in (False, True):
        model.train(training)
        compiled.warmup(rows(4))
    model.eval()
    with torch.no_grad():
        compiled.warmup(rows(4))
    compiled.save(path)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("saved") / "block.fxbucket")


def loaded(path: Path, model: Any) -> Any:
    """Return the compiled model, of which every call that captures is an error until the test says otherwise."""
    return fxbucket.load(path, model)


@pytest.fixture
def nothing_is_captured():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FxbucketWarning)
        yield


SCRIPT = """
import sys, torch, torch._inductor, fxbucket
from torch._dynamo.utils import counters
from tests.fxbucket import saved_models
from tests.equality import assert_same_tree
from tests.fxbucket.test_saving import rows
def no_compiler(*args, **kwargs):
    raise AssertionError("a compiler was asked")
torch._inductor.standalone_compile = no_compiler
exec(sys.argv[2])
model = saved_models.block().eval()
compiled = fxbucket.load(sys.argv[1], model)
twin = saved_models.block().eval()
for count in (4, 8, 5):
    for training in (False, True):
        model.train(training), twin.train(training)
        got, expected = compiled(rows(count)), twin(rows(count))
        assert_same_tree(got, expected, "outputs", TOLERANCE)
        got[0].sum().backward(), expected[0].sum().backward()
        assert_same_tree([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()], "gradients", TOLERANCE)
        assert_same_tree(model.state_dict(), twin.state_dict(), "state", TOLERANCE)
print("captured", counters["stats"]["unique_graphs"])
print(sorted({artifact["origin"] for graph in compiled.explain().data()["graphs"]
              for bucket in graph["buckets"] for artifact in bucket.get("artifacts", ())}))
"""


def in_another_process(path: Path, before: str = "TOLERANCE = 0.0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", SCRIPT, str(path), before]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=300)


def test_another_process_captures_nothing(file: Path):
    done = in_another_process(file)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "captured 0" in done.stdout
    assert "captured" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["a folder", None])
def test_another_process_compiles_nothing(tmp_path: Path, cache: str | None):
    folder = None if cache is None else tmp_path / "store"
    path = saved(tmp_path / "block.fxbucket", compiler="inductor", cache=folder, workers=0)
    done = in_another_process(
        path, f"TOLERANCE = 1e-5; import os; os.environ['FXBUCKET_CACHE_DIR'] = {str(tmp_path / 'new')!r}"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "captured 0" in done.stdout
    assert "'loaded'" in done.stdout
    assert "'compiled'" not in done.stdout


@pytest.mark.parametrize(
    "change",
    [
        "saved_models.FACTOR = 3.0",
        "saved_models.Block.shift = 5.0",
        "saved_models.doubled.__code__ = (lambda x: x * 7.0).__code__",
        "saved_models.Block.forward = lambda self, x, bias=0.5: (x, x.transpose(0, 1))",
        "saved_models.Block.forward.__defaults__ = (9.0,)",
        "old = saved_models.Block.forward; saved_models.Block.forward = lambda self, x: old(self, x + 1)",
        "saved_models.Derived.forward = lambda self, x: saved_models.Block.forward(self, x + 1)",
        "kept = torch.nn.functional.relu; torch.nn.functional.relu = lambda x: kept(x) + 1",
        "kept = torch.nn.Linear.forward; torch.nn.Linear.forward = lambda self, x: kept(self, x) + 1",
        "torch.sigmoid = torch.tanh",
        "made = saved_models.block; saved_models.block = lambda: (lambda b: (setattr(b, 'power', 3), b)[1])(made())",
        "made = saved_models.block; saved_models.block = lambda: (lambda b: (setattr(b, 'step', torch.exp), b)[1])(made())",
        "made = saved_models.block; saved_models.block = lambda: (lambda b: (b.linear.register_forward_hook("
        "lambda m, i, o: o + 1), b)[1])(made())",
        "torch.set_default_dtype(torch.float64); made = saved_models.block; saved_models.block = lambda: made().float()",
        "import torch.nn.functional as F; saved_models.F = type('Other', (), {'relu': staticmethod(lambda x: x - 1)})",
    ],
)
def test_what_differs_in_another_process_is_captured_again_or_refused(file: Path, change: str):
    done = in_another_process(file, f"TOLERANCE = 1e-6; {change}")
    if done.returncode == 0:
        assert "captured 0" not in done.stdout, "the other process ran what was saved for something else"
        assert "is captured and compiled for it" in done.stderr
    else:
        assert "StoreError" in done.stderr, done.stderr[-3000:]
        assert "differs" in done.stderr


@settings(max_examples=15, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from([2, 3, 4, 5, 8, 9]), st.sampled_from(["eval", "train", "no_grad"])), min_size=1, max_size=5
    )
)
def test_calls_equal_eager(file: Path, calls: list[tuple[int, str]]):
    model, twin = block(), block()
    compiled = loaded(file, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FxbucketWarning)
        for count, mode in calls:
            model.train(mode == "train")
            twin.train(mode == "train")
            with torch.set_grad_enabled(mode != "no_grad"):
                assert_same_tree(compiled(rows(count)), twin(rows(count)), mode)
    assert_same_tree(model.state_dict(), twin.state_dict(), "state")


@pytest.mark.usefixtures("nothing_is_captured")
def test_outputs_gradients_and_aliasing_equal_eager(file: Path):
    model = block().eval()
    twin = copy.deepcopy(model)
    parameters = (list(model.parameters()), list(twin.parameters()))
    assert_equals_eager(loaded(file, model), twin, [rows(4)], [rows(4)], parameters)


@pytest.mark.usefixtures("nothing_is_captured")
def test_parameters_are_those_of_the_model_at_each_call(file: Path):
    model = block().eval()
    compiled = loaded(file, model)
    before = compiled(rows(4))[0]
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    assert_same_tree(compiled(rows(4))[0], model(rows(4))[0], "after load_state_dict")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    compiled(rows(4))[0].sum().backward()
    optimizer.step()
    after = compiled(rows(4))[0]
    assert_same_tree(after, model(rows(4))[0], "after a step")
    assert not torch.equal(before, after)
    model.linear.weight = torch.nn.Parameter(torch.eye(4))
    assert_same_tree(compiled(rows(4))[0], model(rows(4))[0], "after a replaced parameter")


def test_another_dtype_is_captured_with_one_warning(tmp_path: Path):
    model = torch.nn.Linear(4, 4)
    compiled = fxbucket.compile(model, sizes={"input.shape[0]": [4]}, compiler="eager")
    compiled(rows(4))
    compiled.save(tmp_path / "linear.fxbucket")
    again = loaded(tmp_path / "linear.fxbucket", model)
    model.double()
    with pytest.warns(FxbucketWarning, match="no saved capture of the loaded model serves this call") as record:
        got = again(rows(4).double())
    assert len(record) == 1
    assert_same_tree(got, model(rows(4).double()), "doubles")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FxbucketWarning)
        assert_same_tree(again(rows(8).double()), model(rows(8).double()), "more doubles")


@pytest.mark.usefixtures("nothing_is_captured")
def test_it_is_used_like_a_compiled_model(file: Path, tmp_path: Path):
    model = block().eval()
    compiled = loaded(file, model)
    assert compiled.state_dict().keys() == model.state_dict().keys()
    assert "x.shape[0]=8" in str(compiled.explain())
    assert len(compiled.programs) == 3
    compiled.warmup(rows(4))
    compiled.save(tmp_path / "again.fxbucket")
    again = block().eval()
    assert_same_tree(loaded(tmp_path / "again.fxbucket", again)(rows(8)), block().eval()(rows(8)), "saved twice")


@pytest.mark.usefixtures("nothing_is_captured")
def test_a_function_is_saved_too(tmp_path: Path):
    compiled = fxbucket.compile(saved_models.doubled, sizes={"x.shape[0]": [4]}, compiler="eager")
    compiled(rows(4))
    compiled.save(tmp_path / "function.fxbucket")
    again = fxbucket.load(tmp_path / "function.fxbucket", saved_models.doubled)
    assert_same_tree(again(rows(4)), rows(4) * 2, "a function")


@pytest.mark.usefixtures("nothing_is_captured")
def test_seen_sizes_are_saved(tmp_path: Path):
    model = block().eval()
    compiled = fxbucket.compile(model, sizes="seen", axes={"n": "x.shape[0]"}, compiler="eager")
    compiled(rows(6)), compiled(rows(7))
    compiled.save(tmp_path / "seen.fxbucket")
    again = loaded(tmp_path / "seen.fxbucket", block().eval())
    assert [bucket["bucket"] for bucket in again.explain().data()["graphs"][0]["buckets"]] == ["n=6", "n=7"]
    assert_same_tree(again(rows(7)), block().eval()(rows(7)), "seen")


def test_nothing_to_save(tmp_path: Path):
    with pytest.raises(StoreError, match=r"nothing was captured yet.*warmup\(\) first"):
        fxbucket.compile(block(), **OPTIONS).save(tmp_path / "none.fxbucket")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("compiler", ["aot_eager", lambda module, inputs: module.forward])
def test_a_compiler_whose_artifacts_cannot_be_saved(tmp_path: Path, compiler: Any):
    compiled = fxbucket.compile(block(), **{**OPTIONS, "compiler": compiler})
    compiled(rows(4))
    with pytest.raises(StoreError, match="what it makes cannot be saved; compile with compiler='inductor' or 'eager'"):
        compiled.save(tmp_path / "none.fxbucket")


def test_a_model_that_breaks_into_graphs_is_refused(tmp_path: Path):
    compiled = fxbucket.compile(Broken(), sizes={"x.shape[0]": [4]}, compiler="eager")
    compiled(rows(4))
    with pytest.raises(StoreError, match="breaks into several graphs"):
        compiled.save(tmp_path / "none.fxbucket")


def test_a_class_that_no_other_process_finds_is_refused(tmp_path: Path):
    class Local(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    compiled = fxbucket.compile(Local(), sizes={"x.shape[0]": [4]}, compiler="eager")
    compiled(rows(4))
    with pytest.raises(StoreError, match="cannot be saved"):
        compiled.save(tmp_path / "none.fxbucket")


def test_another_shape_dtype_or_class(file: Path):
    with pytest.raises(StoreError, match=r"the model differs.*linear\.weight: Parameter \(4, 4\).*\(6, 6\)"):
        fxbucket.load(file, block(6))
    with pytest.raises(StoreError, match=r"linear\.bias: Parameter \(4,\) torch.float32 cpu, .*torch.float64"):
        fxbucket.load(file, block().double())
    other = block()
    other.norm = torch.nn.LayerNorm(4)
    with pytest.raises(StoreError, match=r"module 'norm': .*BatchNorm1d, .*LayerNorm"):
        fxbucket.load(file, other)
    with pytest.raises(StoreError, match="the model differs"):
        fxbucket.load(file, saved_models.doubled)


def test_another_environment(file: Path, tmp_path: Path):
    from fxbucket.model_file import ModelFile, read_model, write_model

    held = read_model(file)
    facts = {**held.about["environment"], "torch": "1.0.0"}
    write_model(tmp_path / "old.fxbucket", ModelFile({**held.about, "environment": facts}, held.content))
    with pytest.raises(StoreError, match=r"the environment differs \(saved, here\): torch: 1\.0\.0, "):
        fxbucket.load(tmp_path / "old.fxbucket", block())


@pytest.mark.parametrize("place", [0, 40, 200, -1])
def test_a_damaged_file(file: Path, tmp_path: Path, place: int):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    path = tmp_path / "damaged.fxbucket"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StoreError, match=r"is damaged|not a model"):
        fxbucket.load(path, block())


@pytest.mark.parametrize("length", [0, 10, 100, 5000])
def test_a_file_that_was_cut_off(file: Path, tmp_path: Path, length: int):
    path = tmp_path / "short.fxbucket"
    path.write_bytes(file.read_bytes()[:length])
    with pytest.raises(StoreError, match=r"is damaged|not a model"):
        fxbucket.load(path, block())


def test_a_file_that_others_may_write_to(file: Path, tmp_path: Path):
    path = tmp_path / "open.fxbucket"
    path.write_bytes(file.read_bytes())
    path.chmod(0o666)
    with pytest.raises(StoreError, match=r"can be written by others.*chmod go-w"):
        fxbucket.load(path, block())


def test_paths_that_lead_nowhere(file: Path, tmp_path: Path):
    with pytest.raises(StoreError, match="cannot be read"):
        fxbucket.load(tmp_path / "missing", block())
    compiled = loaded(file, block().eval())
    with pytest.raises(StoreError, match="cannot be written"):
        compiled.save(tmp_path / "missing" / "block.fxbucket")
    with pytest.raises(OptionError, match=r"load.. takes no option 'sizes'"):
        fxbucket.load(file, block(), sizes={})


def test_the_file_is_private_and_holds_no_parameters(file: Path):
    assert file.stat().st_mode & 0o077 == 0
    header = json.loads(file.read_bytes().split(b"\n", 3)[2])
    assert header["about"]["captures"] == 3


def test_a_failed_save_leaves_the_old_file(file: Path, tmp_path: Path):
    path = tmp_path / "kept.fxbucket"
    path.write_bytes(file.read_bytes())
    with pytest.raises(StoreError):
        fxbucket.compile(Block(), **OPTIONS).save(path)
    assert path.read_bytes() == file.read_bytes()
    assert [item.name for item in tmp_path.iterdir()] == ["kept.fxbucket"]
