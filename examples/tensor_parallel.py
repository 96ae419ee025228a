"""A model whose layers two ranks share: cut at collectives, pinned sizes, and ranks that agree on them.

Run it as ``torchrun --nproc-per-node 2 examples/tensor_parallel.py``; run as a plain script, it starts two ranks itself.
Where there are as many GPUs they talk through NCCL and record CUDA graphs between collectives, else through gloo.

Prints:

    8 tokens: equal to the whole model
    16 tokens: equal to the whole model
    11 tokens: equal to the whole model
    pieces: compiled, collective, compiled, collective, compiled
    calls: {'tokens=8': 1, 'tokens=16': 2}
    ranks that differ: rank 0: tokens=8; ... rank 1: tokens=16; ...
"""

import copy
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fxbucket
from fxbucket.passes import at_collective
from fxbucket.passes.errors import RankMismatchError


class Layer(nn.Module):
    """Its weights are what the ranks share: columns of the first, rows of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a residual of the two, which torch makes one sum over the ranks."""
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def tell(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def main() -> None:
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.device_count() >= ranks
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    mesh = init_device_mesh(device.type, (ranks,))

    torch.manual_seed(0)
    whole = nn.Sequential(Layer(), Layer()).to(device)
    plan = {f"{layer}.up": ColwiseParallel() for layer in "01"} | {f"{layer}.down": RowwiseParallel() for layer in "01"}
    shared = parallelize_module(copy.deepcopy(whole), mesh, plan)

    compiled = fxbucket.compile(
        shared,
        axes={"tokens": "input.shape[0]"},
        sizes={"tokens": [8, 16]},
        splitting_ops=[at_collective()],
        on_miss="pad",
        agree="check",
        compiler="inductor" if on_gpus else "aot_eager",
        cudagraphs="piecewise" if on_gpus else "off",
    )
    with torch.no_grad():
        for tokens in (8, 16, 11):
            x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(tokens)).to(device)
            torch.testing.assert_close(compiled(x), whole(x), rtol=1e-3, atol=1e-3)
            tell(f"{tokens} tokens: equal to the whole model")
        pieces = compiled.programs[0].pieces
        tell(f"pieces: {', '.join('collective' if piece.is_boundary else 'compiled' for piece in pieces)}")
        tell(f"calls: {compiled.explain().calls()}")
        try:
            compiled(torch.zeros(8 if rank == 0 else 16, 64, device=device))
        except RankMismatchError as error:
            tell(str(error).replace("ranks disagree.", "ranks that differ:"))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:
        main()
    else:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        sys.exit(subprocess.run(launch, check=False).returncode)
