"""Copies with padding: the values of plain torch, nothing written beside them, and one launch for all.

On a CPU torch's own copies are tested in this process, and the kernel in one with Triton's interpreter, which runs this
very file: the interpreter is chosen for a whole process, and stays.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from fxbucket.kernels import Job, Slot, copy_and_pad, prepare
from fxbucket.passes.errors import CopyError
from tests.fxbucket.fill_jobs import JobSpec, bits, job_specs, plainly, random_bits

ROOT = Path(__file__).resolve().parents[2]
IS_INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def slots_of(jobs: list[Job]) -> list[Slot]:
    return [Slot(destination, tuple(source.shape), source.stride(), fill) for source, destination, fill in jobs]


def is_one_launch(jobs: list[Job]) -> bool:
    return prepare(slots_of(jobs)).is_one_launch


def mixed_jobs(device: str) -> list[Job]:
    """Eight inputs as a model has them: ids, masks, caches, half-precision rows, a number."""
    sizes = [(60, 2048), (60,), (1, 60), (), (2, 60, 8, 64), (60, 33), (60, 4), (7, 60)]
    larger = [(64, 2048), (64,), (1, 64), (), (2, 64, 8, 64), (64, 33), (64, 4), (8, 64)]
    dtypes = [
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.float32,
        torch.float16,
        torch.float8_e4m3fn,
        torch.complex128,
        torch.int32,
    ]
    return [
        (
            random_bits(torch.Size(size).numel(), dtype, device).view(size),
            random_bits(torch.Size(large).numel(), dtype, device).view(large),
            1 - position % 2,
        )
        for position, (size, large, dtype) in enumerate(zip(sizes, larger, dtypes, strict=True))
    ]


def assert_plain(jobs: list[Job]) -> None:
    """Copy, and compare all destinations with what plain torch makes of them."""
    wanted = [plainly(job, job[1].clone().flatten()).view(job[1].shape) for job in jobs]
    copy_and_pad(jobs)
    assert [position for position, job in enumerate(jobs) if not torch.equal(bits(job[1]), bits(wanted[position]))] == []


@pytest.mark.parametrize("device", DEVICES)
@given(specs=st.lists(job_specs(), min_size=1, max_size=9))
def test_destinations_hold_what_plain_torch_writes_and_nothing_beside_them_changes(device: str, specs: list[JobSpec]):
    torch.manual_seed(0)
    built = [spec.build(device) for spec in specs]
    wanted = [plainly(job, memory) for job, memory in built]
    copy_and_pad([job for job, _ in built])
    for spec, (_, memory), expected in zip(specs, built, wanted, strict=True):
        assert torch.equal(bits(memory), bits(expected)), spec


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_of_a_model_are_filled_together(device: str):
    jobs = mixed_jobs(device)
    assert is_one_launch(jobs) is (device == "cuda" or IS_INTERPRETED)
    assert_plain(jobs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("number", [63, 64, 65, 130])
def test_any_number_of_jobs_is_one_call(device: str, number: int):
    jobs: list[Job] = [
        (torch.full((place % 5,), place, device=device), torch.zeros(place % 7 + 5, dtype=torch.int64, device=device), -1)
        for place in range(number)
    ]
    assert is_one_launch(jobs) is (device == "cuda" or IS_INTERPRETED)
    assert_plain(jobs)


@pytest.mark.parametrize("device", DEVICES)
def test_a_source_may_lie_at_any_element(device: str):
    """The words that a slot allows are wider than what some sources are aligned to."""
    destination = torch.zeros(5000, dtype=torch.bfloat16, device=device)  # several blocks, also of the widest words
    filler = prepare([Slot(destination, (4960,), (1,), 3)])
    memory = random_bits(5000, torch.bfloat16, device)
    for offset in range(9):
        source = memory[offset : offset + 4960]
        destination.fill_(-1)
        filler([source])
        assert torch.equal(bits(destination[:4960]), bits(source)), offset
        assert bool((destination[4960:] == 3).all()), offset


@pytest.mark.parametrize("device", DEVICES)
def test_several_blocks_and_several_dims(device: str):
    source = torch.randn(5, 37, 90, device=device).transpose(0, 1)
    assert_plain([(source, torch.zeros(40, 7, 96, device=device), 0), (source, torch.zeros(37, 5, 90, device=device), 0)])


@pytest.mark.parametrize("device", DEVICES)
def test_a_source_may_lie_where_it_goes(device: str):
    destination = torch.arange(40.0, device=device)
    copy_and_pad([(destination[:30], destination, 7)])
    assert torch.equal(destination.cpu(), torch.cat([torch.arange(30.0), torch.full((10,), 7.0)]))


@pytest.mark.parametrize("device", DEVICES)
def test_no_gradient_is_recorded(device: str):
    source, destination = torch.ones(3, requires_grad=True, device=device), torch.zeros(4, device=device)
    copy_and_pad([(source * 2, destination, 1)])
    assert destination.tolist() == [2, 2, 2, 1]
    assert not destination.requires_grad


def test_more_dims_than_the_kernel_walks_are_left_to_torch():
    source = torch.randn(*[3] * 10)
    job: Job = (source, torch.zeros([4] * 10), 1)
    assert not is_one_launch([job])
    assert_plain([job])


def test_nothing_to_write_is_nothing_done():
    copy_and_pad([])
    copy_and_pad([(torch.zeros(0, 3), torch.zeros(0, 4), 1)])


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ((torch.zeros(3), torch.zeros(3, dtype=torch.int64), 0), r"dtype is torch.float32, the destination's torch.int64"),
        ((torch.zeros(3, device="meta"), torch.zeros(3), 0), r"device is meta, the destination's cpu"),
        ((torch.zeros(3), torch.zeros(3, 1), 0), r"the source has 1 dims, the destination 2"),
        ((torch.zeros(3, 5), torch.zeros(3, 4), 0), r"the source has size 5 in dim 1, the destination 4"),
        ((torch.zeros(3), torch.zeros(1).expand(4), 0), r"expanded in dim 0"),
        ((torch.zeros(3, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8), 300), r"torch.uint8 does not hold .* 300"),
        ((torch.zeros(3), torch.zeros(4), 1j), r"torch.float32 does not hold the fill 1j"),
        ((torch.zeros(3, dtype=torch.cfloat), torch.zeros(4, dtype=torch.cfloat).conj(), 0), r"lazy conjugate"),
    ],
)
def test_tensors_that_do_not_fit_are_named_and_nothing_is_written(job: Job, message: str):
    first = torch.zeros(4)
    with pytest.raises(CopyError, match="job 1: .*" + message):
        copy_and_pad([(torch.ones(3), first, 0), job])
    assert first.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.zeros(4, 2), r"sizes are \(4, 2\), and its slot was prepared for \(2, 4\)"),
        (torch.zeros(4, 2).t(), r"strides are \(1, 2\), and its slot was prepared for \(4, 1\)"),
        (torch.zeros(2, 4, dtype=torch.float64), r"dtype are torch.float64"),
        (torch.zeros(2, 4, device="meta"), r"device are meta"),
        (torch.zeros(8, dtype=torch.cfloat).conj().imag[::1].as_strided((2, 4), (4, 1)), r"lazy conjugate or negative"),
    ],
)
def test_a_filler_refuses_what_it_was_not_prepared_for(source: torch.Tensor, message: str):
    filler = prepare([Slot(torch.zeros(3, 4), (2, 4), (4, 1))])
    with pytest.raises(CopyError, match="job 0: .*" + message):
        filler([source])


@pytest.mark.skipif(IS_INTERPRETED, reason="this is the process that it starts")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_all_of_this_holds_in_triton_s_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not gpu", "-p", "no:cacheprovider", str(Path(__file__))]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_importing_fxbucket_does_not_import_triton():
    command = [sys.executable, "-c", "import sys, fxbucket, fxbucket.kernels; assert 'triton' not in sys.modules"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def kernels_of(events: profile) -> list[str]:
    """Return the names of what a GPU ran, copies between host and device and fills by the driver too."""
    return [event.name for event in events.events() if event.device_type == torch.autograd.DeviceType.CUDA]


@pytest.mark.gpu
def test_eight_inputs_are_one_launch():
    jobs = mixed_jobs("cuda")
    filler = prepare(slots_of(jobs))
    sources = [source for source, _, _ in jobs]
    filler(sources)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as events:
        filler(sources)
        torch.cuda.synchronize()
    assert kernels_of(events) == ["fill"]


@pytest.mark.gpu
def test_a_filler_can_be_recorded_and_runs_on_the_current_stream():
    destination, source = torch.zeros(1000, device="cuda"), torch.ones(700, device="cuda")
    filler = prepare([Slot(destination, (700,), (1,), 5)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        filler([source])
    source.fill_(2)
    graph.replay()
    assert torch.equal(destination, torch.nn.functional.pad(source, (0, 300), value=5))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        source.fill_(3)
        filler([source])
    stream.synchronize()
    assert torch.equal(destination, torch.nn.functional.pad(source, (0, 300), value=5))


@pytest.mark.gpu
def test_more_addresses_than_arguments_can_be_recorded():
    sources = [torch.full((3,), place, device="cuda") for place in range(70)]
    destinations = [torch.zeros(4, dtype=torch.int64, device="cuda") for _ in sources]
    filler = prepare([Slot(destination, (3,), (1,), -1) for destination in destinations])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        filler(sources)
    for destination in destinations:
        destination.zero_()
    graph.replay()
    assert [destination.tolist() for destination in destinations] == [[place] * 3 + [-1] for place in range(70)]


@pytest.mark.gpu
def test_more_words_than_32_bits_count():
    number = 2**31 + 5
    source = torch.arange(251, dtype=torch.uint8, device="cuda").repeat(number // 251 + 1)[: number - 2]
    destination = torch.empty(number, dtype=torch.uint8, device="cuda")
    for memory in (source, source[1:]):
        copy_and_pad([(memory, destination, 9)])
        assert torch.equal(destination[: memory.numel()], memory)
        assert destination[memory.numel() :].tolist() == [9] * (number - memory.numel())
