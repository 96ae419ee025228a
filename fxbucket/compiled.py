"""``fxbucket.compile``: a compiled model that is used like the model."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from fxbucket.backend import Backend
from fxbucket.data_parallel import check_sharded_within, holds_ddp, is_sharded, within_hooks
from fxbucket.data_parallel_compat import count_as_sharded, is_in_ddp, without_ddp_splitting
from fxbucket.explain import Explanation
from fxbucket.frame import CallFrame, capturing, entry_point
from fxbucket.hooks import HookWatch
from fxbucket.options import Options
from fxbucket.passes.errors import FxbucketError
from fxbucket.passes.program import Program
from fxbucket.profile import Recorder
from fxbucket.progress import progress_bar
from fxbucket.stale import unwatched
from fxbucket.torch_compat import original_error

_MOST_HOOK_STATES = 8
"""How many states of a model's hooks keep what was captured under them."""


class _Engine:
    """What a compiled module and a compiled function share: the captured frame, the backend and the calls."""

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        self.options = options
        self.model = model
        self.backend = Backend(options)
        self.hooks = HookWatch(model) if options.guards == "drop" and isinstance(model, torch.nn.Module) else None
        self._by_hooks: dict[Any, tuple[CallFrame, Callable[..., Any], Any]] = {}
        self.looked_at: type | None = None
        self.is_sharded = self.holds_ddp = False
        self.frame, self.function = self._captured(model)
        self.checked = False

    def _captured(self, model: Callable[..., Any]) -> tuple[CallFrame, Callable[..., Any]]:
        """Return the function that is captured while the hooks are those of now, and the same under torch.compile."""
        state = None if self.hooks is None else self.hooks.state, self.is_sharded
        if state not in self._by_hooks:
            frame = CallFrame(self.options.specs, entry_point(model))
            keep = {} if self.hooks is None else {"guard_filter_fn": self.hooks.keep_guards}
            compiled = torch.compile(frame.function, backend=self.backend, dynamic=False, options=keep or None)  # type: ignore[arg-type]
            self._by_hooks[state] = frame, compiled, self.hooks and self.hooks.holds
            if len(self._by_hooks) > _MOST_HOOK_STATES:
                del self._by_hooks[next(iter(self._by_hooks))]
        frame, compiled, _ = self._by_hooks[state]
        return frame, compiled

    def _look(self) -> None:
        """See how torch runs the model on several ranks; fully_shard changes the class of what it is given."""
        check_sharded_within(self.model)
        self.holds_ddp = holds_ddp(self.model)
        if isinstance(self.model, torch.nn.Module) and is_sharded(self.model) and not self.is_sharded:
            self.is_sharded = True
            self.frame, self.function = self._captured(self.model.forward)
        self.looked_at = type(self.model)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if type(self.model) is not self.looked_at:
            self._look()
        if self.hooks is not None and not self.hooks.is_settled():
            self.hooks.look()
            self.frame, self.function = self._captured(self.frame.model)
        if self.is_sharded:
            return within_hooks(self.model, lambda *args, **kwargs: self._call(args, kwargs), args, kwargs)  # type: ignore[arg-type]
        if self.holds_ddp or is_in_ddp():
            with without_ddp_splitting():
                return self._call(args, kwargs)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self.frame.bind(args, kwargs)
        if not self.checked:
            for spec in self.options.specs:
                for reading in spec.readings:
                    reading.read(call.arguments)
            self.checked = True
        if self.options.debug:
            args, kwargs = unwatched((args, kwargs))
        with capturing(call):
            try:
                return self.function(*args, **kwargs)
            except Exception as error:
                cause = original_error(error)
                if isinstance(cause, FxbucketError) and cause is not error:
                    raise cause from cause.__cause__
                raise

    def warmup(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with progress_bar(), self.backend.recording_all():
            self.call(args, kwargs)
            for dispatcher in self.backend.dispatchers:
                dispatcher.compile_all(with_dynamic=True)
            self.backend.wait()


class _Inspectable:
    """What users ask a compiled model."""

    _engine: _Engine

    def warmup(self, *args: Any, **kwargs: Any) -> None:
        """Capture the model for these arguments and compile everything now, with progress on the terminal.

        That is every pinned size, and the artifact for all others where ``on_miss="dynamic"``. The model runs once with the
        arguments. With ``cudagraphs``, every pinned size is recorded too, the largest first: it runs twice on arguments made
        up from these, so an op with effects that it does not declare has them then.
        """
        self._engine.warmup(args, kwargs)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is compiled in the background, at most ``timeout`` seconds; returns whether that is so."""
        return self._engine.backend.wait(timeout)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all captured graphs and compiled buckets to a file that :func:`fxbucket.load` reads in another process.

        Parameters and buffers are not in it. Call the model, or ``warmup()``, for all that is to be in it before.

        Raises:
            StoreError: nothing was captured yet; or the model holds something that has a meaning in this process only, or
                breaks into several graphs, or its compiler makes what cannot be saved; says what.
        """
        from fxbucket.saving import save

        save(path, self)  # type: ignore[arg-type]

    def explain(self) -> Explanation:
        """Return what was captured, cut, compiled and served so far; ``print`` shows tables."""
        return self._engine.backend.explain()

    def profile(self) -> AbstractContextManager[Recorder]:
        """Record each call while the context is open; ``explain().profile`` and the report show what was recorded.

        ``with compiled.profile(): ...``; calls are a little slower meanwhile, and on a GPU each piece is waited for.
        """
        return self._engine.backend.profile()

    @property
    def programs(self) -> tuple[Program, ...]:
        """One program for each captured graph, cut and with its decisions; symbolic."""
        return self._engine.backend.programs


class CompiledFunction(_Inspectable):
    """A compiled function; call it like the function."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self._engine = _Engine(function, options)
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._engine.call(args, kwargs)

    def __repr__(self) -> str:
        return f"fxbucket.compile({self.__wrapped__!r})"

    def __reduce__(self) -> Any:
        return CompiledFunction, (self.__wrapped__, self._engine.options)


class CompiledModule(_Inspectable, torch.nn.Module):
    """A compiled module; parameters, buffers, hooks, train/eval mode and state_dict are the module's own.

    Attributes that this class does not have are read from and written to the module. To ``isinstance`` it is of the
    module's class, so that libraries that look for a class of theirs (``transformers.Trainer``, ``peft``) take it for the
    module; methods of ``torch.nn.Module`` that the class overrides are the class's.

    Attributes:
        forward: makes a compiled call, and has the signature of the module's own. A function that is put in its place runs
            around compiled calls, and not within them: this is how ``accelerate`` enters autocast.
    """

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        # nn.Module.__init__ would give this object containers of its own; it has none, so that those of the module serve.
        engine = _Engine(module, options)
        self.__dict__["_module"] = module
        self.__dict__["_engine"] = engine
        self.__dict__["forward"] = _forward_of(engine)
        if is_sharded(module):
            count_as_sharded(self, module)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The module's class; ``type`` gives this one."""
        return type(self._module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            self.__dict__["forward"] = value
        else:
            setattr(self.__dict__["_module"], name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward":
            self.__dict__["forward"] = _forward_of(self._engine)
        else:
            delattr(self.__dict__["_module"], name)

    def __dir__(self) -> list[str]:
        return sorted({*type(self).__dict__, *dir(self._module)})

    def __repr__(self) -> str:
        return f"fxbucket.compile({self._module!r})"

    def __reduce__(self) -> Any:
        return _recompiled, (self._module, self._engine.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        import copy

        return CompiledModule(copy.deepcopy(self._module, memo), self._engine.options)


def _forward_of(engine: _Engine) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return engine.call(args, kwargs)

    # What frameworks read to know which columns of a data set the model takes.
    forward.__signature__ = engine.frame.signature  # type: ignore[attr-defined]
    return forward


def _of_the_module(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls the module's method of this name, and gives the compiled module for the module."""

    @functools.wraps(method)
    def called(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._module, name)(*args, **kwargs)
        return self if result is self._module else result

    return called


_OWN = {"forward", "compile", "modules", "named_modules", "_wrapped_call_impl", "_call_impl"}
"""Methods of ``torch.nn.Module`` that are not the module's: a compiled module is the root of its modules."""

# The module's class may override any of them: train() that keeps a norm in eval mode, to() that refuses a dtype.
for _name, _method in vars(torch.nn.Module).items():
    if isinstance(_method, types.FunctionType) and not _name.startswith("__") and _name not in _OWN:
        setattr(CompiledModule, _name, _of_the_module(_name, _method))


def _recompiled(module: torch.nn.Module, options: Options) -> CompiledModule:
    return CompiledModule(module, options)


def compile(model: Callable[..., Any], **options: Any) -> Any:
    """Compile a model for the sizes that matter; the result is used like the model.

    Args:
        model: a module or a function.
        **options: the fields of :class:`fxbucket.options.Options`, by name: ``sizes``, ``axes``, ``splitting_ops``,
            ``ranges``, ``on_miss``, ``compiler`` and the others.

    Returns:
        A :class:`CompiledModule` for a module, a :class:`CompiledFunction` for a function.

    Raises:
        OptionError, AxisError, SizeError, BoundaryError: an option is wrong; nothing is made.
        UnsupportedTorchError: torch is too old.
    """
    checked = Options.of(options)
    if isinstance(model, torch.nn.Module):
        return CompiledModule(model, checked)
    return CompiledFunction(model, checked)
