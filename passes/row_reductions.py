"""Rules of padding for ops that reduce, scan, order or normalize along dims."""

from __future__ import annotations

import math

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
    dims_of,
    safe,
    same_size,
    unsafe,
)

RULES = RuleBook()


def _lowest(dtype: torch.dtype) -> Scalar:
    if dtype is torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Scalar:
    if dtype is torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def is_neutral(call: AtenCall, value: TensorValue, element: Scalar | None) -> bool:
    """Whether more of this element never changes what a reduction gives."""
    if element is None or value.dtype.is_complex:
        return False
    name = call.op.removeprefix("aten::")
    if name in ("sum", "nansum", "count_nonzero"):
        return element == 0
    if name == "prod":
        return element == 1
    if name in ("amax", "max"):
        return element == _lowest(value.dtype)
    if name in ("amin", "min"):
        return element == _highest(value.dtype)
    if name in ("argmax", "argmin") and call["dim"] is not None:
        return element == (_lowest if name == "argmax" else _highest)(value.dtype)
    if name == "any":
        return element == 0
    if name == "all":
        return element != 0
    if name == "logsumexp":
        return element == -math.inf
    if name == "linalg_vector_norm":
        return element == 0 and isinstance(call["ord"], (int, float)) and call["ord"] > 0
    return False


@RULES.rule(
    "sum", "nansum", "mean", "prod", "amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "any", "all", "var", "std",
    "var_mean", "std_mean", "logsumexp", "norm", "linalg_vector_norm", "median", "nanmedian", "mode", "kthvalue",
    "count_nonzero",
)  # fmt: skip
def reduction(call: AtenCall, rows: Rows) -> Verdict:
    """Safe along dims that are not padded, or where padding is neutral."""
    value: TensorValue = call["self"]
    reduced = rows.padded_of(value, dims_of(call, value))
    if reduced and not is_neutral(call, value, rows.padding(value)):
        return unsafe(f"it reduces over {rows.axis(value, reduced)}, padded rows too")
    contents = rows.of(value)
    everywhere = None if reduced else _reduced(call, value, contents.everywhere)
    return safe(Contents(_reduced(call, value, contents.padding), everywhere))


def _reduced(call: AtenCall, value: TensorValue, element: Scalar | None) -> Scalar | None:
    """Return what a reduction of this element alone gives, for any number of it and for none; ``None`` if not known."""
    if element is None or len(call.results) != 1:
        return None
    name = call.op.removeprefix("aten::")
    dtype = call.results[0].dtype
    if name in ("amax", "amin", "max", "min"):  # of none they raise
        return element
    if (name == "any" and element == 0) or (name == "all" and element != 0):
        return as_scalar(name == "all", dtype)
    if (name in ("sum", "nansum", "count_nonzero") and element == 0) or (name == "prod" and element == 1):
        return as_scalar(int(element), dtype)
    return None


@RULES.rule("cumsum", "cumsum_", "cumprod", "cumprod_", "cummax", "cummin", "logcumsumexp")
def scan(call: AtenCall, rows: Rows) -> Verdict:
    """An element is made from those before it, and padding comes after all that is real."""
    return safe(UNKNOWN)


@RULES.rule("_softmax", "_log_softmax", "_safe_softmax")
def softmax(call: AtenCall, rows: Rows) -> Verdict:
    """Safe along a dim that is not padded, or where padding is minus infinity."""
    value: TensorValue = call["self"]
    reduced = rows.padded_of(value, (call["dim"],))
    if reduced and rows.padding(value) != -math.inf:
        return unsafe(f"it normalizes over {rows.axis(value, reduced)}, padded rows too")
    # Where a real row holds NaN, or minus infinity alone, its padding becomes NaN: nothing is known of the result.
    return safe(UNKNOWN)


def _along_dims(call: AtenCall, rows: Rows, value: TensorValue, dims: tuple[int, ...], does: str) -> Verdict:
    mixed = rows.padded_of(value, dims)
    return unsafe(f"it {does} {rows.axis(value, mixed)}, padded rows too") if mixed else safe(UNKNOWN)


@RULES.rule("sort", "argsort", "topk")
def ordering(call: AtenCall, rows: Rows) -> Verdict:
    """Rows are ordered apart from each other."""
    return _along_dims(call, rows, call["self"], dims_of(call, call["self"]), "orders")


@RULES.rule("flip")
def flip(call: AtenCall, rows: Rows) -> Verdict:
    """Turned around, padding comes first."""
    dims = () if call["dims"] == () else dims_of(call, call["self"], "dims")
    return _along_dims(call, rows, call["self"], dims, "turns around")


@RULES.rule("roll")
def roll(call: AtenCall, rows: Rows) -> Verdict:
    """Rolled over its end, a row comes where padding was."""
    return _along_dims(call, rows, call["self"], dims_of(call, call["self"], "dims"), "rolls over")


@RULES.rule("glu")
def glu(call: AtenCall, rows: Rows) -> Verdict:
    """Its two halves are of one row."""
    return _along_dims(call, rows, call["self"], dims_of(call, call["self"]), "halves")


@RULES.rule("native_layer_norm", "_fused_rms_norm", "rms_norm")
def layer_norm(call: AtenCall, rows: Rows) -> Verdict:
    """Rows are normalized apart from each other."""
    value: TensorValue = call["input"]
    rank = len(value.shape)
    dims = tuple(range(rank - len(call["normalized_shape"]), rank))
    return _along_dims(call, rows, value, dims, "normalizes over")


@RULES.rule("native_group_norm", sizes=("N",))
def group_norm(call: AtenCall, rows: Rows) -> Verdict:
    """Samples are normalized apart from each other."""
    value: TensorValue = call["input"]
    if not same_size(call["N"], value.shape[0]):
        return unsafe("its number of samples is not the size of dim 0")
    return _along_dims(call, rows, value, tuple(range(1, len(value.shape))), "normalizes over")


@RULES.rule(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
    "miopen_batch_norm",
)  # fmt: skip
def batch_norm(call: AtenCall, rows: Rows) -> Verdict:
    """With running statistics it is pointwise; else it takes statistics of all rows."""
    if "running_mean" not in call.arguments or call["running_mean"] is None or call.arguments.get("training", False):
        return unsafe("it takes statistics of the whole batch, padded rows too")
    verdict = _along_dims(call, rows, call["input"], (1,), "has statistics for")
    if verdict.reason:
        return verdict
    return Verdict(reasons=dict.fromkeys(range(1, len(call.results)), "it is scratch memory"))


@RULES.rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(call: AtenCall, rows: Rows) -> Verdict:
    """Rows whose target is ``ignore_index`` count for nothing; without a reduction each row has its own number."""
    value, target = call["self"], call["target"]
    classes = rows.padded_of(value, (1 if len(value.shape) > 1 else 0,))
    if classes:
        return unsafe(f"it reads from {rows.axis(value, classes)} by what the targets say")
    if call["weight"] is not None and rows.padded(call["weight"]):
        return unsafe("its weights are padded")
    if call["reduction"] == 0:
        return Verdict(reasons={1: "it is scratch memory"})
    if rows.padded(target) and rows.padding(target) == call["ignore_index"] and rows.padding(target) is not None:
        return safe(UNKNOWN)
    wanted = f"unless the padding of the targets is ignore_index ({call['ignore_index']})"
    return unsafe(f"it reduces over every row, padded rows too, {wanted}")
