"""Models whose artifacts are stored: what is loaded computes what was compiled, and a store that fails ends no call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.environment import environment
from fxbucket.passes.errors import FxbucketWarning
from fxbucket.sealed import Stored, seal
from fxbucket.store import Store
from tests.equality import assert_equals_eager

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

needs_mount = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root mounts file systems")


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1) * 3


def stored(function: Callable[..., Any], folder: Path, **options: Any) -> Any:
    """Compile as a process would that knows nothing of what this one has compiled."""
    torch.compiler.reset()
    return fxbucket.compile(
        function, **{"cache": folder, "workers": 0, "sizes": {"x.shape[0]": [4]}, "on_miss": "eager"} | options
    )


def origins(compiled: Any) -> list[str]:
    graphs = compiled.explain().graphs
    return [artifact.origin for graph in graphs for bucket in graph.buckets for artifact in bucket.artifacts]


def keys_in(folder: Path) -> set[str]:
    return {facts.key for facts in Store(folder).verify() if not facts.fault}


def run(function: Callable[..., Any], folder: Path, *args: Any, **options: Any) -> list[str]:
    """Compile, call, compare with eager, and return where the artifacts came from."""
    compiled = stored(function, folder, **options)
    assert_equals_eager(
        compiled, function, args, tuple(arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args)
    )
    return origins(compiled)


def the_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught if issubclass(each.category, FxbucketWarning)]


# Another process

SCRIPT = """
import json, sys
import torch, fxbucket
torch.set_num_threads(1)
torch.manual_seed(0)

def first(x):
    return torch.relu(x + 1) * 3

def second(x):
    # The kernel of the first, and one more; with a backward.
    return (torch.relu(x + 1) * 3) @ torch.sin(x)

found = []
for function, grad in ((first, False), (second, True)):
    compiled = fxbucket.compile(function, sizes={"x.shape[0]": [4]}, cache=sys.argv[1], workers=0)
    for rows in (4, 6):
        x = torch.randn(rows, rows, requires_grad=grad)
        y = x.detach().clone().requires_grad_(grad)
        result = compiled(x)
        torch.testing.assert_close(result, function(y))
        if grad:
            result.sum().backward()
            function(y).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
    for graph in compiled.explain().graphs:
        found += [artifact.origin for bucket in graph.buckets for artifact in bucket.artifacts]
print(json.dumps(found))
"""


def in_child(script: str, *arguments: object, **environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=500, env=os.environ | {"OMP_NUM_THREADS": "1"} | environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    assert "Warning: an artifact" not in done.stderr
    return found


def test_a_second_process_compiles_nothing(tmp_path: Path):
    made = in_child(SCRIPT, tmp_path / "store")
    assert set(made) == {"compiled"}
    assert len(made) >= 4
    # torch asks the compiler for its version alone; this one can do no more.
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in --version) exec {subprocess.getoutput("command -v g++")} --version;; esac\n'
        f'echo "$*" >> {tmp_path}/called\nexit 1\n'
    )
    compiler.chmod(0o755)
    others = {"CXX": ""} if "CXX" in os.environ else {}
    assert in_child(SCRIPT, tmp_path / "store", PATH=str(compiler.parent), **others) == ["loaded"] * len(made)
    assert not (tmp_path / "called").exists()


EIGHT = """
import json, os, sys
import torch, fxbucket
import torch._inductor.compile_fx  # once, and not in each process
torch.set_num_threads(1)

def first(x):
    return torch.relu(x + 1) * 3

def second(x):
    return torch.sin(x).sum(0)

def run():
    found = []
    for function in (first, second):
        compiled = fxbucket.compile(function, sizes={"x.shape[0]": [4]}, on_miss="eager", cache=sys.argv[1], workers=0)
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(x), function(x))
        (graph,) = compiled.explain().graphs
        found += [artifact.origin for bucket in graph.buckets for artifact in bucket.artifacts]
    return found

begin, go = os.pipe()
read, write = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.close(go)
        os.read(begin, 1)  # until all are there
        try:
            os.write(write, (json.dumps(run()) + "\\n").encode())
        finally:
            os._exit(0)
os.close(go)
os.close(write)
with open(read) as lines:
    print(json.dumps([origin for line in lines for origin in json.loads(line)]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts its processes by forks")
def test_eight_processes_compile_each_artifact_once(tmp_path: Path):
    found = in_child(EIGHT, tmp_path / "store")
    assert len(found) == 16
    assert set(found) == {"compiled", "loaded"}
    assert found.count("compiled") == len(keys_in(tmp_path / "store")) == 2


# What is loaded is what was compiled


def test_a_loaded_artifact_computes_the_same(tmp_path: Path):
    x = torch.randn(4, 3)
    assert run(model, tmp_path, x) == ["compiled"]
    assert run(model, tmp_path, x) == ["loaded"]


def test_a_loaded_backward_gives_the_same_gradients(tmp_path: Path):
    x = torch.randn(4, 3, requires_grad=True)
    assert run(model, tmp_path, x) == ["compiled"]
    assert run(model, tmp_path, x) == ["loaded"]
    with torch.no_grad():
        assert run(model, tmp_path, x) == ["compiled"]  # an inference is another artifact
    assert len(keys_in(tmp_path)) == 2


def test_a_loaded_artifact_writes_to_what_it_is_given(tmp_path: Path):
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0] = 7
        return x.sum(0)

    for origin in ("compiled", "loaded"):
        assert run(writes, tmp_path, torch.ones(4, 3)) == [origin]


def test_a_loaded_symbolic_artifact_keeps_its_conditions(tmp_path: Path):
    """A compiler decides things by a size, such as whether a sum is over one row, and the capture knows nothing of it."""

    def splits(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor_split(x * 2, 2)[0].sum(0)

    found = []
    for _ in range(2):
        compiled = stored(splits, tmp_path, sizes={}, axes={"rows": "x.shape[0]"}, on_miss="dynamic")
        for rows in (6, 8, 7, 9, 2, 3):
            x = torch.arange(rows * 2.0).reshape(rows, 2)
            assert_equals_eager(compiled, splits, (x,), (x.clone(),))
        graphs = compiled.explain().graphs
        buckets = [[(bucket.conditions, bucket.calls) for bucket in graph.buckets] for graph in graphs]
        found.append((set(origins(compiled)), buckets))
    assert [origin for origin, _ in found] == [{"compiled"}, {"loaded"}]
    assert found[0][1] == found[1][1]
    # Of a graph that is captured once, some calls broke the conditions of the artifact that was there, and got another.
    assert any(len(buckets) > 1 and all(conditions and calls for conditions, calls in buckets) for buckets in found[0][1])


# What does not mix


def with_constant(constant: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * constant + 1

    return scaled


def test_constants_that_differ_are_different_artifacts(tmp_path: Path):
    x = torch.ones(4)
    for constant in (2.0, 3.0, 2, True, 0.0, -0.0):
        assert run(with_constant(constant), tmp_path, x) == ["compiled"], constant
    for constant in (2.0, 3.0, 2, True, 0.0, -0.0):
        assert run(with_constant(constant), tmp_path, x) == ["loaded"], constant


def test_settings_that_a_compiler_looks_at_are_part_of_the_key(tmp_path: Path):
    def fills(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(4) * 0.5

    x = torch.ones(4)
    assert run(fills, tmp_path, x) == ["compiled"]
    assert run(fills, tmp_path, x, inductor_options={"max_fusion_size": 7}) == ["compiled"]
    assert run(fills, tmp_path, x, inductor_options={"max_fusion_size": 7}) == ["loaded"]
    torch.set_default_dtype(torch.float64)
    try:
        assert run(fills, tmp_path, x) == ["compiled"]
    finally:
        torch.set_default_dtype(torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert run(fills, tmp_path, x) == ["compiled"]
    finally:
        torch.set_num_threads(threads)
    assert run(fills, tmp_path, x) == ["loaded"]


def test_another_machine_or_torch_is_another_key():
    here = environment({})
    keys = {here.key_of("form")}
    for name in here.facts:
        keys.add(replace(here, facts={**here.facts, name: "other"}).key_of("form"))
    assert len(keys) == 1 + len(here.facts)
    assert {"torch", "processor", "python", "system"} <= here.facts.keys()


OPS = """
import json, sys
import torch, fxbucket
torch.set_num_threads(1)
factor = float(sys.argv[2])
library = torch.library.Library("store_tests", "DEF")
library.define("scale(Tensor x) -> Tensor")
library.impl("scale", lambda x: x * factor, "CompositeImplicitAutograd")

@torch.library.custom_op("store_tests::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

same.register_fake(torch.empty_like)
same.register_autograd(lambda ctx, grad: grad * factor)

def decomposed(x):
    return torch.ops.store_tests.scale(x) + 1

def with_backward(x):
    return same(x) + 1

found = []
for function, grad in ((decomposed, False), (with_backward, True), (with_backward, False)):
    compiled = fxbucket.compile(function, sizes={"x.shape[0]": [4]}, on_miss="eager", cache=sys.argv[1], workers=2)
    x = torch.ones(4, requires_grad=grad)
    result = compiled(x)
    assert torch.equal(result, torch.full((4,), factor + 1 if function is decomposed else 2.0)), result
    if grad:
        result.sum().backward()
        assert torch.equal(x.grad, torch.full((4,), factor)), x.grad
    ((artifact,),) = [bucket.artifacts for bucket in compiled.explain().graphs[0].buckets]
    found += [artifact.origin, artifact.note.split(",")[0]]
print(json.dumps(found))
"""


def test_an_op_that_is_defined_anew_is_never_served_by_an_older_artifact(tmp_path: Path):
    inlined = [
        "compiled", "calls store_tests::scale", "compiled", "calls store_tests::same"
    ]  # fmt: skip
    assert in_child(OPS, tmp_path, 2) == [*inlined, "compiled", ""]
    assert in_child(OPS, tmp_path, 3) == [*inlined, "loaded", ""]


# A store that fails


def payload_of(folder: Path) -> Path:
    (facts,) = Store(folder).entries()
    return facts.path


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "a flipped bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "empty": lambda path: path.write_bytes(b""),
    "older": lambda path: path.write_bytes(path.read_bytes().replace(b"artifact 1", b"artifact 0", 1)),
    "nothing that torch reads": lambda path: path.write_bytes(seal(path.stem, Stored(b"junk"))),
    "conditions that nobody reads": lambda path: path.write_bytes(seal(path.stem, Stored(b"", {}, {"conditions": ["1 +"]}))),
    "open to others": lambda path: path.chmod(0o666),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    assert run(model, folder, torch.randn(4, 3)) == ["compiled"]
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_compiled_again_with_one_warning(filled: Path, damage: str):
    DAMAGES[damage](payload_of(filled))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(model, filled, torch.randn(4, 3)) == ["compiled"]
    (told,) = the_warnings(caught)
    assert "cannot be used and is compiled again" in told
    assert run(model, filled, torch.randn(4, 3)) == ["loaded"]


def test_a_folder_that_is_refused_means_one_warning_and_no_store(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.warns(FxbucketWarning, match="artifacts are not stored.*chmod") as caught:
        assert run(model, tmp_path, torch.randn(4, 3)) == ["compiled"]
    assert len(the_warnings(list(caught))) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of its own that holds one artifact of these tests at most."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k,mode=700", "tmpfs", tmp_path], capture_output=True)
    if made.returncode:
        pytest.skip("this machine does not let root mount a file system")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def other(x: torch.Tensor) -> torch.Tensor:
    return torch.abs(x) - 2


@needs_mount
def test_a_store_that_can_only_be_read_serves_and_one_warning_tells_that_it_does_not_grow(mounted: Path):
    assert run(model, mounted, torch.randn(4, 3)) == ["compiled"]
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(model, mounted, torch.randn(4, 3)) == ["loaded"]
        assert the_warnings(caught) == []
        assert run(other, mounted, torch.randn(4, 3), sizes={"x.shape[0]": [4, 8]}) == ["compiled"] * 2
    (told,) = the_warnings(caught)
    assert "Read-only file system" in told


@needs_mount
def test_a_full_disk_means_one_warning(mounted: Path):
    (mounted / "much").write_bytes(bytes(380 * 1024))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(model, mounted, torch.randn(4, 3), sizes={"x.shape[0]": [4, 8]}) == ["compiled"] * 2
    (told,) = the_warnings(caught)
    assert "No space left" in told
    assert keys_in(mounted) == set()
