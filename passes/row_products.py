"""Rules of padding for ops that contract dims: matrix products, attention, convolutions; and for pooling."""

from __future__ import annotations

import math

from fxbucket.passes.lowering import AtenCall, TensorValue
from fxbucket.passes.row_facts import UNKNOWN, Rows, RuleBook, Scalar, Verdict, safe, unsafe
from fxbucket.passes.row_pointwise import misfit

RULES = RuleBook()

_CONTRACTED: dict[str, tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]] = {
    "mm": (("self", (1,)), ("mat2", (0,))),
    "bmm": (("self", (2,)), ("mat2", (1,))),
    "addmm": (("mat1", (1,)), ("mat2", (0,))),
    "baddbmm": (("batch1", (2,)), ("batch2", (1,))),
    "addbmm": (("batch1", (0, 2)), ("batch2", (0, 1))),
    "mv": (("self", (1,)), ("vec", (0,))),
    "addmv": (("mat", (1,)), ("vec", (0,))),
    "dot": (("self", (0,)), ("tensor", (0,))),
    "vdot": (("self", (0,)), ("other", (0,))),
    "linear": (("input", (-1,)), ("weight", (-1,))),
}
"""The dims that a product sums over, of its left and its right operand."""

_ADDED = {"addmm": "self", "baddbmm": "self", "addbmm": "self", "addmv": "self", "linear": "bias"}
"""What is added to a product, broadcast along it."""


@RULES.rule(*_CONTRACTED)
def product(call: AtenCall, rows: Rows) -> Verdict:
    """Safe where no contracted dim is padded, or where padding on both sides gives exactly 0."""
    name = call.op.removeprefix("aten::")
    sides = [(call[argument], dims) for argument, dims in _CONTRACTED[name]]
    added = call[_ADDED[name]] if name in _ADDED else None
    if added is not None:
        reason = misfit(added, call.results[0], rows)
        if reason:
            return unsafe(reason)
    for value, dims in sides:
        contracted = rows.padded_of(value, dims)
        if contracted and not _gives_zero(*(rows.padding(side) for side, _ in sides)):
            return unsafe(f"it sums over {rows.axis(value, contracted)}, padded rows too")
    return safe(UNKNOWN)


def _gives_zero(left: Scalar | None, right: Scalar | None) -> bool:
    """Whether two numbers are known and finite and one is 0; 0 times infinity or NaN is NaN."""
    return left is not None and right is not None and math.isfinite(left) and math.isfinite(right) and 0 in (left, right)


@RULES.rule(
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
def attention(call: AtenCall, rows: Rows) -> Verdict:
    """Queries and samples are apart from each other; keys and values are summed over."""
    query, key, value = call["query"], call["key"], call["value"]
    if call["dropout_p"] != 0:
        return unsafe("its dropout draws random numbers, and how many depends on the size")
    if not all(len(tensor.shape) == 4 for tensor in (query, key, value)):
        return unsafe("its tensors are not of four dims")
    for tensor, what in ((key, "keys"), (value, "values")):
        summed = rows.padded_of(tensor, (2,))
        if summed:
            return unsafe(
                f"it sums over the {what} along {rows.axis(tensor, summed)}, padded rows too: "
                "a position that is masked still multiplies its value, and 0 times NaN is NaN"
            )
        mixed = rows.padded_of(tensor, (1, 3))
        if mixed:
            return unsafe(f"it mixes the {what} along {rows.axis(tensor, mixed)}")
    mixed = rows.padded_of(query, (1, 3))
    if mixed:
        return unsafe(f"it mixes queries along {rows.axis(query, mixed)}")
    mask = call.arguments.get("attn_mask", call.arguments.get("attn_bias"))
    if mask is not None:
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        reason = misfit(mask, TensorValue(-1, -1, shape, query.dtype), rows)
        if reason:
            return unsafe(reason)
    return Verdict(reasons=dict.fromkeys(range(1, len(call.results)), "it is scratch memory"))


@RULES.rule("convolution")
def convolution(call: AtenCall, rows: Rows) -> Verdict:
    """Samples are apart from each other; channels and places are summed over."""
    value, weight, bias = call["input"], call["weight"], call["bias"]
    if len(value.shape) != len(weight.shape):
        return unsafe("its input has no dim of samples")
    if rows.padded(weight) or (bias is not None and rows.padded(bias)):
        return unsafe("its weights are padded")
    summed = rows.padded_of(value, range(1, len(value.shape)))
    return unsafe(f"it sums over {rows.axis(value, summed)}, padded rows too") if summed else safe(UNKNOWN)


_PLACES = {
    1: ("reflection_pad1d", "replication_pad1d", "upsample_nearest1d", "upsample_linear1d", "_adaptive_avg_pool1d",
        "avg_pool1d", "max_pool1d"),
    2: ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d",
        "upsample_bilinear2d", "upsample_bicubic2d", "reflection_pad2d", "replication_pad2d", "_upsample_nearest_exact2d",
        "pixel_shuffle", "pixel_unshuffle"),
    3: ("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d", "upsample_nearest3d",
        "upsample_trilinear3d", "reflection_pad3d", "replication_pad3d"),
}  # fmt: skip
"""Ops over the places of an image, by how many dims places have."""


@RULES.rule(*(name for names in _PLACES.values() for name in names))
def over_places(call: AtenCall, rows: Rows) -> Verdict:
    """Samples are apart from each other; places, and the channels before them, are not."""
    value: TensorValue = call.tensors[0]
    name = call.op.removeprefix("aten::")
    places = next(count for count, names in _PLACES.items() if name in names)
    rank = len(value.shape)
    mixed = rows.padded_of(value, range(max(rank - places - 1, 0), rank))
    if mixed or any(rows.padded(other) for other in call.tensors[1:]):
        return unsafe(f"it mixes places along {rows.axis(value, mixed)}, padded rows too")
    return safe(UNKNOWN)
