"""What it means that a compiled call equals eager's: more than values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

Arguments = Sequence[Any]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in a nest, left to right."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def assert_same_tree(got: Any, expected: Any, what: str, tolerance: float = 0.0, strides: bool = True) -> None:
    """Compare structure, types, values, dtypes, devices, requires_grad and strides of two nests."""
    left, left_spec = pytree.tree_flatten(got)
    right, right_spec = pytree.tree_flatten(expected)
    assert left_spec == right_spec, f"{what}: structure {left_spec} instead of {right_spec}"
    for position, (one, other) in enumerate(zip(left, right, strict=True)):
        place = f"{what}[{position}]"
        if not isinstance(other, torch.Tensor):
            assert type(one) is type(other), f"{place}: {type(one)} instead of {type(other)}"
            assert one == other, f"{place}: {one!r} instead of {other!r}"
            continue
        assert isinstance(one, torch.Tensor), f"{place}: {type(one)} instead of a tensor"
        assert_same_tensor(one, other, place, tolerance, strides)


def assert_same_tensor(got: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float, strides: bool) -> None:
    """Compare two tensors' metadata and values."""
    assert got.dtype == expected.dtype, f"{what}: dtype {got.dtype} instead of {expected.dtype}"
    assert got.device == expected.device, f"{what}: device {got.device} instead of {expected.device}"
    assert got.is_nested == expected.is_nested, f"{what}: nested {got.is_nested} instead of {expected.is_nested}"
    assert got.requires_grad == expected.requires_grad, f"{what}: requires_grad {got.requires_grad}"
    if expected.is_nested:
        got, expected = got.values(), expected.values()
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
    if got.is_floating_point() and got.element_size() == 1:
        # Floats of eight bits are compared bit by bit; torch offers nothing else.
        tolerance = 0.0
    torch.testing.assert_close(
        got, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )
    if strides and got.numel() > 1:
        one = [stride for stride, size in zip(got.stride(), got.shape, strict=True) if size > 1]
        other = [stride for stride, size in zip(expected.stride(), expected.shape, strict=True) if size > 1]
        assert one == other, f"{what}: strides {got.stride()} instead of {expected.stride()}"


def sharing(*trees: Any) -> list[tuple[int, int]]:
    """Return which pairs of the tensors in these nests share a storage."""
    found = [tensor for tree in trees for tensor in tensors_of(tree) if tensor.layout is torch.strided and tensor.numel()]
    keys = [tensor.untyped_storage().data_ptr() for tensor in found if not tensor.is_nested]
    return [(i, j) for i, one in enumerate(keys) for j, other in enumerate(keys) if i < j and one == other]


def gradients(outputs: Any, wanted: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradients of a weighted sum of all differentiable outputs."""
    parts = [output for output in tensors_of(outputs) if output.requires_grad and output.is_floating_point()]
    if not parts or not wanted:
        return []
    loss = sum((part * (weight + 1)).sum() for weight, part in enumerate(parts))
    return list(torch.autograd.grad(loss, list(wanted), allow_unused=True))  # type: ignore[arg-type]


def assert_equals_eager(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    compiled_arguments: Arguments,
    eager_arguments: Arguments,
    parameters: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] = ((), ()),
    tolerance: float = 0.0,
    strides: bool = True,
) -> None:
    """Make one call both ways and compare outputs, aliasing, effects on arguments, and gradients.

    Args:
        compiled: what is tested.
        eager: the truth.
        compiled_arguments: the arguments of the tested call.
        eager_arguments: equal arguments of their own.
        parameters: what else gradients are wanted of, on each side.
        tolerance: relative and absolute; 0 asks for equal bits.
        strides: whether strides must agree too.
    """
    state = torch.get_rng_state()
    try:
        expected = eager(*eager_arguments)
    except Exception:
        with pytest.raises(Exception):  # noqa: B017, PT011 - which error it is depends on the compiler
            compiled(*compiled_arguments)
        return
    torch.set_rng_state(state)
    trees = (compiled_arguments, eager_arguments)
    leaves = [[t for t in tensors_of(tree) if t.requires_grad and t.is_leaf] for tree in trees]
    ours, theirs = (held + list(more) for held, more in zip(leaves, parameters, strict=True))
    try:
        got = compiled(*compiled_arguments)
    except Exception:
        # A compiler that makes the backward pass beforehand says at once what eager says when it comes to it.
        try:
            gradients(expected, theirs)
        except RuntimeError:
            return
        raise
    assert_same_tree(got, expected, "output", tolerance, strides)
    assert_same_tree(list(compiled_arguments), list(eager_arguments), "argument after the call", tolerance, strides)
    assert sharing(got, compiled_arguments) == sharing(expected, eager_arguments), "other tensors share memory than in eager"
    try:
        right = gradients(expected, theirs)
    except RuntimeError:
        # Eager itself cannot differentiate: a saved value was changed in place.
        return
    left = gradients(got, ours)
    # One artifact's backward gives zeros where eager, which sees each op on its own, gives no gradient at all.
    left = [
        None if other is None and one is not None and not one.any() else one for one, other in zip(left, right, strict=True)
    ]
    assert_same_tree(left, right, "gradient", tolerance, strides=False)
