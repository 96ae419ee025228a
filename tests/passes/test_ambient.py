from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import fxbucket
from fxbucket.passes.ambient import Ambient


@pytest.fixture(autouse=True)
def switches_as_they_were() -> Iterator[None]:
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)


def test_the_switches_of_now_are_restored_later_and_left_again():
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        then = Ambient.now()
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    before = Ambient.now()
    assert before != then
    with then.restored():
        assert Ambient.now() == then
        assert not torch.is_grad_enabled()
        assert torch.empty(1).dtype is torch.float64
        assert (torch.ones(2, 2, dtype=torch.float32) @ torch.ones(2, 2, dtype=torch.float32)).dtype is torch.bfloat16
    assert Ambient.now() == before


def test_the_switches_are_left_after_an_error_too():
    before = Ambient.now()

    def fails() -> None:
        with Ambient(grad_enabled=False, default_dtype=torch.float64).restored():
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fails()
    assert Ambient.now() == before


def test_a_capture_remembers_the_switches_of_its_call():
    x = torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = Ambient.now()
        program = fxbucket.capture(lambda x: x @ x.t(), x, dynamic=["x.shape[0]"])
    assert program.capture.ambient == expected
    assert not program.capture.grad_enabled


@pytest.mark.parametrize("compile_when", ["first_call", "lazily"])
def test_a_bucket_that_is_compiled_later_finds_the_switches_of_the_capture(compile_when: str):
    """warmup() compiles the second size outside of autocast, which the capture was in."""
    compiled = fxbucket.compile(
        lambda x: x @ x.t(), sizes={"x.shape[0]": [4, 8]}, compiler="aot_eager", compile_when=compile_when
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(torch.randn(4, 3)).dtype is torch.bfloat16
    for dispatcher_program in compiled.programs:
        assert dispatcher_program.capture.ambient.autocast[0].enabled
    compiled.warmup(torch.randn(4, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = torch.randn(8, 3)
        assert torch.equal(compiled(x), x @ x.t())
