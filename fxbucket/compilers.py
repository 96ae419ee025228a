"""Compilers: a piece with its metadata → a callable that runs it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
from torch import fx

from fxbucket.artifact import PieceCall
from fxbucket.custom_ops import taken_apart
from fxbucket.direct import Direct, direct_call
from fxbucket.inductor import inductor_compile, inductor_option_names
from fxbucket.passes.ambient import Ambient
from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import CompileError, FxbucketError, OptionError, nearest
from fxbucket.passes.form import Form
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.recreate import recreate
from fxbucket.passes.symbolic import FakeTensorMode, conditions_in, fake_mode_of, fresh_environment
from fxbucket.torch_compat import (
    backend_names,
    compiling_under,
    registered_backend,
    repeatable_backward,
    without_tracing,
)
from fxbucket.uncompiled import runner_of

Compile = Callable[[fx.GraphModule, Sequence[Any]], PieceCall]


def _run_as_is(module: fx.GraphModule, _: Sequence[Any]) -> PieceCall:
    return runner_of(module)


def compiler_for(compiler: str | Compile, inductor_options: Mapping[str, Any]) -> Compile:
    """Return the function that compiles one piece.

    Args:
        compiler: ``"inductor"``, ``"eager"``, another backend of ``torch.compile`` by name, or a callable that takes a
            module and fake example inputs.
        inductor_options: Inductor's configuration; only for ``"inductor"``.

    Raises:
        OptionError: there is no such compiler, or options are given to one that takes none.
    """
    if inductor_options and compiler != "inductor":
        raise OptionError(f"inductor_options are given, but the compiler is {compiler!r}; leave them out.")
    if compiler == "inductor":
        _check_inductor_options(inductor_options)
        return lambda module, inputs: inductor_compile(module, inputs, dict(inductor_options))
    if compiler == "eager":
        return _run_as_is
    if callable(compiler):
        return compiler
    known = backend_names()
    if compiler not in known:
        raise OptionError(f"compiler={compiler!r} is not a backend of torch.compile; {nearest(compiler, known)}.")
    return registered_backend(compiler)


def _check_inductor_options(options: Mapping[str, Any]) -> None:
    if not options:
        return
    known = inductor_option_names()
    for name in options:
        if name.replace("-", "_") not in known:
            raise OptionError(f"inductor_options: Inductor has no option {name!r}; {nearest(name, known)}.")


@dataclass(frozen=True, eq=False)
class Compiled:
    """What a compiler gave for one piece.

    Attributes:
        call: runs it; takes the inputs in the order in which the compiler was given them.
        seconds: how long the compiler took.
        conditions: what the compiler came to rely on, of the sizes that it was given as symbols.
    """

    call: PieceCall
    seconds: float
    conditions: tuple[sympy.Basic, ...] = ()

    @functools.cached_property
    def direct(self) -> Direct | None:
        """What runs it below its compiler's wrappers; ``None`` where it must be called as it is."""
        return direct_call(self.call)


def compile_piece(piece: Piece, program: Program, compiler: Compile) -> Compiled:
    """Compile one piece as it stands in its program, for the bucket that the program was made concrete for.

    What the compiler relies on is recorded in the program's own environment: see :func:`recorded_conditions`.

    Raises:
        CompileError: the compiler failed; names the piece and the bucket, and carries the compiler's own error.
    """
    placeholders = [node for node in piece.module.graph.nodes if node.op == "placeholder"]
    inputs = [value_of(node) for node in placeholders]
    mode = fake_mode_of([value_of(node) for node in piece.module.graph.nodes]) or fresh_environment()[1]
    # Compilers own what they are given, and some rewrite it; the program's graph stays as it is.
    module = fx.GraphModule(piece.module, _copied(piece.module))
    with _naming(f"{piece.name} for bucket {program.bucket}", piece.module, program.capture.ambient):
        return _compile(module, inputs, mode, program.capture.ambient, compiler)


def compile_form(form: Form, compiler: Compile, title: str) -> Compiled:
    """Compile one piece from its form; the call takes the inputs in the form's order.

    Args:
        form: a portable form.
        compiler: what compiles it.
        title: the piece and its bucket, for errors.

    Raises:
        CompileError: the compiler failed; names the piece and the bucket, and carries the compiler's own error.
    """
    made = recreate(form)
    with _naming(title, made.module, form.ambient):
        compiled = _compile(made.module, list(made.inputs), made.mode, form.ambient, compiler)
    return replace(compiled, conditions=made.conditions(form))


def _compile(
    module: fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode, ambient: Ambient, compiler: Compile
) -> Compiled:
    started = time.perf_counter()
    with without_tracing(), compiling_under(mode), ambient.restored(), repeatable_backward():
        call = compiler(module, inputs)
    return Compiled(call, time.perf_counter() - started)


@contextlib.contextmanager
def _naming(title: str, module: fx.GraphModule, ambient: Ambient) -> Iterator[None]:
    try:
        yield
    except FxbucketError:
        raise
    except Exception as error:
        names = taken_apart(module, ambient)
        mend = f" The compiler took {', '.join(names)} apart; splitting_ops={names} runs them as they are." if names else ""
        raise CompileError(f"compiling {title} failed: {type(error).__name__}: {str(error).rstrip()}{mend}") from error


def recorded_conditions(program: Program) -> tuple[sympy.Basic, ...]:
    """Return what compilations in a program's own environment came to rely on, and what the capture does."""
    mode = fake_mode_of(value_of(node) for piece in program.pieces for node in piece.module.graph.nodes)
    if mode is None or mode.shape_env is None:
        return ()
    return conditions_in(mode.shape_env, frozenset(program.open_symbols))


def _copied(module: fx.GraphModule) -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return graph
