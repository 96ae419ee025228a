"""What a recording left in its memory → results of the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxbucket.copies import narrowed, strided_copy
from fxbucket.pad_plan import Own
from fxbucket.passes.program import Program, Ref


def given_results(program: Program) -> Any:
    """Return the structure of a program's results with the position of each that is an argument itself, else ``None``."""
    places = {placeholder.name: placeholder.index for placeholder in program.capture.placeholders}
    values = zip(program.capture.placeholders, program.capture.argument_values, strict=True)
    tensors = {placeholder.name for placeholder, value in values if isinstance(value, torch.Tensor)}

    def place(item: Any) -> Any:
        if isinstance(item, (tuple, list)):
            return tuple(place(part) for part in item)
        return places.get(item.name) if isinstance(item, Ref) and item.name in tensors else None

    return place(program.outputs)


def own_results(results: Any, given: Any, is_static: Any, cut: Any, args: Sequence[Any]) -> Any:
    """Return results that no later call writes over.

    Args:
        results: what ran returned.
        given: their structure, with the position of each that is an argument itself.
        is_static: their structure, with whether each is memory of the recording; or one answer for all.
        cut: their structure as a padding plan has it: what of each is the call's own; ``None`` where nothing was padded.
        args: the call's own arguments.
    """
    if isinstance(results, tuple):
        return tuple(
            own_results(
                result,
                given[place],
                is_static[place] if isinstance(is_static, tuple) else is_static,
                None if cut is None else cut[place],
                args,
            )
            for place, result in enumerate(results)
        )
    if isinstance(given, int):
        return args[given]
    if isinstance(cut, Own):
        return strided_copy(narrowed(results, cut.shape), cut.strides) if is_static else cut.of(results)
    if cut is not None:
        # A number that is a size of the call.
        return cut
    if is_static and isinstance(results, torch.Tensor):
        return strided_copy(results, results.stride())
    return results


def mark_results(results: Any, structure: Any, marks: Mapping[str, Callable[[Any], None]]) -> None:
    """Do to each result what is to be done to the value of its name."""
    if isinstance(structure, (tuple, list)):
        for result, part in zip(results, structure, strict=True):
            mark_results(result, part, marks)
    elif isinstance(structure, Ref) and structure.name in marks:
        marks[structure.name](results)
