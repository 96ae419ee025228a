"""Compilers: a piece with its metadata → a callable that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from fxbucket.artifact import Artifact, PieceCall
from fxbucket.passes.captured import value_of
from fxbucket.passes.errors import CompileError, FxbucketError, OptionError, nearest
from fxbucket.passes.program import Piece, Program
from fxbucket.passes.symbolic import fake_mode_of, fresh_environment
from fxbucket.torch_compat import (
    backend_names,
    compiling_under,
    inductor_compile,
    inductor_option_names,
    registered_backend,
    without_tracing,
)

Compile = Callable[[fx.GraphModule, Sequence[Any]], PieceCall]


def _run_as_is(module: fx.GraphModule, _: Sequence[Any]) -> PieceCall:
    return module.forward


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


def compile_piece(piece: Piece, program: Program, compiler: Compile) -> Artifact:
    """Compile one piece for the bucket that its program was made concrete for.

    A boundary, and a piece that holds nothing to compile, runs as it is.

    Raises:
        CompileError: the compiler failed; names the piece and the bucket, and carries the compiler's own error.
    """
    if not piece.is_compiled:
        return Artifact(piece.name, _run_as_is(piece.module, ()), "as it is")
    placeholders = [node for node in piece.module.graph.nodes if node.op == "placeholder"]
    inputs = [value_of(node) for node in placeholders]
    mode = fake_mode_of([value_of(node) for node in piece.module.graph.nodes]) or fresh_environment()[1]
    # Compilers own what they are given, and some rewrite it; the program's graph stays as it is.
    module = fx.GraphModule(piece.module, _copied(piece.module))
    started = time.perf_counter()
    try:
        with without_tracing(), compiling_under(mode), program.capture.ambient.restored():
            call = compiler(module, inputs)
    except FxbucketError:
        raise
    except Exception as error:
        raise CompileError(
            f"compiling {piece.name} for bucket {program.bucket} failed: {type(error).__name__}: {error}"
        ) from error
    return Artifact(piece.name, call, "compiled", time.perf_counter() - started)


def _copied(module: fx.GraphModule) -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return graph
