"""What two ranks do to compare data parallelism with eager's on the same ranks; test_data_parallel.py runs it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import fxbucket
from fxbucket.data_parallel_compat import without_ddp_splitting
from fxbucket.passes.errors import CaptureError, StoreError
from fxbucket.torch_compat import original_error
from tests.equality import assert_same_tree
from tests.ranks.spawned import WORLD, outcomes
from tests.training.twins import Stack, served

OPTIONS: dict[str, Any] = {"sizes": {"x.shape[0]": [4, 6]}, "splitting_ops": ["aten::sigmoid"], "compiler": "eager"}
WITH_AUTOGRAD = OPTIONS | {"compiler": "aot_eager"}
"""Each piece is one node to autograd, as with Inductor; that takes longer, so not every check has it."""
WIDE = 320
"""Wide enough that DDP has several buckets of gradients of 1 MB, its smallest."""

Sync = Callable[[bool], contextlib.AbstractContextManager[Any]]


def here() -> torch.device:
    """Return the device of this rank."""
    return torch.device("cuda", dist.get_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


def model(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return Stack(2, width).double().to(here())


def rows_of(number: int, width: int = 8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, width, generator=generator, dtype=torch.float64).to(here())


def lengths(rank: int, steps: int) -> list[int]:
    """Each rank has its own: some pinned, one of each rank a miss, in an order of its own."""
    drawn = [4, 6, *random.Random(rank).choices([4, 6], k=steps - 2)]
    drawn[2 + rank % 2 : 2 + rank % 2] = [9]
    return drawn[:steps]


def full(value: torch.Tensor | None) -> torch.Tensor | None:
    held = value.full_tensor() if isinstance(value, DTensor) else value
    return None if held is None else held.detach().clone()


def named(root: nn.Module, read: Callable[[nn.Parameter], Any]) -> dict[str, Any]:
    return {name.removeprefix("module."): read(parameter) for name, parameter in root.named_parameters()}


def trained(
    root: Any, call: Callable[..., Any], rank: int, width: int = 8, steps: int = 4, every: int = 1, sync: Sync | None = None
) -> list[Any]:
    """Train and return each step's results, gradients of the argument and of parameters, and the parameters at the end.

    Args:
        root: whose parameters are trained.
        call: what is called.
        rank: this process's, which has lengths and rows of its own.
        width: of the rows.
        steps: how many calls.
        every: the calls that gradients are added up over before the optimizer's step.
        sync: gives the context of a call by whether its gradients are to be exchanged.
    """
    optimizer = torch.optim.AdamW(root.parameters(), lr=1e-2)
    found: list[Any] = []
    for step, rows in enumerate(lengths(rank, steps)):
        x = rows_of(rows, width, 100 * rank + step).requires_grad_()
        is_last = (step + 1) % every == 0
        with sync(is_last) if sync is not None else contextlib.nullcontext():
            result = call(x)
            result.square().mean().backward()
        found.append([result.detach(), x.grad])
        if is_last:
            found.append(named(root, lambda parameter: full(parameter.grad)))
            optimizer.step()
            optimizer.zero_grad()
    return [*found, named(root, full)]


def agree(ours: list[Any], theirs: list[Any], tolerance: float = 1e-10) -> None:
    assert_same_tree(ours, theirs, "training", tolerance, strides=False)


def captured_once(*compiled: Any, calls: int) -> None:
    """Every call was served by a bucket of one capture: nothing was captured or compiled after the warm-up."""
    for each in compiled:
        assert len(each.programs) == 1
        assert sum(served(each).values()) == calls
        assert set(served(each)) - {"dynamic"} == {
            name.replace("x", spelled(each)) for name in ("x.shape[0]=4", "x.shape[0]=6")
        }


def spelled(compiled: Any) -> str:
    (axis,) = compiled.programs[0].axes
    return str(axis.name).removesuffix(".shape[0]")


# DistributedDataParallel


def ddp(module: nn.Module, **settings: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=1, **settings)


def ddp_of_compiled(rank: int) -> None:
    compiled = fxbucket.compile(model(WIDE), **WITH_AUTOGRAD)
    ours, theirs = ddp(compiled), ddp(model(WIDE))
    agree(trained(ours, ours, rank, WIDE), trained(theirs, theirs, rank, WIDE))
    captured_once(compiled, calls=4)


def compiled_ddp(rank: int) -> None:
    ours, theirs = ddp(model(WIDE)), ddp(model(WIDE))
    compiled = fxbucket.compile(ours, **OPTIONS | {"sizes": {"inputs[0].shape[0]": [4, 6]}})
    agree(trained(compiled, compiled, rank, WIDE), trained(theirs, theirs, rank, WIDE))
    captured_once(compiled, calls=4)


def ddp_of_compiled_layers(rank: int) -> None:
    root = model(WIDE)
    compiled = [fxbucket.compile(layer, **OPTIONS) for layer in root.layers]
    root.layers = nn.ModuleList(compiled)
    ours, theirs = ddp(root), ddp(model(WIDE))
    agree(trained(ours, ours, rank, WIDE), trained(theirs, theirs, rank, WIDE))
    captured_once(*compiled, calls=4)


def ddp_accumulates_without_exchange(rank: int) -> None:
    compiled = fxbucket.compile(model(WIDE), **OPTIONS)
    ours, theirs = ddp(compiled), ddp(model(WIDE))
    found = [
        trained(
            root,
            root,
            rank,
            WIDE,
            every=2,
            sync=lambda is_last, root=root: contextlib.nullcontext() if is_last else root.no_sync(),
        )
        for root in (ours, theirs)
    ]
    agree(*found)
    captured_once(compiled, calls=4)


def ddp_settings(rank: int) -> None:
    for settings in ({"static_graph": True}, {"find_unused_parameters": True, "gradient_as_bucket_view": True}):
        torch.compiler.reset()
        compiled = fxbucket.compile(model(), **OPTIONS)
        ours, theirs = ddp(compiled, **settings), ddp(model(), **settings)
        agree(trained(ours, ours, rank, steps=3), trained(theirs, theirs, rank, steps=3))


def ddp_hears_of_gradients_piece_by_piece(rank: int) -> None:
    compiled = fxbucket.compile(model(), **WITH_AUTOGRAD | {"sizes": {"x.shape[0]": [4]}})
    ours = ddp(compiled)
    result = ours(rows_of(4))
    nodes, waiting = set(), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [other for other, _ in node.next_functions]
    assert sum("CompiledFunction" in node.name() for node in nodes) == sum(
        piece.is_compiled for piece in compiled.programs[0].pieces
    )
    result.sum().backward()


def warmed_before_ddp(rank: int) -> None:
    compiled = fxbucket.compile(model(), **OPTIONS)
    compiled.warmup(rows_of(4).requires_grad_())
    made = len(compiled.explain().graphs[0].buckets)
    ours, theirs = ddp(compiled), ddp(model())
    agree(trained(ours, ours, rank), trained(theirs, theirs, rank))
    captured_once(compiled, calls=5)
    assert len(compiled.explain().graphs[0].buckets) == made


def as_a_backend_torch_must_not_split(rank: int) -> None:
    backend = fxbucket.backend(**OPTIONS | {"sizes": "seen"})
    theirs = ddp(model(WIDE))
    with pytest.raises(
        CaptureError, match=r"DistributedDataParallel\(fxbucket.compile\(model, ...\)\).*optimize_ddp = False"
    ):
        call_as_backend(ddp(model(WIDE)), backend, rank)
    torch.compiler.reset()
    with without_ddp_splitting():
        ours = call_as_backend(ddp(model(WIDE)), fxbucket.backend(**OPTIONS | {"sizes": "seen"}), rank)
    agree(ours, trained(theirs, theirs, rank, WIDE, steps=3))


def call_as_backend(root: nn.Module, backend: Any, rank: int) -> list[Any]:
    try:
        return trained(root, torch.compile(root, backend=backend, dynamic=True), rank, WIDE, steps=3)
    except Exception as error:
        raise original_error(error) from error


# fully_shard


def sharded(root: Any, **settings: Any) -> Any:
    mesh = init_device_mesh(here().type, (WORLD,))
    for layer in root.layers:
        fully_shard(layer, mesh=mesh, **settings)
    return fully_shard(root, mesh=mesh, **settings)


def with_compiled_layers(root: Any, options: dict[str, Any] = OPTIONS) -> list[Any]:
    compiled = [fxbucket.compile(layer, **options) for layer in root.layers]
    for place, layer in enumerate(compiled):
        root.layers[place] = layer
    return compiled


def compiled_layers_sharded(rank: int) -> None:
    ours, theirs = model(), sharded(model())
    compiled = with_compiled_layers(ours, WITH_AUTOGRAD)
    sharded(ours)
    agree(trained(ours, ours, rank), trained(theirs, theirs, rank))
    captured_once(*compiled, calls=4)


def sharded_layers_compiled(rank: int) -> None:
    ours, theirs = sharded(model()), sharded(model())
    compiled = with_compiled_layers(ours)
    agree(trained(ours, ours, rank), trained(theirs, theirs, rank))
    captured_once(*compiled, calls=4)


def layers_sharded_compiled_and_their_parent_sharded(rank: int) -> None:
    mesh = init_device_mesh(here().type, (WORLD,))
    ours, theirs = model(), sharded(model())
    for layer in ours.layers:
        fully_shard(layer, mesh=mesh)
    with_compiled_layers(ours)
    fully_shard(ours, mesh=mesh)
    agree(trained(ours, ours, rank), trained(theirs, theirs, rank))
    ours(rows_of(4))
    # The root's parameters stay gathered after forward, a layer's do not: the layers are no roots.
    assert all(isinstance(parameter, DTensor) for parameter in ours.layers.parameters())
    assert not any(isinstance(parameter, DTensor) for parameter in ours.head.parameters())


def one_group_compiled(rank: int) -> None:
    mesh = init_device_mesh(here().type, (WORLD,))
    for order in ("sharded, compiled", "compiled, sharded"):
        torch.compiler.reset()
        theirs = fully_shard(model(), mesh=mesh)
        if order == "sharded, compiled":
            compiled = fxbucket.compile(fully_shard(model(), mesh=mesh), **OPTIONS)
        else:
            compiled = fxbucket.compile(model(), **OPTIONS)
            fully_shard(compiled, mesh=mesh)
        agree(trained(compiled, compiled, rank), trained(theirs, theirs, rank))
        captured_once(compiled, calls=4)
        assert "forward" not in vars(compiled._module)
        with pytest.raises(StoreError, match="sharded by fully_shard cannot be saved"):
            compiled.save("nowhere")


def sharded_accumulates_without_exchange(rank: int) -> None:
    def sync(root: Any) -> Sync:
        @contextlib.contextmanager
        def chosen(is_last: bool) -> Iterator[None]:
            root.set_requires_gradient_sync(is_last)
            yield

        return chosen

    ours, theirs = sharded(model()), sharded(model())
    with_compiled_layers(ours)
    found = [trained(root, root, rank, every=2, sync=sync(root)) for root in (ours, theirs)]
    agree(*found)


def sharded_settings(rank: int) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    settings = {"reshard_after_forward": False, "mp_policy": policy}
    ours, theirs = model(), sharded(model(), **settings)
    with_compiled_layers(ours)
    sharded(ours, **settings)
    agree(trained(ours, ours, rank, steps=3), trained(theirs, theirs, rank, steps=3), 1e-4)


def a_model_of_sharded_layers_is_refused(rank: int) -> None:
    compiled = fxbucket.compile(sharded(model()), **OPTIONS)
    with pytest.raises(CaptureError, match=r"layers.0, layers.1 of the model are sharded .* compile each of these"):
        compiled(rows_of(4))


DDP_CHECKS = (
    ddp_of_compiled, compiled_ddp, ddp_of_compiled_layers, ddp_accumulates_without_exchange, ddp_settings,
    ddp_hears_of_gradients_piece_by_piece, warmed_before_ddp, as_a_backend_torch_must_not_split,
)  # fmt: skip
SHARDED_CHECKS = (
    compiled_layers_sharded, sharded_layers_compiled, layers_sharded_compiled_and_their_parent_sharded, one_group_compiled,
    sharded_accumulates_without_exchange, sharded_settings, a_model_of_sharded_layers_is_refused,
)  # fmt: skip
CHECKS = {check.__name__: check for check in (*DDP_CHECKS, *SHARDED_CHECKS)}


def all_checks(rank: int) -> dict[str, str]:
    """Run every check on this rank; see :func:`tests.ranks.spawned.outcomes`."""
    return outcomes(CHECKS, rank)
