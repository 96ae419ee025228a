"""Results that lie in memory of a recording, and tell who reads them after the next call wrote over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxbucket.graph_compat import nested_leaves, nested_map, without_torch_function
from fxbucket.graph_pool import GraphPool
from fxbucket.passes.aliasing import storage_of
from fxbucket.passes.errors import StaleResultError


class WatchedResult(torch.Tensor):
    """A result in memory of a recording, which may be read until the next call; made in debug mode alone.

    Whatever torch does with it looks first whether the memory still is this result's. Views of it are watched too.
    """

    _recordings: GraphPool
    _generation: int

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Look whether every watched argument may still be read, then do it."""
        watched = [item for item in nested_leaves((args, kwargs)) if isinstance(item, WatchedResult)]
        for item in watched:
            if item._generation != item._recordings.generation:
                now = item._recordings.generation - item._generation
                raise StaleResultError(
                    f"a result of a recording was read after {now} later call{'' if now == 1 else 's'} wrote over its "
                    f"memory: copy what is kept (.clone()) before the next call, or use cudagraph_outputs='copy'."
                )
        with without_torch_function():
            result = function(*args, **(kwargs or {}))
        memory = {_memory(item) for item in watched}

        def same(value: Any) -> Any:
            is_view = isinstance(value, torch.Tensor) and _memory(value) in memory
            return _watch(value, watched[0]._recordings, watched[0]._generation) if is_view else value

        return nested_map(same, result)


def _memory(tensor: torch.Tensor) -> int:
    with without_torch_function():
        return storage_of(tensor)


def _watch(tensor: torch.Tensor, recordings: GraphPool, generation: int) -> WatchedResult:
    with without_torch_function():
        made = tensor.as_subclass(WatchedResult)
    made._recordings, made._generation = recordings, generation
    return made


def watched(results: Any, is_static: Any, recordings: GraphPool) -> Any:
    """Return results with each watched that lies in memory of a recording, by their structure."""
    if isinstance(results, tuple):
        parts = zip(results, is_static, strict=True)
        return tuple(watched(result, part, recordings) for result, part in parts)
    if is_static and isinstance(results, torch.Tensor):
        return _watch(results, recordings, recordings.generation)
    return results


def unwatched(value: Any) -> Any:
    """Return arguments of a call with what is watched as plain tensors, whose time has not come yet.

    Raises:
        StaleResultError: one of them was written over.
    """
    return nested_map(lambda item: _plain(item) if isinstance(item, WatchedResult) else item, value)


def _plain(item: WatchedResult) -> torch.Tensor:
    alias: torch.Tensor = item.view_as(item)  # looks whether it may be read
    with without_torch_function():
        return alias.as_subclass(torch.Tensor)
