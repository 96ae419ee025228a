"""The names under which one op may be known.

Dynamo's graphs hold whatever the model's Python called: ``torch.sigmoid``, ``x.sigmoid()``,
``torch.nn.functional.sigmoid`` or ``torch.ops.aten.sigmoid``. A user who asks to cut at one of them means all.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterable

import torch
from torch import fx

from fxbucket.passes.kernel_calls import kernel_call

OPERATOR_TO_ATEN = {
    "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "and_": "bitwise_and", "or_": "bitwise_or",
    "xor": "bitwise_xor", "invert": "bitwise_not", "inv": "bitwise_not", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_",
    "ifloordiv": "floor_divide_", "imod": "remainder_", "ipow": "pow_", "iand": "bitwise_and_", "ior": "bitwise_or_",
    "ixor": "bitwise_xor_", "imatmul": "matmul", "ilshift": "bitwise_left_shift_", "irshift": "bitwise_right_shift_",
}  # fmt: skip
"""Python's operators under the names of the aten ops that they call."""

NOT_ATEN = frozenset({"getitem", "setitem", "delitem", "contains", "attrgetter", "itemgetter", "is_", "is_not", "not_"})

_TORCH_MODULES = ("torch", "torch.nn.functional", "torch.Tensor", "torch.functional", "torch._C._nn")
_FAMILIES = {"torch._C._special": "special", "torch._C._linalg": "linalg", "torch._C._fft": "fft"}


def op_names(node: fx.Node) -> frozenset[str]:
    """Return every name of the op that a node calls; empty for placeholders, attributes and the output."""
    if node.op == "call_method":
        return _aten_names(str(node.target)) | {f"torch.Tensor.{node.target}"}
    if node.op == "call_function":
        kernel = kernel_call(node)
        own = frozenset() if kernel is None else names_of_callable(kernel.function) | {f"triton.{kernel.name}"}
        return names_of_callable(node.target) | own
    return frozenset()


def names_of_callable(target: object) -> frozenset[str]:
    """Return every name of a function, an op overload, an overload packet or a higher-order op."""
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target.name().partition("::")
        base = name.split(".")[0]
        names = {f"{namespace}::{base}", f"{namespace}::{base}.{target._overloadname}", f"torch.ops.{namespace}.{base}"}
        return frozenset(names) | (_aten_names(base) - {f"aten::{base}.*"} if namespace == "aten" else frozenset())
    if isinstance(target, torch._ops.OpOverloadPacket):
        namespace, _, base = target._qualified_op_name.partition("::")
        names = {f"{namespace}::{base}", f"{namespace}::{base}.*", f"torch.ops.{namespace}.{base}"}
        return frozenset(names) | (_aten_names(base) if namespace == "aten" else frozenset())
    if isinstance(target, torch._ops.HigherOrderOperator):
        return frozenset({f"higher_order::{target.name()}", target.name()})
    qualified = getattr(target, "_qualname", None)
    if isinstance(target, torch.library.CustomOpDef) and isinstance(qualified, str):
        return frozenset({qualified, f"torch.ops.{qualified.replace('::', '.')}"})
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", None)
    if not isinstance(name, str):
        return frozenset()
    if module == "_operator":
        itself = frozenset({f"operator.{name}"})
        return itself if name in NOT_ATEN else itself | _aten_names(OPERATOR_TO_ATEN.get(name, name))
    if module in _FAMILIES:
        family = _FAMILIES[module]
        return frozenset({f"aten::{name}", f"torch.{family}.{name.removeprefix(family + '_')}"})
    if module in _TORCH_MODULES or target in (getattr(torch, name, None), getattr(torch.Tensor, name, None)):
        return _aten_names(name)
    return frozenset({f"{module}.{name}" if module else name, name} | {f"{module}.{getattr(target, '__qualname__', name)}"})


def _aten_names(name: str) -> frozenset[str]:
    names = {f"aten::{name}", f"aten::{name}.*"}  # Python's call does not say which overload
    if hasattr(torch, name):
        names.add(f"torch.{name}")
    if hasattr(torch.nn.functional, name):
        names.add(f"torch.nn.functional.{name}")
    if hasattr(torch.Tensor, name):
        names.add(f"torch.Tensor.{name}")
    return frozenset(names)


def spellings_of(target: object) -> frozenset[str]:
    """Return the names that a node may bear when a user asks for ``target``.

    Args:
        target: ``"ns::op"``, ``"ns::op.overload"``, a Python path, or a callable.
    """
    if isinstance(target, torch._ops.OpOverload):
        base = target.name().split(".")[0]
        return frozenset({f"{base}.{target._overloadname}", f"{base}.*"})
    if not isinstance(target, str):
        return _qualified(names_of_callable(target))
    text = target.removesuffix(".default")
    if text.startswith("torch.ops."):
        namespace, _, rest = text.removeprefix("torch.ops.").partition(".")
        text = f"{namespace}::{rest}"
    if "::" in text:
        base, _, overload = text.partition(".")
        return frozenset({text, target, f"{base}.*"} if overload else {text, target})
    found = _import_path(text)
    if found is not None:
        return spellings_of(found) | {text}
    return frozenset({text})


def _qualified(names: frozenset[str]) -> frozenset[str]:
    """Leave out bare names, which functions of other libraries may bear too."""
    return frozenset(name for name in names if "." in name or "::" in name)


def _import_path(path: str) -> object | None:
    """Return the object behind a dotted Python path, or ``None`` where there is none."""
    head, _, _ = path.rpartition(".")
    if not head:
        return getattr(operator, path, None) if path in OPERATOR_TO_ATEN else None
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute, None)
        return found
    return None


def graph_op_names(nodes: Iterable[fx.Node]) -> frozenset[str]:
    """Return the names of all ops in a graph, for an error that lists what was possible."""
    names = frozenset().union(*(op_names(node) for node in nodes))
    return frozenset(name for name in names if not name.endswith(".*"))
