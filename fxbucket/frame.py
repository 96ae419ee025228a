"""The function that torch.compile captures for a model, and the call that is being made of it.

Each compiled model gets a function of its own with the model's signature, so that torch names the arguments as the user
does, and captures of one model never count against another's.
"""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fxbucket.axes import AxisSpec, bound_arguments
from fxbucket.generated import function_from
from fxbucket.passes.errors import AxisError
from fxbucket.torch_compat import CaptureWatch, hooks_are_guarded, mark_dim_dynamic


def entry_point(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable whose signature a call must fit; raises TypeError for what cannot be called."""
    if not callable(model):
        raise TypeError(f"{model!r} is not callable; give a module or a function.")
    return model


def signature_of(model: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that a call of the model must fit."""
    target = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        return inspect.signature(target)
    except ValueError:
        return inspect.Signature(
            [
                inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            ]
        )


@dataclass
class Call:
    """One call of a compiled model, while it runs.

    Attributes:
        specs: the axes that the user named.
        signature: what the arguments fit.
        args: positional arguments.
        kwargs: keyword arguments.
    """

    specs: Sequence[AxisSpec]
    signature: inspect.Signature
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    _arguments: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments by name."""
        if self._arguments is None:
            self._arguments = bound_arguments(self.signature, self.args, self.kwargs)
        return self._arguments

    @property
    def located(self) -> tuple[AxisSpec, ...]:
        """The axes with their readings as torch writes them for this call."""
        kinds = self.signature.parameters.values()
        keywords = next((kind.name for kind in kinds if kind.kind is inspect.Parameter.VAR_KEYWORD), "kwargs")
        return tuple(
            replace(
                spec,
                readings=tuple(replace(held, keywords=keywords).resolved(self.arguments) for held in spec.readings),
            )
            for spec in self.specs
        )


class CallFrame:
    """The function that is captured for one model.

    Attributes:
        model: the model.
        function: has the model's own parameters and calls the model.
        specs: the axes that the user named.
    """

    def __init__(self, specs: Sequence[AxisSpec], model: Callable[..., Any]) -> None:
        self.specs = specs
        self.model = model
        self.signature = signature_of(model)
        self.function = _function_like(self.signature, model)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Return the call with these arguments."""
        return Call(self.specs, self.signature, args, kwargs)


def _function_like(signature: inspect.Signature, model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a signature's parameters that calls ``model`` with them."""
    declared: list[str] = []
    passed: list[str] = []
    defaults: dict[str, Any] = {}
    star_seen = slash_needed = False
    for name, parameter in signature.parameters.items():
        kind = parameter.kind
        if slash_needed and kind is not inspect.Parameter.POSITIONAL_ONLY:
            declared.append("/")
            slash_needed = False
        if kind is inspect.Parameter.VAR_POSITIONAL:
            declared.append(f"*{name}")
            passed.append(f"*{name}")
            star_seen = True
            continue
        if kind is inspect.Parameter.VAR_KEYWORD:
            declared.append(f"**{name}")
            passed.append(f"**{name}")
            continue
        if kind is inspect.Parameter.KEYWORD_ONLY and not star_seen:
            declared.append("*")
            star_seen = True
        slash_needed = slash_needed or kind is inspect.Parameter.POSITIONAL_ONLY
        text = name
        if parameter.default is not inspect.Parameter.empty:
            text += f"=_fxbucket_default_{name}"
            defaults[f"_fxbucket_default_{name}"] = parameter.default
        declared.append(text)
        passed.append(f"{name}={name}" if kind is inspect.Parameter.KEYWORD_ONLY else name)
    if slash_needed:
        declared.append("/")
    called = "model"
    while called in signature.parameters:
        called = f"_{called}"
    source = f"def call({', '.join(declared)}):\n    return {called}({', '.join(passed)})\n"
    namespace: dict[str, Any] = {called: model, **defaults}
    return function_from(source, "call", f"call of {_model_name(model)}", namespace)


def _model_name(model: Callable[..., Any]) -> str:
    return getattr(model, "__qualname__", None) or type(model).__qualname__


_log = logging.getLogger("fxbucket.capture")


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[Call] = []
        self.undo: list[Callable[[], None]] = []


_calls = _Calls()


def current_call() -> Call | None:
    """Return the innermost call of a compiled model that runs in this thread."""
    return _calls.stack[-1] if _calls.stack else None


class capturing:  # noqa: N801 - used as a context manager alone; a generator would cost each call more
    """While the context is open, a capture in this thread is a capture of this call, and sees its axes as dynamic."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        _watch.ensure()
        _calls.stack.append(self._call)

    def __exit__(self, *_: object) -> None:
        _calls.stack.pop()


def _mark() -> None:
    """Make the axes of the current call dynamic for the capture that begins."""
    call = current_call()
    if call is None:
        return
    _log.debug("a capture begins; axes: %s", ", ".join(spec.name for spec in call.specs) or "none")
    int_sources: list[str] = []
    for spec in call.located:
        for reading in spec.readings:
            try:
                owner = reading.owner(call.arguments)
            except AxisError:
                # The first call had the axis; a later one may leave an optional argument out.
                continue
            if reading.dim is None:
                int_sources += (f"^{re.escape(source)}$" for source in reading.sources(None))
            elif owner.shape[reading.dim] >= 2:
                # Sizes 0 and 1 broadcast differently, so torch captures them on their own whatever is asked for.
                _calls.undo.append(mark_dim_dynamic(owner, reading.dim % owner.dim()))
    if int_sources:
        _patch(torch.compiler.config.patch(dynamic_sources=",".join(int_sources)))  # type: ignore[attr-defined]
    # torch leaves hooks unguarded by default: one that is registered after the capture would silently never run.
    _patch(hooks_are_guarded())


def before_capture_ends(action: Callable[[], None]) -> None:
    """Run an action at the end of the capture in progress in this thread, while its settings still hold."""
    _calls.undo.append(action)


def _patch(setting: AbstractContextManager[Any]) -> None:
    stack = ExitStack()
    stack.enter_context(setting)
    _calls.undo.append(stack.close)


def _unmark() -> None:
    while _calls.undo:
        _calls.undo.pop()()


_watch = CaptureWatch(_mark, _unmark)
