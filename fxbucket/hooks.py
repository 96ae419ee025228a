"""Hooks of a model's modules, looked at by one short check a call in the place of Dynamo's guards on each module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.utils.hooks import RemovableHandle

_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_ALL = tuple(f"_global{name}" for name in _OF_MODULES)
_EMPTY = "EMPTY_NN_MODULE_HOOKS_DICT"
"""Torch's name for a guard that a module has no hooks of a kind."""

_NO_HOOKS = re.compile(r"not .*\._(forward|backward)\w*_hooks\w*(\s+#.*)?")


def is_of_no_hooks(parts: Sequence[str]) -> bool:
    """Whether these texts of a guard say that a module has no hooks of a kind."""
    return all(_NO_HOOKS.fullmatch(part) for part in parts)


class HookWatch:
    """Knows which hooks the modules of a model have.

    A capture runs through the hooks that are there. Dynamo guards the absence of others with six guards a module, which are
    nearly half of what it checks before a call of a deep stack. A hook can only come with a new handle, or with a module
    that is put in the place of another: both are seen without a look at each module.

    Attributes:
        state: every hook that is there; equal values mean the same hooks of the same modules.
        holds: what keeps the identities in ``state`` from meaning anything else.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.look()

    def is_settled(self) -> bool:
        """Whether no hook can have come since the last :meth:`look`."""
        # Lists compare their items by identity first. A view shows what its module holds now; torch's containers that give
        # a module another dict of children, such as when one is deleted, empty the old one first.
        return RemovableHandle.next_id == self._next_handle and list(chain.from_iterable(self._views)) == self._children

    def look(self) -> None:
        """Find the hooks that are there."""
        self._next_handle = RemovableHandle.next_id
        modules = list(self._model.modules())
        self._views = [module._modules.values() for module in modules]
        self._children = list(chain.from_iterable(self._views))
        self._watched = {
            id(held)
            for module in modules
            for name, held in vars(module).items()
            if name.startswith(_OF_MODULES) and isinstance(held, dict)
        }
        found: list[tuple[Any, str, Any]] = [
            (module, name, getattr(module, name)) for module in modules for name in _OF_MODULES
        ]
        found += [(nn_module, name, getattr(nn_module, name, {})) for name in _OF_ALL]
        self.holds = [(owner, list(hooks.values())) for owner, _, hooks in found if hooks]
        self.state = tuple((id(owner), name, tuple(map(id, hooks.values()))) for owner, name, hooks in found if hooks)

    def keep_guards(self, guards: Sequence[Any]) -> list[bool]:
        """Say of each guard of a capture whether it is needed beside this watch; for torch's ``guard_filter_fn``."""
        return [not (guard.guard_type == _EMPTY and id(guard.value) in self._watched) for guard in guards]
