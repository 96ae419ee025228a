"""Models that torch trains on several ranks: what of a call runs around the captured graph, and what torch must leave alone.

FSDP2 gathers a module's parameters in a hook before its ``forward`` and frees them in one after it. Dynamo does not go
through these hooks: it would break the graph there, and capture what follows without the arguments that name the axes. So
the hooks of a sharded module run as Python, and its ``forward`` alone is captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from fxbucket.passes.errors import CaptureError


def is_sharded(model: object) -> bool:
    """Whether ``torch.distributed.fsdp.fully_shard`` was applied to a module itself."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # where nobody has imported it, nothing is sharded
    return fsdp is not None and issubclass(type(model), fsdp.FSDPModule)


def holds_ddp(model: object) -> bool:
    """Whether a module is, or holds, a ``DistributedDataParallel``."""
    return isinstance(model, nn.Module) and any(
        issubclass(type(module), nn.parallel.DistributedDataParallel) for module in model.modules()
    )


def check_sharded_within(model: object) -> None:
    """Raise where modules within a model are sharded on their own: each breaks the graph.

    Raises:
        CaptureError: names them, and how such a model is compiled.
    """
    if not isinstance(model, nn.Module):
        return
    inner = [name for name, module in model.named_modules() if module is not model and is_sharded(module)]
    if inner:
        shown = ", ".join(inner[:4]) + (f" and {len(inner) - 4} more" if len(inner) > 4 else "")
        raise CaptureError(
            f"{shown} of the model {'are' if len(inner) > 1 else 'is'} sharded by fully_shard, whose hooks no graph holds; "
            f"compile each of these modules, and not what holds them: "
            f"model.layers[i] = fxbucket.compile(model.layers[i], ...); see docs/data_parallel.md."
        )


def within_hooks(model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module with another function in the place of its ``forward``; its hooks run around that, as Python."""
    held = vars(model)
    before = held.get("forward", _NOTHING)
    held["forward"] = forward
    try:
        return model(*args, **kwargs)
    finally:
        if before is _NOTHING:
            del held["forward"]
        else:
            held["forward"] = before


_NOTHING: Any = object()
