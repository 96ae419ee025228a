"""A field case: a fault that somebody met elsewhere, as a small model and the calls that show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxbucket.backend import Backend

Model = Callable[..., Any]
Calls = Sequence[tuple[Any, ...]]
Made = tuple[Model, Calls]
Wrap = Callable[[Model], Model]
Hook = Callable[..., None]


@dataclass(frozen=True)
class Case:
    """A model, the calls that showed a fault, and what else is right beside "equal to eager".

    Attributes:
        name: what the fault is about.
        make: gives the model and the arguments of each call, new and the same at each time.
        fault: the fault and what is right, for people.
        sources: where it was met: ``owner/repository#number``.
        axis: one size that varies, by the expression that reads it.
        also: other expressions that read sizes which vary, where all are named by the user.
        splitting_ops: where the fault needs a cut.
        tolerance: relative and absolute, for compilers that may order arithmetic anew; the eager one must give equal bits.
        unbacked: whether sizes that only the data decides must be captured.
        warns: what the one warning says; empty where nothing may be warned of.
        holds: called after each call with its number, its outputs and its arguments.
        inspect: called at the end with the backend.
        check: replaces the comparison with eager where that would not be the test; gets what compiles a model.
    """

    name: str
    make: Callable[[], Made]
    fault: str
    sources: tuple[str, ...] = ()
    axis: str = "x.shape[0]"
    also: tuple[str, ...] = ()
    splitting_ops: tuple[object, ...] = ("aten::sigmoid",)
    tolerance: float = 1e-5
    unbacked: bool = False
    warns: str = ""
    holds: Hook | None = None
    inspect: Callable[[Backend], None] | None = None
    check: Callable[[Wrap], None] | None = None

    def world(self) -> Made:
        """Return a model and arguments of their own."""
        torch.manual_seed(0)
        return self.make()

    def __str__(self) -> str:
        return self.name


def case(*sources: str, **facts: Any) -> Callable[[Callable[[], Made]], Case]:
    """Make a :class:`Case` of the function that builds it; its docstring says what the fault is and what is right."""

    def decorate(make: Callable[[], Made]) -> Case:
        return Case(make.__name__, make, make.__doc__ or "", sources, **facts)

    return decorate


def cases_in(module: Any) -> list[Case]:
    """Return the cases that a module defines, in order."""
    return [value for value in vars(module).values() if isinstance(value, Case)]
