"""Rules of padding for ops that make each element of a result from the same element of each operand."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from fxbucket.passes.lowering import AtenCall, TensorValue
from fxbucket.passes.row_facts import (
    UNKNOWN,
    Contents,
    Rows,
    RuleBook,
    Scalar,
    Verdict,
    as_scalar,
    broadcast_dims,
    is_nonnegative,
    safe,
    same_size,
    unsafe,
)
from fxbucket.passes.symbolic import Expression, without_modes

RULES = RuleBook()

_DROPPED = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
_COPIES = frozenset({"aten::copy", "aten::copy_"})
_FILLS = frozenset({"aten::fill", "aten::fill_", "aten::zero", "aten::zero_"})
_WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}


@RULES.rule(
    "detach", "alias", "lift_fresh", "lift", "_to_copy", "copy", "copy_", "fill", "fill_", "zero", "zero_", "masked_fill_",
    "floor_divide", "float_power", "hardswish", "leaky_relu", "_prelu_kernel", "_conj", "conj", "_conj_physical",
    "resolve_conj", "resolve_neg", "_neg_view", "polar", "complex", "special_gammainc", "special_gammaincc", "_pin_memory",
    "clone",
)  # fmt: skip
def pointwise(call: AtenCall, rows: Rows) -> Verdict:
    """Elements of padding are made from padding, since operands lie along the result from index 0."""
    for result in call.results:
        for operand in call.tensors:
            reason = misfit(operand, result, rows)
            if reason:
                return unsafe(reason)
    return safe(*(pointwise_contents(call, result, rows) for result in call.results[:1]))


def misfit(operand: TensorValue, result: TensorValue, rows: Rows) -> str:
    """Return why an operand is not broadcast along a result dim by dim, or an empty text where it is."""
    if len(operand.shape) > len(result.shape):
        return f"it takes a tensor of {len(operand.shape)} dims and gives one of {len(result.shape)}"
    for dim, along in broadcast_dims(operand, result.shape):
        size, other = operand.shape[dim], result.shape[along]
        if size != 1 and not same_size(size, other):
            return f"it is not seen that size {rows.name(size)} always equals size {rows.name(other)}"
    return ""


def pointwise_contents(call: AtenCall, result: TensorValue, rows: Rows) -> Contents:
    """Return what is known of the elements of a pointwise result."""
    return Contents(_evaluated(call, result, rows, True), _evaluated(call, result, rows, False), _bound(call, result, rows))


_KEEP_NUMBERS = frozenset({"aten::clone", "aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift", "aten::_to_copy"})


def _bound(call: AtenCall, result: TensorValue, rows: Rows) -> Expression | None:
    """Return below what every element of a result of ints is, where none is negative and both are known."""
    if result.dtype is not torch.int64:
        return None
    value = call.arguments.get("self")
    below = rows.of(value).below if isinstance(value, TensorValue) and value.dtype is torch.int64 else None
    if below is None:
        return None
    if call.op in _KEEP_NUMBERS:
        return below
    if call.op == "aten::add" and call.arguments.get("alpha", 1) == 1:
        other = call["other"]
        more = rows.of(other).everywhere if isinstance(other, TensorValue) else other
        if isinstance(more, int) and not isinstance(more, bool) and more >= 0:
            return below + more if isinstance(below, int) else sympy.Add(below, more)
    return None


def at_padding(operand: TensorValue, result: TensorValue, rows: Rows) -> Scalar | None:
    """Return the number that a broadcast operand has wherever the result has padding, if it is known to have one.

    An operand without one of the result's padded dims is real in some of the result's padding.
    """
    contents = rows.of(operand)
    along = {along for dim, along in broadcast_dims(operand, result.shape) if dim in rows.padded(operand)}
    if contents.padding is not None and along == set(rows.padded(result)):
        return contents.padding
    return contents.everywhere


def _evaluated(call: AtenCall, result: TensorValue, rows: Rows, in_padding: bool) -> Scalar | None:
    def held(operand: TensorValue) -> Scalar | None:
        return at_padding(operand, result, rows) if in_padding else rows.of(operand).everywhere

    arguments = dict(call.arguments)
    if call.op in _COPIES:
        found = held(arguments["src"])
        return None if found is None or not _exact(found, result.dtype) else as_scalar(found, result.dtype)
    if call.op in _FILLS:
        value = arguments.get("value", 0)
        return as_scalar(rows.of(value).everywhere if isinstance(value, TensorValue) else value, result.dtype)
    chosen = _chosen(call, result, held)
    if chosen is not None:
        return chosen[0]
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, TensorValue):
            found = held(value)
            if found is None:
                return None
            values[name] = torch.full((1,) if value.shape else (), found, dtype=value.dtype)
        elif isinstance(value, (tuple, sympy.Basic)):
            return None
        elif name not in _DROPPED:
            values[name] = value
    if not any(isinstance(value, torch.Tensor) for value in values.values()):
        return None
    return _computed(call.target, values, result.dtype)


def _exact(value: Scalar, dtype: torch.dtype) -> bool:
    held = as_scalar(value, dtype)
    return held is not None and held == value


def _chosen(call: AtenCall, result: TensorValue, held: Any) -> tuple[Scalar | None] | None:
    """Return the element that a condition chooses, whatever the other one is; ``None`` where nothing is chosen."""
    if call.op == "aten::where" and "self" in call.arguments and "other" in call.arguments:
        condition = held(call["condition"])
        if condition is None:
            return None
        taken = call["self"] if condition else call["other"]
        found = held(taken) if isinstance(taken, TensorValue) else taken
        return (as_scalar(found, result.dtype) if found is not None and _exact(found, result.dtype) else None,)
    if call.op in ("aten::masked_fill", "aten::masked_fill_"):
        mask = held(call["mask"])
        if mask is None:
            return None
        taken = call["value"] if mask else call["self"]
        found = held(taken) if isinstance(taken, TensorValue) else taken
        return (as_scalar(found, result.dtype) if isinstance(found, (int, float)) else None,)
    decisive = {"bitwise_and": False, "logical_and": False, "bitwise_or": True, "logical_or": True}
    name = call.op.removeprefix("aten::").removesuffix("_")
    if name in decisive and result.dtype is torch.bool and "other" in call.arguments:
        for operand in (call["self"], call["other"]):
            if isinstance(operand, TensorValue) and operand.dtype is torch.bool and held(operand) is decisive[name]:
                return (decisive[name],)
    return None


def _computed(target: Any, values: dict[str, Any], dtype: torch.dtype) -> Scalar | None:
    """Return what an op gives for single numbers; ``None`` where its rounding leaves that to the device."""
    with without_modes():
        wide = {
            name: value.to(_WIDE.get(value.dtype, value.dtype)) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        wide = {name: _WIDE.get(value, value) if isinstance(value, torch.dtype) else value for name, value in wide.items()}
        try:
            found, exact = target(**values), target(**wide)
        except (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError):
            return None
    if not isinstance(found, torch.Tensor) or found.numel() != 1 or found.dtype is not dtype:
        return None
    number, wider = found.item(), exact.item()
    return as_scalar(number, dtype) if number == wider else None


@RULES.rule("log_sigmoid_forward")
def first_output_pointwise(call: AtenCall, rows: Rows) -> Verdict:
    """The other outputs are what the backward needs, and hold what the device likes."""
    reason = misfit(call["self"], call.results[0], rows)
    return unsafe(reason) if reason else Verdict(reasons=dict.fromkeys(range(1, len(call.results)), "it is scratch memory"))


@RULES.rule("scalar_tensor", "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like",
            "full_like", sizes=("size",))  # fmt: skip
def filled(call: AtenCall, rows: Rows) -> Verdict:
    """All elements are one number."""
    name = call.op.removeprefix("aten::")
    value = 0 if "zeros" in name else 1 if "ones" in name else call["s" if name == "scalar_tensor" else "fill_value"]
    return safe(Contents.all(value, call.results[0].dtype))


@RULES.rule("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted",
            sizes=("size", "stride"))  # fmt: skip
def uninitialized(call: AtenCall, rows: Rows) -> Verdict:
    """What it holds means nothing, in the call as in the bucket."""
    return safe(UNKNOWN)


@RULES.rule("arange", sizes=("end",))
def arange(call: AtenCall, rows: Rows) -> Verdict:
    """Each element is made from its own index."""
    start, step, end = call.arguments.get("start", 0), call.arguments.get("step", 1), call["end"]
    counts = is_nonnegative(start) and isinstance(step, int) and step > 0 and isinstance(end, (int, sympy.Basic))
    return safe(Contents(below=end) if counts and call.results[0].dtype is torch.int64 else UNKNOWN)


@RULES.rule("eye", sizes=("n", "m"))
def by_index(call: AtenCall, rows: Rows) -> Verdict:
    """Each element is made from its own index."""
    return safe(UNKNOWN)


@RULES.rule("addr")
def outer(call: AtenCall, rows: Rows) -> Verdict:
    """Each element is made from one of the first vector and one of the second."""
    reason = misfit(call["self"], call.results[0], rows)
    return unsafe(reason) if reason else safe(UNKNOWN)


_EVERY_NUMBER = ("self", "size", "stride", "min", "max", "dtype", "assert_msg", "a")


@RULES.rule("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size",
            sizes=_EVERY_NUMBER)  # fmt: skip
def checked_sizes(call: AtenCall, rows: Rows) -> Verdict:
    """A condition on sizes that the bucket breaks raises, and gives no wrong number."""
    return safe()


LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy")


@RULES.rule(*LOSSES)
def loss(call: AtenCall, rows: Rows) -> Verdict:
    """Without a reduction it is one number an element."""
    if call["reduction"] != 0:
        return unsafe("it reduces over every row, padded rows too")
    return pointwise(call, rows)
