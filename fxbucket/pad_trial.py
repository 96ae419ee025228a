"""Trials of padding: the same call with different paddings, and against the graph as it was captured."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxbucket.copies import strided_copy
from fxbucket.pad_plan import Fill, PaddedArgument, Plan
from fxbucket.passes.captured import Capture, tensors_in
from fxbucket.uncompiled import runner_of

Function = Callable[..., Any]


def forward_trial(capture: Capture, plan: Plan, function: Function, args: Sequence[Any]) -> str:
    """Run a padded bucket with paddings of several kinds, and the graph as it was captured once, on copies.

    The call's own rows must be the same bit for bit whatever the padding holds, and close to those of the captured graph.

    Args:
        capture: the graph.
        plan: how the call is padded.
        function: runs the bucket.
        args: the call's arguments; none of them is changed.

    Returns:
        What differed, or an empty text.
    """
    with torch.no_grad():
        expected, effects = _run(capture, lambda given: runner_of(capture.module)(*given), args)
        first: list[torch.Tensor] | None = None
        for kind in _KINDS:
            call = functools.partial(_padded_call, plan, function, kind=kind)
            try:
                found, found_effects = _run(capture, call, args)
            except Exception as error:  # the graph itself raises it, on what only the padding holds
                return f"with padding that is {kind} it raises {type(error).__name__}: {error}"
            now = [*found, *found_effects]
            if first is None:
                first = now
                different = _far(now, [*expected, *effects])
                if different:
                    return f"its results differ from those of the captured graph: {different}"
            elif not all(torch.equal(_bits(one), _bits(other)) for one, other in zip(now, first, strict=True)):
                return f"its own rows change where the padding is {kind}"
    return ""


def gradient_trial(capture: Capture, plan: Plan, function: Function, args: Sequence[Any]) -> str:
    """Compare the gradients of a padded bucket with those of the graph as it was captured, on copies.

    Padded rows get gradients of zero, which become NaN where such a row holds an infinite derivative.

    Returns:
        What differed, or an empty text.
    """
    try:
        expected = _gradients(capture, lambda given: runner_of(capture.module)(*given), args)
    except RuntimeError:  # the captured graph cannot be differentiated either
        return ""
    try:
        padded = _gradients(capture, functools.partial(_padded_call, plan, function, kind="fill"), args)
    except RuntimeError as error:
        return f"its gradients cannot be computed: {error}"
    if [one is None for one in padded] != [one is None for one in expected]:
        return "its gradients reach other arguments than those of the captured graph"
    different = _far([one for one in padded if one is not None], [one for one in expected if one is not None])
    return f"its gradients differ from those of the captured graph: {different}" if different else ""


def _gradients(capture: Capture, run: Callable[[list[Any]], Any], args: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of a run for all arguments that want one, at tangents that are the same for each run."""
    leaves = [_leaf(value) for value in args]
    wanted = [value for value in leaves if isinstance(value, torch.Tensor) and value.requires_grad]
    with _same_random_numbers(args), torch.enable_grad():
        results = [tensor for tensor in tensors_in(run(_copied(capture, leaves))) if tensor.requires_grad]
        tangents = [torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(result) for result in results]
        return torch.autograd.grad(results, wanted, tangents, allow_unused=True) if results else (None,) * len(wanted)


_KINDS = ("fill", "nan", "huge", "random")


def _padded_call(plan: Plan, function: Function, args: Sequence[Any], kind: str) -> Any:
    padded = plan.arguments(args)
    for held in plan.tensors:
        padded[held.position] = _refilled(held, args[held.position], padded[held.position], kind)
    return plan.finish(args, padded, function(*padded))


def _refilled(held: PaddedArgument, own: torch.Tensor, padded: torch.Tensor, kind: str) -> torch.Tensor:
    """Return a padded argument with padding of another kind; ints keep to numbers that the argument itself holds."""
    if kind == "fill" or not held.dims or any(held.strides[dim] == 0 for dim in held.dims):
        return padded
    with torch.no_grad():
        filled = padded.clone() if padded.requires_grad else padded
        outside = torch.ones_like(filled, dtype=torch.bool)
        inner = outside
        for dim in held.dims:
            inner = inner.narrow(dim, 0, own.shape[dim])
        inner.fill_(False)
        if filled.dtype.is_floating_point or filled.dtype.is_complex:
            fills: dict[str, Fill] = {"nan": float("nan"), "huge": torch.finfo(filled.dtype).max}
            other = torch.randn(filled.shape, device=filled.device).to(filled.dtype)
            other = torch.full_like(filled, fills[kind]) if kind in fills else other
        elif own.numel():
            picked = torch.randint(own.numel(), filled.shape, device=filled.device)
            other = own.reshape(-1)[picked]
        else:
            return filled
        filled.copy_(torch.where(outside, other, filled))
    return filled


def _run(
    capture: Capture, run: Callable[[list[Any]], Any], args: Sequence[Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what a run gives, and what it leaves in the arguments that the graph writes to."""
    given = _copied(capture, args)
    with _same_random_numbers(args):
        results = [tensor.detach().clone() for tensor in tensors_in(run(given))]
    return results, [given[position].detach().clone() for position in capture.written]


def _copied(capture: Capture, args: Sequence[Any]) -> list[Any]:
    """Return arguments such that the graph's writes reach none of the call's own."""
    given = list(args)
    for position in capture.written:
        given[position] = strided_copy(args[position], args[position].stride())
    return given


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return strided_copy(value.detach(), value.stride()).requires_grad_()
    return value


@contextlib.contextmanager
def _same_random_numbers(args: Sequence[Any]) -> Iterator[None]:
    """While the context is open, random numbers begin at one seed; afterwards they go on as if nothing had happened."""
    devices = {value.device.index for value in args if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
    with torch.random.fork_rng(sorted(index for index in devices if index is not None)):
        torch.manual_seed(0)
        yield


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _far(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    """Return how far two lists of tensors are apart, where they are farther than two sizes of one computation may be."""
    if len(found) != len(expected):
        return f"{len(found)} tensors, not {len(expected)}"
    for one, other in zip(found, expected, strict=True):
        try:
            tolerance = _TOLERANCE.get(one.dtype)
            torch.testing.assert_close(one, other, equal_nan=True, rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    return ""


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far results of one computation at two sizes may be apart, for its products are summed in another order."""
