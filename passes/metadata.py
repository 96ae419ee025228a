"""Metadata with other sizes: build the fake tensor that a captured one becomes when symbols get values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch

from fxbucket.passes.errors import CaptureError, SizeError
from fxbucket.passes.symbolic import (
    SYMBOLIC_TYPES,
    FakeTensorMode,
    ShapeEnv,
    evaluate,
    expression_of,
    holds_transform_wrapper,
    is_fake,
    is_wrapper_subclass,
    symbols_in,
)
from fxbucket.passes.tensors import TensorFacts, build_plain, build_tensor, flat_storage

_DROPPED_META = frozenset({"grapharg", "tensor_dict", "unbacked_bindings", "tensor_meta"})
"""Keys of ``node.meta`` that only the capture itself can read; all hold symbolic values or real tensors."""


class MetadataMapper:
    """Rebuilds values in another fake-tensor mode, with the sizes that ``values`` gives.

    Kept exactly: dtype, device, dim order, strides, storage offset, storage length, shared storage between tensors,
    requires_grad, whether a tensor is a leaf of autograd, and whether it is a Parameter.
    """

    def __init__(self, values: Mapping[sympy.Symbol, object] | None, mode: FakeTensorMode, env: ShapeEnv | None) -> None:
        """Make a mapper.

        Args:
            values: a number, or a symbolic number of ``env``, for every symbol; ``None`` leaves every number as it is.
            mode: the mode in which tensors are built.
            env: the environment of ``mode``, where it has one.
        """
        self._values = values
        self._mode = mode
        self._env = env
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._storages: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def number(self, value: Any) -> Any:
        """Return a symbolic number with this mapper's values.

        Raises:
            SizeError: a symbol has no value.
        """
        if self._values is None:
            return value
        expression = expression_of(value)
        missing = symbols_in(expression) - self._values.keys()
        if missing:
            named = ", ".join(sorted(str(symbol) for symbol in missing))
            raise SizeError(f"size {expression} depends on {named}, which has no value in this bucket; name its axis too.")
        return evaluate(expression, self._values)

    def map(self, value: Any) -> Any:
        """Return ``value`` with every symbolic number and fake tensor in it rebuilt; containers keep their types."""
        if isinstance(value, SYMBOLIC_TYPES):
            return self.number(value)
        if isinstance(value, torch.Tensor):
            plain = is_fake(value) or isinstance(value, torch.nn.Parameter) or is_wrapper_subclass(value)
            return self._tensor(value) if plain else value
        if isinstance(value, torch.Size):
            return torch.Size([self.map(size) for size in value]) if symbols_in(value) else value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.map(item) for item in value))
        if isinstance(value, (tuple, list)):
            return type(value)(self.map(item) for item in value)
        if isinstance(value, dict):
            return {key: self.map(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.map(value.start), self.map(value.stop), self.map(value.step))
        return value

    def meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return a node's metadata with every value rebuilt, without what only the capture itself can read."""
        kept = {key: value for key, value in meta.items() if key not in _DROPPED_META and not holds_transform_wrapper(value)}
        return {key: self.map(value) for key, value in kept.items()}

    def _tensor(self, source: torch.Tensor) -> torch.Tensor:
        known = self._tensors.get(id(source))
        if known is not None:
            return known[1]
        if is_wrapper_subclass(source):
            raise CaptureError(
                f"a tensor of type {type(source).__name__} wraps other tensors; it cannot be made concrete yet."
            )
        if source.layout is not torch.strided or source.is_quantized:
            raise CaptureError(f"a tensor of layout {source.layout} has no strides; it cannot be made concrete.")
        facts = TensorFacts.of(source)
        mapped = replace(
            facts,
            sizes=tuple(self.map(size) for size in facts.sizes),
            strides=tuple(self.map(stride) for stride in facts.strides),
            offset=self.map(facts.offset),
        )
        storage = source.untyped_storage()
        built = None
        if storage._cdata not in self._storages:
            built = build_plain(mapped, self.map(storage.nbytes()), self._mode)
            if built is not None:
                self._storages[storage._cdata] = (source, built)
        if built is None:
            built = build_tensor(mapped, self._storage(source), self._mode, self._env)
        # The source is kept beside the result, so that its id is not given to another tensor.
        self._tensors[id(source)] = (source, built)
        return built

    def _storage(self, source: torch.Tensor) -> torch.Tensor:
        """Return a tensor over the storage that stands for the source's; one for all tensors that share it."""
        storage = source.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            length = self.map(storage.nbytes())
            known = (source, flat_storage(length, source.device, self._mode, self._env))
            self._storages[storage._cdata] = known
        return known[1]
