"""A model as the command line names it: ``module:factory`` or ``path/to/file.py:factory``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any, TextIO

import torch

import fxbucket
from fxbucket.frame import signature_of
from fxbucket.passes.errors import CaptureError, FxbucketError, OptionError, nearest
from fxbucket.passes.program import Program
from fxbucket.progress import progress_bar

_LONGEST = 300
"""Characters of an error that are shown; torch's may be pages long."""

_SHAPE = "return (model, args) or (model, args, kwargs), with args a tuple"


class ModelError(FxbucketError, RuntimeError):
    """The code that makes a model, or the model itself, failed."""


@dataclass(frozen=True)
class Example:
    """A model and the arguments of one call of it.

    Attributes:
        model: a module or a function.
        args: positional arguments.
        kwargs: keyword arguments.
    """

    model: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def load_example(text: str) -> Example:
    """Return what a factory makes; it is called without arguments.

    Args:
        text: ``module:factory`` or ``path/to/file.py:factory``. Modules are also looked for in the current folder.

    Raises:
        OptionError: there is no such module, file or factory, or what the factory returns is not a model with arguments.
        ModelError: the module or the factory raises an error.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise OptionError(f"model {text!r}: write module:factory or path/to/file.py:factory.")
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    factory: Any = module
    for part in name.split("."):
        if not hasattr(factory, part):
            # What a module imports is seldom meant.
            own = {key: value for key, value in vars(factory).items() if getattr(value, "__module__", "") == module.__name__}
            possible = [key for key, value in own.items() if callable(value) and not key.startswith("_")]
            raise OptionError(f"model {text!r}: {place} has no {name!r}; {nearest(part, possible)}.")
        factory = getattr(factory, part)
    if isinstance(factory, torch.nn.Module) or not callable(factory):
        kind = type(factory).__name__
        raise OptionError(f"model {text!r}: {name} is of type {kind!r}; name a function without parameters: {_SHAPE}.")
    try:
        with _prints_aside():
            made = factory()
    except Exception as error:
        raise ModelError(f"model {text!r}: {name}() raised {_told(error)}") from error
    return _example(made, text)


def called(example: Example, **options: Any) -> Any:
    """Return the model compiled with these options, after the example's call.

    Raises:
        ModelError: the call raised an error that is not fxbucket's.
    """
    compiled = fxbucket.compile(example.model, **options)
    # A terminal shows what compiles now; a file gets errors alone.
    progress = progress_bar() if sys.stderr.isatty() else contextlib.nullcontext()
    try:
        with _prints_aside(), progress:
            compiled(*example.args, **example.kwargs)
    except FxbucketError:
        raise
    except Exception as error:
        raise ModelError(_blame(example, error)) from error
    return compiled


def profile_calls(compiled: Any, example: Example, number: int) -> None:
    """Call a compiled model so many times, and record where the time goes."""
    with _prints_aside(), compiled.profile():
        for _ in range(number):
            compiled(*example.args, **example.kwargs)


def _blame(example: Example, error: Exception) -> str:
    """Return what a failed call says: the model's own error where it fails without fxbucket too."""
    try:
        with _prints_aside():
            example.model(*example.args, **example.kwargs)
    except Exception as own:
        return f"the model fails without fxbucket too: its call raised {_told(own)}"
    return f"the compiled model's call raised {_told(error)}"


def _prints_aside() -> contextlib.redirect_stdout[TextIO]:
    """Return a context in which a model's own prints stay out of what the command writes to standard output."""
    return contextlib.redirect_stdout(sys.stderr)


def captured_program(example: Example, number: int = 0, **options: Any) -> Program:
    """Return the program of one graph of the model, cut and with its buckets decided; the model runs once, uncompiled.

    Args:
        example: the model and its call.
        number: which graph, where the model breaks into several.
        **options: ``axes``, ``sizes`` and ``splitting_ops``, as for ``fxbucket.compile``.

    Raises:
        OptionError: there is no such graph.
        CaptureError: nothing was captured.
    """
    compiled = called(example, compiler="eager", compile_when="lazily", on_miss="eager", **options)
    programs: tuple[Program, ...] = compiled.programs
    if not programs:
        raise CaptureError("the model holds no tensor operation, so there is no graph to show.")
    if number >= len(programs):
        raise OptionError(f"graph {number} is not there: the model has {len(programs)}, numbered from 0.")
    return programs[number]


def _load_module(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ModelError(f"module {name!r} cannot be imported: {_told(error)}") from error
        raise OptionError(
            f"there is no module {error.name!r}; start in the folder that holds it, or give a path: path/to/file.py:factory."
        ) from error
    except Exception as error:
        raise ModelError(f"module {name!r} cannot be imported: {_told(error)}") from error


def _load_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise OptionError(f"there is no file {place!r}; give a path from {os.getcwd()}, or an absolute one.")
    # As for a script, modules beside the file can be imported.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # the name of the file ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look their module up by name.
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"file {place!r} cannot be imported: {_told(error)}") from error
    return module


def _told(error: Exception) -> str:
    """Return an error on one line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    said = shorten(" ".join(str(error).split()), _LONGEST, placeholder=" …")
    return f"{type(error).__name__}: {said}{where}" if said else f"{type(error).__name__}{where}"


def _example(made: object, text: str) -> Example:
    if callable(made):
        taken = ", ".join(signature_of(made).parameters)
        raise OptionError(
            f"model {text!r}: the factory gives a model alone ({type(made).__name__}); {_SHAPE}. The model takes ({taken})."
        )
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not callable(made[0]):
        kind = f"{type(made).__name__!r}" + (f" of {len(made)}" if isinstance(made, (tuple, list)) else "")
        raise OptionError(f"model {text!r}: the factory gives a value of type {kind}; {_SHAPE}.")
    model, args, kwargs = (*made, {}) if len(made) == 2 else made
    if not isinstance(args, (tuple, list)):
        mend = "(model, (), kwargs)" if isinstance(args, Mapping) else "(model, (x,))"
        raise OptionError(f"model {text!r}: the factory gives args of type {type(args).__name__!r}; write {mend}.")
    if not isinstance(kwargs, Mapping):
        raise OptionError(f"model {text!r}: the factory gives kwargs of type {type(kwargs).__name__!r}; give a dict.")
    return Example(model, tuple(args), dict(kwargs))
