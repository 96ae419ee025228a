"""Passes as values, and the pipeline that runs and records them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

from fxbucket.passes.errors import FxbucketError, PassError
from fxbucket.passes.program import Program, Step

Observer = Callable[[Step], None]
"""Called after each pass with what it did; observers look, they do not change anything."""


@runtime_checkable
class Pass(Protocol):
    """A pass takes a program and gives another; it never changes the one that it was given.

    Write one as a frozen dataclass whose fields are its options. ``requires`` and ``ensures`` may be left out.
    """

    name: ClassVar[str]

    def run(self, program: Program) -> Program:
        """Return the transformed program."""
        ...


class BasePass:
    """Contract checks that every pass of fxbucket shares; a pass overrides what it needs."""

    name: ClassVar[str] = ""

    def requires(self, program: Program) -> None:
        """Raise :class:`PreconditionError` when ``program`` lacks what this pass needs."""

    def run(self, program: Program) -> Program:
        """Return the transformed program."""
        raise NotImplementedError(f"{type(self).__name__} must define run(program)")

    def ensures(self, before: Program, after: Program) -> None:
        """Raise :class:`PassError` when the pass broke what it promises."""

    def __call__(self, program: Program) -> Program:
        """Run this pass alone, with its checks and its step in the trail."""
        return run_pass(self, program)


def run_pass(transform: Pass, program: Program, observers: Sequence[Observer] = ()) -> Program:
    """Run one pass with its checks and append its step to the program's trail.

    Raises:
        PassError: the pass gave something that is not a program, or failed with an error that is not fxbucket's own.
    """
    started = time.perf_counter()
    before = replace(program, findings=(), trail=())
    requires = getattr(transform, "requires", None)
    if requires is not None:
        requires(program)
    try:
        result = transform.run(before)
    except FxbucketError:
        raise
    except Exception as error:
        ran = ", ".join(step.name for step in program.trail) or "no other pass"
        raise PassError(f"pass {_label(transform)} failed after {ran}: {type(error).__name__}: {error}") from error
    if not isinstance(result, Program):
        raise PassError(f"pass {_label(transform)} gave {type(result).__name__}; a pass must return a Program.")
    ensures = getattr(transform, "ensures", None)
    if ensures is not None:
        ensures(program, result)
    after = replace(result, findings=(), trail=())
    step = Step(transform.name, _label(transform), before, after, time.perf_counter() - started, result.findings)
    for observer in observers:
        observer(step)
    return replace(after, trail=(*program.trail, step))


def _label(transform: Pass) -> str:
    return str(transform)


@dataclass(frozen=True)
class Pipeline:
    """Run passes one after the other; itself a pass.

    Attributes:
        passes: the passes in order.
        observers: called after each pass with its :class:`Step`.
    """

    passes: Sequence[Pass]
    observers: Sequence[Observer] = ()
    name: ClassVar[str] = "pipeline"

    def __post_init__(self) -> None:
        for transform in self.passes:
            if not isinstance(transform, Pass) or isinstance(transform, type):
                raise PassError(f"{transform!r} is not a pass: it needs a `name` and `run(program) -> Program`.")
        object.__setattr__(self, "passes", tuple(self.passes))

    def run(self, program: Program) -> Program:
        """Return what the last pass gives; the trail holds one step a pass."""
        for transform in self.passes:
            if isinstance(transform, Pipeline):
                program = replace(transform, observers=(*self.observers, *transform.observers)).run(program)
            else:
                program = run_pass(transform, program, self.observers)
        return program

    def __call__(self, program: Program) -> Program:
        """Run the passes; the same as :meth:`run`."""
        return self.run(program)
