"""Calls of Triton kernels that a capture went through: Dynamo makes a higher-order op of each.

Such a node names the kernel and its constant arguments by their numbers in a table of the process, which
``torch.compiler.reset()`` empties. It gives nothing: the kernel writes to tensors that it is given, and to which of them,
neither the node nor their versions say.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

_NAMES = frozenset({"triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional"})
_NUMBERS = ("kernel_idx", "constant_args_idx")


@dataclass(frozen=True, eq=False)
class KernelCall:
    """What a call of a Triton kernel stands for.

    Attributes:
        kernel: the kernel, as Triton made it of a function.
        function: that function.
        constants: the arguments that the capture took for constants, by name.
        arguments: the others: nodes and numbers, by name.
        grid: how many programs run, along each of three dims; one such a configuration that the kernel may be tuned to.
        settings: what else the node holds.
        table: the very table in which the numbers had this meaning.
    """

    kernel: object
    function: Any
    constants: Mapping[str, Any]
    arguments: Mapping[str, Any]
    grid: Any
    settings: Mapping[str, Any]
    table: object

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", self.function))


def is_kernel_call(node: fx.Node) -> bool:
    """Whether a node calls a Triton kernel."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in _NAMES


def kernel_call(node: fx.Node) -> KernelCall | None:
    """Return what a call of a Triton kernel stands for; ``None`` for other nodes, and where the table was emptied since."""
    if not is_kernel_call(node):
        return None
    # Torch's own side of the node's numbers; the module is loaded, since the op is its.
    table = sys.modules[type(node.target).__module__].kernel_side_table
    held: dict[str, Any] = dict(node.kwargs)
    number, constants = (held.pop(name) for name in _NUMBERS)
    if number not in table.id_to_kernel or constants not in table.constant_args:
        return None
    kernel = function = table.id_to_kernel[number]
    while hasattr(function, "fn"):
        # A tuner wraps a kernel, which wraps the function.
        function = function.fn
    return KernelCall(
        kernel, function, table.constant_args[constants], held.pop("kwargs"), held.pop("grid"), held, table.id_to_kernel
    )
