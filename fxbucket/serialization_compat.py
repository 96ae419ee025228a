"""The one place for torch's private names by which a capture is carried to another process: its guards and its bytecode.

Checked with torch 2.11.0, 2.13.0 and 2.14.1. Each function says which private name it stands for and why no public one
would do.
"""

from __future__ import annotations

import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch

from fxbucket.torch_compat import hooks_are_guarded

GuardText = tuple[str, str, tuple[str, ...]]
"""One guard: where its value is read from, its kind, and what it checks, as torch writes it."""


def capture_in_progress() -> Any | None:
    """Return Dynamo's state of the capture that is calling the backend; ``None`` outside of one.

    Stands for ``InstructionTranslator.current_tx``: the guards of a capture are complete only after the backend returned,
    and then nothing else leads to them.
    """
    from torch._dynamo import symbolic_convert

    translator = getattr(symbolic_convert.tls, "current_tx", None)
    return None if translator is None else translator.output


def captured_code(state: Any) -> types.CodeType:
    """Return the code of the function that is being captured."""
    code: types.CodeType = state.root_tx.f_code
    return code


def traced_code(state: Any) -> list[types.CodeType]:
    """Return the code of every function that a capture ran through; stands for ``TracingContext.traced_code``."""
    return list(state.tracing_context.traced_code)


def guarded_classes(state: Any) -> set[type]:
    """Return the classes whose objects a capture has guards on, and the classes that it guards themselves.

    To be called before the capture ends. Stands for what ``torch._guards.Guard`` keeps for people: within one process the
    identity of a class says what its methods are, elsewhere they must be compared.
    """
    found: set[type] = set()
    for guard in state.guards:
        held = [reference() for reference in (guard.guarded_class_weakref, guard.obj_weakref) if reference is not None]
        found.update(item for item in held if isinstance(item, type))
    return found


def guards_as_bytes(code: types.CodeType, state: Any) -> bytes:
    """Return the guards of a capture with the values that they were made for; to be called before the capture ends.

    Stands for ``CheckFunctionManager``, which ``torch.compiler``'s own precompilation uses. That one refuses guards on the
    identity of functions and modules, since in another process it may mean another object. They are written by name here,
    and :func:`guard_texts` tells whether what comes back is the same.

    Raises:
        Exception: a guard, or a value that it was made for, cannot be written; torch and pickle raise several kinds.
    """
    from torch._dynamo.guards import CheckFunctionManager

    with mock.patch.object(CheckFunctionManager, "UNSUPPORTED_SERIALIZATION_GUARD_TYPES", ()):
        manager = CheckFunctionManager(code, state, save_guards=True, strict_error=True)
    if manager.guards_state is None:
        raise TypeError("torch did not write the guards")
    return manager.guards_state


def guards_from_bytes(content: bytes, code: types.CodeType, scope: dict[str, Any]) -> Any:
    """Return the guards that :func:`guards_as_bytes` wrote, for a function with this code and these globals.

    Stands for ``torch._dynamo.package.load_guards_state`` and ``load_guard_manager``.

    Raises:
        Exception: they name something that this process does not have.
    """
    from torch._dynamo.package import load_guard_manager, load_guards_state

    with hooks_are_guarded(), torch._C.DisableTorchFunction():
        return load_guard_manager(load_guards_state(content), code, scope)


def guard_texts(guards: Any) -> Counter[GuardText]:
    """Return every guard of a manager as text, and how often it is there.

    Left out are guards on marks of dynamic dims, which say how to capture and nothing about what was captured.
    """
    found: Counter[GuardText] = Counter()
    root = guards.root
    for source, leaf in [*_leaves(root), *(("", leaf) for leaf in root.get_epilogue_lambda_guards())]:
        parts = tuple(_COMMENT.sub("", part).strip() for part in leaf.verbose_code_parts() if not _MARK.search(part))
        if parts:
            found[source, "" if "HASATTR" in type(leaf).__name__ else type(leaf).__name__, parts] += 1
    return found


_COMMENT = re.compile(r"  # (_dynamo/output_graph\.py:\d+ in \w+|<unknown>)$")
_MARK = re.compile(r"_dynamo_\w*indices")


def _leaves(manager: Any) -> Iterator[tuple[str, Any]]:
    source = manager.get_source()
    for leaf in manager.get_leaf_guards():
        yield source, leaf
    if isinstance(manager, torch._C._dynamo.guards.DictGuardManager):
        for _, pair in sorted(manager.get_key_value_managers().items()):
            for inner in pair:
                if inner is not None:
                    yield from _leaves(inner)
    for child in manager.get_child_managers():
        yield from _leaves(child)


def compiled_entries(code: types.CodeType) -> list[tuple[Any, types.CodeType]]:
    """Return the guards and the bytecode of every capture of a function.

    Stands for ``torch._dynamo.eval_frame._debug_get_cache_entry_list``.
    """
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return [(entry.guard_manager, entry.code) for entry in _debug_get_cache_entry_list(code)]


def backend_function(held: Any) -> Any:
    """Return what a backend returned, from what Dynamo made of it; stands for ``innermost_fn``."""
    from torch._dynamo.eval_frame import innermost_fn

    return innermost_fn(held)


def reserve_names(names: Iterable[str]) -> None:
    """Keep Dynamo from giving any of these names to something else; another process gave them.

    Stands for the counter behind ``unique_id``: a name that is there already would make a later capture fail.
    """
    from torch._dynamo.bytecode_transformation import unique_id

    taken = max((int(found[1]) for name in names if (found := _NUMBERED.search(name))), default=-1)
    while int(unique_id("reserved").rpartition("_")[2]) < taken:
        pass


_NUMBERED = re.compile(r"_(\d{1,7})$")


def install_entry(code: types.CodeType, guards: Any, bytecode: types.CodeType) -> None:
    """Have calls of a function with this code run this bytecode where these guards hold, before Dynamo captures anything.

    Stands for ``torch._C._dynamo.eval_frame._load_precompile_entry``.
    """
    from torch._C._dynamo.eval_frame import _load_precompile_entry

    _load_precompile_entry(code, guards, bytecode)


def without_capture(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that Dynamo leaves alone; as it does with what a backend returns."""
    left_alone: Callable[..., Any] = torch.compiler.disable(function)
    return left_alone
