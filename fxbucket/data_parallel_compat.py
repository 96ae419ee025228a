"""The one place for torch's private names that data parallelism needs: DDP's own splitting of graphs, FSDP2's states.

Checked with torch 2.11.0, 2.13.0 and 2.14.1. Each function says which private name it stands for and why no public one
would do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx, nn


def is_in_ddp() -> bool:
    """Whether this process is in the forward of a ``DistributedDataParallel``.

    Stands for ``DistributedDataParallel._get_active_ddp_module``, by which torch decides whether it splits a graph.
    """
    return nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None


def without_ddp_splitting() -> AbstractContextManager[Any]:
    """Return a context in which torch hands over a graph captured within DDP as it is.

    By default it splits the graph where DDP's buckets of gradients end, and gives a backend one part after the other, made
    from fake tensors and without the arguments that they came from. Stands for ``torch._dynamo.config.optimize_ddp``, which
    is left alone where it chooses another way than splitting.
    """
    from torch._dynamo.utils import get_optimize_ddp_mode

    if get_optimize_ddp_mode() != "ddp_optimizer":
        return nullcontext()
    setting: AbstractContextManager[Any] = torch._dynamo.config.patch(optimize_ddp=False)
    return setting


def is_split_by_ddp(module: fx.GraphModule) -> bool:
    """Whether a graph is one of the parts that torch splits a graph within DDP into.

    Stands for ``compile_subgraph_reason``, which ``DDPOptimizer`` sets on each part.
    """
    reason = getattr(module, "compile_subgraph_reason", None)
    return reason is not None and str(reason.reason).startswith("DDPOptimizer")


def count_as_sharded(wrapper: nn.Module, module: nn.Module) -> None:
    """Have FSDP2 find the state of a sharded module where it comes upon what wraps the module.

    Stands for the registry ``torch.distributed._composable_state``: ``fully_shard`` of a parent looks there to leave alone
    what is sharded already, and the root to tell its modules that they are not roots.
    """
    from torch.distributed._composable_state import _get_module_state, _insert_module_state

    state = _get_module_state(module)
    if state is not None and _get_module_state(wrapper) is None:
        _insert_module_state(wrapper, state)
