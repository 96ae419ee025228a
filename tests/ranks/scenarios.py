"""What two ranks do together; run once on each rank, in one order. Leaves what each scenario raised in a file of the rank.

Usage: ``python scenarios.py FOLDER BACKEND`` with torchrun's environment variables.
"""

from __future__ import annotations

import copy
import datetime
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import fxbucket
from fxbucket.passes import at_collective, at_op
from fxbucket.passes.errors import BoundaryError, CompileError, MissingRankError, OptionError, RankMismatchError

DEVICE = torch.device("cpu")
SIZES = {"sizes": {"x.shape[0]": [8, 16]}, "compiler": "eager", "agree_timeout": 60}
SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def rank() -> int:
    return dist.get_rank()


def rows(number: int, seed: int = 0, width: int = 16) -> torch.Tensor:
    """Rows of small ints, so that sums in any order are the same; equal on all ranks."""
    generator = torch.Generator().manual_seed(number * 100 + seed)
    return torch.randint(-4, 5, (number, width), generator=generator).float().to(DEVICE)


def raised(kind: type[Exception], call: Callable[[], Any], *texts: str) -> None:
    """Check that a call raises an error of a kind, and what the message holds."""
    with pytest.raises(kind) as error:
        call()
    missing = [text for text in texts if text not in str(error.value)]
    assert not missing, f"{missing} not in: {error.value}"


def close(found: torch.Tensor, expected: torch.Tensor, name: str = "") -> None:
    """Sums over ranks are made in another order, and on GPUs by other kernels."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, num_blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def stacks(sequence: bool = False) -> tuple[nn.Module, nn.Module]:
    """Return a whole model, and the same with its blocks shared by the ranks; with ``sequence`` their rows too."""
    torch.manual_seed(0)
    plain = Stack(2 if sequence else 3).to(DEVICE)
    shared = copy.deepcopy(plain)
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    plan: dict[str, Any] = {}
    for number in range(len(plain.blocks)):
        name = f"blocks.{number}"
        plan[f"{name}.up"] = ColwiseParallel(input_layouts=Shard(0)) if sequence else ColwiseParallel()
        plan[f"{name}.down"] = RowwiseParallel(output_layouts=Shard(0) if sequence else Replicate())
        if sequence:
            plan[f"{name}.norm"] = SequenceParallel(sequence_dim=0)
    if sequence:
        plan["blocks.0"] = PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=True
        )
    return plain, parallelize_module(shared, mesh, plan)


def summed(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) * 2
    dist.all_reduce(y)
    return y + 1


def counted(x: torch.Tensor) -> torch.Tensor:
    """The collective does not see the rows."""
    total = torch.full((4,), 2.0, device=x.device)
    dist.all_reduce(total)
    return torch.relu(x) * total.sum()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


@scenario
def tensor_parallel_models_equal_the_whole_one() -> None:
    for cuts in ([], [at_collective()]):
        plain, shared = stacks()
        compiled = fxbucket.compile(shared, **{**SIZES, "sizes": {"x.shape[0]": [8]}}, splitting_ops=cuts)
        with torch.no_grad():
            for number in (8, 12, 8):
                close(compiled(rows(number)), plain(rows(number)))
        assert compiled.explain().calls() == {"x.shape[0]=8": 2, "dynamic": 1}
        (program,) = compiled.programs
        if cuts:
            assert [piece.is_boundary for piece in program.pieces] == [False, True] * 3 + [False]
            assert program.same, "equal blocks share an artifact"


@scenario
def gradients_of_sequence_parallel_models_equal_those_of_the_whole_one() -> None:
    plain, shared = stacks(sequence=True)
    options = {**SIZES, "sizes": {"x.shape[0]": [8]}, "splitting_ops": [at_collective()]}
    compiled = fxbucket.compile(shared, **options, agree="check")
    for number in (8, 12):
        own, full = rows(number).requires_grad_(), rows(number).requires_grad_()
        plain.zero_grad(), shared.zero_grad()
        result = compiled(own)
        expected = plain(full)
        close(result, expected.chunk(dist.get_world_size())[rank()])
        result.square().sum().backward()
        expected.square().sum().backward()
        close(own.grad, full.grad)
        for (name, mine), (_, other) in zip(shared.named_parameters(), plain.named_parameters(), strict=True):
            grad = mine.grad.full_tensor() if isinstance(mine.grad, DTensor) else mine.grad
            close(grad, other.grad, name)
    assert compiled.explain().calls() == {"x.shape[0]=8": 2, "dynamic": 2}
    # Parts of 7 and 6 rows: uncompiled, the ranks would wait for each other.
    raised(RankMismatchError, lambda: compiled(rows(13)), "rank 0: x.shape[0]=13", "[7, 16]", "[6, 16]")


@scenario
def distributed_arguments_and_results_stay_distributed() -> None:
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    compiled = fxbucket.compile(lambda x: torch.relu(x) * 2 + 1, **SIZES)
    for number in (8, 16, 12):
        x = distribute_tensor(rows(number), mesh, [Shard(0)])
        result = compiled(x)
        assert isinstance(result, DTensor)
        assert torch.equal(result.full_tensor(), torch.relu(rows(number)) * 2 + 1)


@scenario
def collectives_are_cut_out_with_what_waits_for_them() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        y, z = torch.relu(x) * 2, x.cos()
        dist.all_reduce(y)
        gathered = z.new_empty(2 * z.shape[0], z.shape[1])
        dist.all_gather_into_tensor(gathered, z)
        return y + gathered.view(2, -1, 16).sum(0)

    reduced = "_c10d_functional::all_reduce"
    for cuts, found in (
        ([], 0), ([at_collective()], 2), ([reduced], 1), ([at_op("_c10d_functional::wait_tensor")], 2),
        ([at_collective() & at_op(reduced)], 1), ([at_collective() | at_op("torch.cos")], 3),
    ):  # fmt: skip
        torch.compiler.reset()
        compiled = fxbucket.compile(two, **SIZES, splitting_ops=cuts)
        for number in (8, 12):
            close(compiled(rows(number)), two(rows(number)))
        (program,) = compiled.programs
        boundaries = [piece for piece in program.pieces if piece.is_boundary]
        assert len(boundaries) == found, program
        if cuts and str(cuts[0]) == "at_collective()":
            assert all("wait_tensor" in str(piece.body[-1].target) for piece in boundaries), program
    alone = fxbucket.compile(doubled, **SIZES, splitting_ops=[at_collective()])
    raised(BoundaryError, lambda: alone(rows(8)), "no collective")


@scenario
def calls_with_collectives_are_padded_where_all_ranks_pad_alike() -> None:
    compiled = fxbucket.compile(summed, **SIZES, on_miss="pad", agree="check")
    for number in (12, 5, 16):
        assert torch.equal(compiled(rows(number)), summed(rows(number)))
    assert compiled.explain().calls() == {"x.shape[0]=8": 1, "x.shape[0]=16": 2}


@scenario
def the_largest_sizes_are_run_by_all_ranks() -> None:
    compiled = fxbucket.compile(counted, **SIZES, on_miss="pad", agree="max")
    chosen = random.Random(0)
    for seed in range(20):
        sizes = [chosen.randint(2, 20) for _ in range(2)]
        x = rows(sizes[rank()], seed, 4)
        assert torch.equal(compiled(x), torch.relu(x) * 16), sizes
    found: list[Any] = [None, None]
    dist.all_gather_object(found, compiled.explain().calls())
    assert found[0] == found[1], "every rank ran the same buckets equally often"
    assert set(found[0]) == {"x.shape[0]=8", "x.shape[0]=16", "dynamic"}


@scenario
def rows_that_would_meet_padding_of_another_rank_are_an_error_on_every_rank() -> None:
    compiled = fxbucket.compile(summed, **SIZES, on_miss="pad", agree="max")
    texts = ("rank 0: x.shape[0]=5", "rank 1: x.shape[0]=8", "_c10d_functional::all_reduce", "row_safe_ops")
    raised(RankMismatchError, lambda: compiled(rows((5, 8)[rank()])), *texts)
    assert torch.equal(compiled(rows(8)), summed(rows(8))), "the next call is served"
    promised = fxbucket.compile(summed, **SIZES, on_miss="pad", agree="max", row_safe_ops=["_c10d_functional::all_reduce"])
    assert promised(rows((5, 8)[rank()])).shape[0] == (5, 8)[rank()]
    assert promised.explain().calls()["x.shape[0]=8"] == 1


@scenario
def sizes_that_differ_are_an_error_on_every_rank() -> None:
    compiled = fxbucket.compile(counted, **SIZES, agree="check")
    compiled(rows(8, width=4))
    texts = ("rank 0: x.shape[0]=5;", "rank 1: x.shape[0]=8;")
    raised(RankMismatchError, lambda: compiled(rows((5, 8)[rank()], width=4)), *texts)
    # A size of 1 is captured on its own, which the other rank does not take part in.
    raised(RankMismatchError, lambda: compiled(rows((1, 8)[rank()], width=4)), "rank 0: it captures graph 1", "rank 1: x")
    compiled(rows(16, width=4))
    assert compiled.explain().calls() == {"x.shape[0]=8": 1, "x.shape[0]=16": 1}


@scenario
def models_and_options_that_differ_are_an_error_on_every_rank() -> None:
    other = fxbucket.compile((summed, counted)[rank()], **SIZES, agree="max")
    raised(RankMismatchError, lambda: other(rows(8, width=4)), "rank 1 in", "collectives", "ops")
    other = fxbucket.compile(counted, **SIZES, agree="check", on_miss=("error", "dynamic")[rank()])
    raised(RankMismatchError, lambda: other(rows(8, width=4)), "option on_miss (dynamic; rank 0: error)")


@scenario
def a_rank_that_cannot_compile_is_told_to_the_others() -> None:
    def compiler(module: Any, inputs: Any) -> Any:
        if rank() == 1:
            raise ValueError("no such kernel")
        return module.forward

    compiled = fxbucket.compile(counted, **{**SIZES, "compiler": compiler}, agree="check")
    kind = CompileError if rank() else RankMismatchError
    raised(kind, lambda: compiled(rows(8, width=4)), "no such kernel")


@scenario
def a_rank_that_cannot_compile_at_a_later_call_is_told_before_the_others_wait_in_a_collective() -> None:
    broken = False

    def compiler(module: Any, inputs: Any) -> Any:
        if broken and rank() == 1:
            raise ValueError("no such kernel")
        return module.forward

    options = {**SIZES, "compiler": compiler, "compile_when": "lazily"}
    kind = CompileError if rank() else RankMismatchError
    # By options: sizes on the two ranks of calls that compile something, each a pinned bucket, a padded one, or a miss.
    cases: list[tuple[dict[str, Any], list[tuple[int, int]]]] = [
        ({"agree": "check"}, [(16, 16), (5, 5)]),
        ({"agree": "max", "on_miss": "pad"}, [(16, 16), (12, 5), (5, 12), (12, 12), (30, 30), (30, 20)]),
        ({"agree": "check", "sizes": "seen"}, [(16, 16)]),
        ({"agree": "check", "ranges": {"x.shape[0]": [(20, 40)]}}, [(30, 30)]),
    ]
    for given, sizes in cases:
        for pair in sizes:
            compiled = fxbucket.compile(counted, **{**options, **given})
            broken = False
            compiled(rows(8, width=4))
            x, broken = rows(pair[rank()], width=4), True
            raised(kind, lambda compiled=compiled, x=x: compiled(x), "no such kernel")
            compiled(rows(8, width=4))
            broken = False
            for _ in range(2):
                assert torch.equal(compiled(x), torch.relu(x) * 16), (given, pair)
            found: list[Any] = [None, None]
            dist.all_gather_object(found, compiled.explain().calls())
            assert found[0] == found[1], (given, pair, found)


@scenario
def ranks_outside_of_the_group_are_not_asked() -> None:
    groups = [dist.new_group([number]) for number in range(2)]
    compiled = fxbucket.compile(doubled, **SIZES, agree="check", agree_group=groups[rank()])
    assert compiled(rows((8, 16)[rank()])).shape[0] == (8, 16)[rank()]
    # What torch gives for a group that a rank is not in is no group.
    raised(OptionError, lambda: fxbucket.compile(doubled, agree="max", agree_group=groups[1 - rank()]), "agree_group")


@scenario
def inductor_compiles_collectives_inside_pieces() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", fxbucket.FxbucketWarning)
        compiled = fxbucket.compile(summed, sizes={"x.shape[0]": [8]}, on_miss="error", agree="check", workers=2)
        for seed in range(2):
            assert torch.equal(compiled(rows(8, seed)), summed(rows(8, seed)))


@scenario
def cuda_graphs_hold_collectives() -> None:
    if DEVICE.type != "cuda":
        return
    for mode, graphs in (("full", "1 graph"), ("piecewise", "4 graphs"), ("auto", "1 graph")):
        plain, shared = stacks()
        compiled = fxbucket.compile(shared, **SIZES, splitting_ops=[at_collective()], cudagraphs=mode, agree="check")
        kept = []
        with torch.no_grad():
            compiled.warmup(rows(8))
            for seed in range(6):
                x = rows((8, 16)[seed % 2], seed)
                result = compiled(x)
                close(result, plain(x))
                kept.append((result, result.clone()))
        assert all(torch.equal(one, other) for one, other in kept)
        (graph,) = compiled.explain().graphs
        states = {bucket.bucket: bucket.recording for bucket in graph.buckets if bucket.recording}
        assert len(states) == 2, states
        assert all(graphs in state for state in states.values()), states


@scenario
def cuda_graphs_leave_out_pieces_between_a_collective_and_its_end() -> None:
    if DEVICE.type != "cuda":
        return
    compiled = fxbucket.compile(summed, **SIZES, splitting_ops=["_c10d_functional::all_reduce"], cudagraphs="piecewise")
    with torch.no_grad():
        for seed in range(5):
            assert torch.equal(compiled(rows(8, seed)), summed(rows(8, seed)))


@scenario
def a_rank_that_does_not_come_is_named_in_time() -> None:
    compiled = fxbucket.compile(counted, **{**SIZES, "agree_timeout": 3}, agree="check")
    compiled(rows(8, width=4))
    began = time.monotonic()
    if rank() == 1:
        time.sleep(8)
        raised(MissingRankError, lambda: compiled(rows(8, width=4)))
    else:
        raised(MissingRankError, lambda: compiled(rows(8, width=4)), "rank 1")
        raised(MissingRankError, lambda: compiled(rows(8, width=4)), "rank 1")
    assert time.monotonic() - began < 30
    dist.barrier()


@scenario
def a_rank_that_is_killed_is_named_in_time() -> None:
    compiled = fxbucket.compile(counted, **{**SIZES, "agree_timeout": 20}, agree="max")
    compiled(rows(8, width=4))
    if rank() == 1:
        return  # and ends, without a word: this is the last scenario
    began = time.monotonic()
    raised(MissingRankError, lambda: compiled(rows(8, width=4)), "rank 1")
    # Nobody waits for it again.
    raised(MissingRankError, lambda: compiled(rows(8, width=4)), "rank 1")
    assert time.monotonic() - began < 60


def main(folder: Path, backend: str) -> None:
    global DEVICE
    if backend == "nccl":
        DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(DEVICE)
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    results: dict[str, str] = {}
    for name, function in SCENARIOS.items():
        torch.compiler.reset()
        began = time.monotonic()
        try:
            function()
            results[name] = ""
        except BaseException:
            results[name] = traceback.format_exc()
        print(f"{name}: {time.monotonic() - began:.1f} s {results[name][-2000:]}", flush=True)
        (folder / f"rank_{rank()}.json").write_text(json.dumps(results), encoding="utf-8")
    # No farewell: the process group would wait for a rank that is gone.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
