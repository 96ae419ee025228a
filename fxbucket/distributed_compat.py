"""The one place for torch's private names around torch.distributed: distributed tensors taken apart, the store of ranks.

Checked with torch 2.11.0, 2.13.0 and 2.14.1. Each function says which private name it stands for and why no public one
would do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


def aten_graphs(
    module: fx.GraphModule, example_inputs: Any, inference: Callable[..., Any], training: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what runs a captured graph, with the graphs of ATen ops that AOTAutograd makes of it given to compilers.

    Stands for ``torch._dynamo.backends.common.aot_autograd``, which torch's guide to custom backends names.
    """
    from torch._dynamo.backends.common import aot_autograd

    def boxed(compiler: Callable[..., Any]) -> Callable[..., Any]:
        def compile_boxed(local: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            function = compiler(local, inputs)

            def call(args: list[Any]) -> Any:
                given = tuple(args)
                args.clear()
                return function(*given)

            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        return compile_boxed

    made = aot_autograd(fw_compiler=boxed(training), bw_compiler=boxed(training), inference_compiler=boxed(inference))
    return made(module, example_inputs)


def store_of_ranks() -> Any:
    """Return the store through which the ranks of the default process group met.

    Stands for ``torch.distributed.distributed_c10d._get_default_store``: another store would need an address of its own.
    """
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
