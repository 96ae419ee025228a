"""The Python that a call runs: one straight-line function a bucket, and the look-up in front of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy
import torch

from fxbucket.artifact import Artifact
from fxbucket.emit_piece import piece_line
from fxbucket.generated import free_prefix, function_from
from fxbucket.passes.aliasing import written_overlap
from fxbucket.passes.buckets import NO_LOWER_BOUND, Range
from fxbucket.passes.captured import value_of
from fxbucket.passes.conditions import holds, python_condition
from fxbucket.passes.discover import cheapest_use
from fxbucket.passes.errors import CaptureError
from fxbucket.passes.program import Program, Ref, SymbolUse, last_uses
from fxbucket.passes.symbolic import Number, is_float_symbol, symbols_in


@dataclass(frozen=True, eq=False)
class Emitted:
    """A generated function and its source.

    Attributes:
        function: takes the arguments of the captured graph.
        source: what was compiled, for people to read.
    """

    function: Callable[..., Any]
    source: str


@dataclass(frozen=True, eq=False)
class Timing:
    """How a bucket's function tells where its time goes.

    Attributes:
        clock: gives seconds.
        record: gets the clock before the first piece and after each, once a call.
    """

    clock: Callable[[], float]
    record: Callable[[list[float]], None]


def bucket_function(
    program: Program,
    artifacts: Sequence[Artifact],
    conditions: Sequence[sympy.Basic],
    refused: Callable[[tuple[Any, ...]], Any],
    counter: list[int],
    hand_on: Mapping[str, Callable[[Any], None]] = MappingProxyType({}),
    timing: Timing | None = None,
    debug: bool = False,
) -> Emitted:
    """Return the straight-line function that runs a program's pieces.

    Args:
        program: made concrete for the bucket (or kept symbolic).
        artifacts: what runs each piece, in order.
        conditions: what must hold of the open symbols; where one does not, ``refused`` gets the arguments instead.
        refused: see ``conditions``.
        counter: its first item counts the calls.
        hand_on: what to do with a returned value before the model's Python goes on to another graph.
        timing: reads the clock around each piece; none by default, and then nothing is paid for it.
        debug: whether artifacts are called as they are, with all their wrappers and checks.
    """
    parameters = [placeholder.name for placeholder in program.capture.placeholders]
    own = _own_prefix(program)
    namespace: dict[str, Any] = {f"{own}counter": counter, f"{own}refused": refused, f"{own}math": math}
    lines = []
    tests = _tests(program, conditions, own, namespace)
    if tests:
        lines.append(f"if not ({' and '.join(tests)}):")
        lines.append(f"    return {own}refused(({', '.join(parameters)},))")
    lines.append(f"{own}counter[0] += 1")
    result = structure_text(program.outputs, namespace, own)
    last_use = last_uses(program)
    if timing is not None:
        namespace |= {f"{own}clock": timing.clock, f"{own}record": timing.record}
        lines.append(f"{own}marks = [{own}clock()]")
    for index, (piece, artifact) in enumerate(zip(program.pieces, artifacts, strict=True)):
        runner = f"{own}run_{piece.name}"
        lines.append(piece_line(program, piece, artifact, runner, namespace, debug))
        if timing is not None:
            lines.append(f"{own}marks.append({own}clock())")
        dead = sorted({name for name in (*piece.inputs, *piece.outputs) if last_use.get(name, -1) == index})
        if dead:
            lines.append(f"del {', '.join(dead)}")
    if timing is not None:
        lines.append(f"{own}record({own}marks)")
    for number, (name, action) in enumerate(hand_on.items()):
        namespace[f"{own}hand_on_{number}"] = action
        lines.append(f"{own}hand_on_{number}({name})")
    lines.append(f"return {result}")
    head = f"def bucket({', '.join(parameters)}):"
    title = f'    """Serves {program.bucket}."""'
    source = "\n".join([head, title, *(f"    {line}" for line in lines)]) + "\n"
    return _compiled(source, "bucket", f"bucket {program.bucket}", namespace)


def accept_function(program: Program, conditions: Sequence[sympy.Basic]) -> Emitted | None:
    """Return what tells whether the function of a bucket would serve a call's arguments; ``None`` where it always does.

    Args:
        program: made concrete for the bucket.
        conditions: what must hold of the open symbols.
    """
    own = _own_prefix(program)
    namespace: dict[str, Any] = {f"{own}math": math}
    tests = _tests(program, conditions, own, namespace)
    if not tests:
        return None
    parameters = ", ".join(placeholder.name for placeholder in program.capture.placeholders)
    source = f"def accepts({parameters}):\n    return {' and '.join(tests)}\n"
    return _compiled(source, "accepts", f"conditions of {program.bucket}", namespace)


def _tests(program: Program, conditions: Sequence[sympy.Basic], own: str, namespace: dict[str, Any]) -> list[str]:
    """Return, as Python, what must hold of a call's arguments beside what the look-up checks."""
    tests = [f"({_python(condition, own)})" for condition in _by_argument(program, conditions)]
    for symbol, value in program.binding.items():
        if is_float_symbol(symbol) and _is_held(program, symbol):
            # A float may have no literal (inf), or none that is exact in a printed sympy number.
            name = f"{own}float_{len(tests)}"
            namespace[name] = value
            tests.append(f"{_argument_reader(program, symbol)} == {name}")
    return tests


def _own_prefix(program: Program) -> str:
    """Return a prefix that no value of the program has, for the names that generated code uses for itself."""
    values = {placeholder.name for placeholder in program.capture.placeholders}
    values.update(name for piece in program.pieces for name in (*piece.inputs, *piece.outputs))
    return free_prefix(values)


def _python(condition: sympy.Basic, own: str) -> str:
    return re.sub(r"\bmath\.", f"{own}math.", python_condition(condition))


def _by_argument(program: Program, conditions: Sequence[sympy.Basic]) -> list[sympy.Basic]:
    """Return conditions with each symbol under the name by which the function's parameters give it."""
    names = {symbol: sympy.Symbol(_argument_reader(program, symbol), integer=True) for symbol in symbols_in(conditions)}
    return [condition.xreplace(names) for condition in conditions]


def _is_held(program: Program, symbol: sympy.Symbol) -> bool:
    """Whether anything in the captured graph depends on a symbol; torch makes some that its graph does without."""
    nodes = program.capture.module.graph.nodes
    return any(symbol in symbols_in((value_of(node), node.args, node.kwargs)) for node in nodes)


def _argument_reader(program: Program, symbol: sympy.Symbol) -> str:
    """Return the expression that reads a symbol from the function's parameters."""
    use = cheapest_use(program, symbol)
    if use is None:
        raise CaptureError(f"no argument of the graph holds {symbol}, so a condition on it cannot be checked at a call.")
    return _reader(use, program.capture.placeholders[use.placeholder].name)


def structure_text(structure: Any, namespace: dict[str, Any], own: str, name_of: Callable[[str], str] = str) -> str:
    """Return, as Python, a structure of values such as a program's results.

    Args:
        structure: references, numbers and containers of them.
        namespace: gets what has no literal.
        own: the prefix for its names.
        name_of: what the generated code calls a value.

    Raises:
        CaptureError: something in it cannot be carried.
    """
    if isinstance(structure, Ref):
        return name_of(structure.name)
    if isinstance(structure, (tuple, list)):
        inner = ", ".join(structure_text(item, namespace, own, name_of) for item in structure)
        return f"({inner}{',' if len(structure) == 1 else ''})"
    if structure is None or isinstance(structure, (bool, int, str)):
        return repr(structure)
    if isinstance(structure, (float, complex, torch.dtype, torch.device)):
        # A float such as inf has no literal, so it is kept as an object.
        name = f"{own}constant_{len(namespace)}"
        namespace[name] = structure
        return name
    raise CaptureError(f"the graph returns a {type(structure).__name__}, which fxbucket cannot carry: {structure!r}")


def _reader(use: SymbolUse, argument: str) -> str:
    """Return the expression that reads a symbol from an argument."""
    if use.field == "value":
        return argument
    if use.field == "item":
        return f"{argument}.item()"
    if use.field == "size":
        return f"{argument}.shape[{use.dim}]"
    return f"{argument}.stride({use.dim})" if use.field == "stride" else f"{argument}.storage_offset()"


def key_function(uses: Sequence[SymbolUse]) -> Emitted:
    """Return a function from the arguments to the values that these uses read: one value, or a tuple of several."""
    key = _key(uses)
    source = f"def key(args):\n    return {key}\n"
    return _compiled(source, "key", "key", {})


def _key(uses: Sequence[SymbolUse]) -> str:
    reads = [_reader(use, f"args[{use.placeholder}]") for use in uses]
    if len(reads) == 1:
        return reads[0]
    return f"({', '.join(reads)})"


@dataclass(frozen=True)
class RangeTest:
    """Which calls a bucket of ranges serves.

    Attributes:
        binding: the symbols that have one number.
        ranges: the symbols that have a range.
        conditions: what else must hold of symbols.
    """

    binding: Mapping[sympy.Symbol, Number]
    ranges: Mapping[sympy.Symbol, Range]
    conditions: tuple[sympy.Basic, ...] = ()

    @property
    def is_always(self) -> bool:
        """Whether it serves every call."""
        return not (self.binding or self.ranges or self.conditions)

    def holds(self, sizes: Mapping[sympy.Symbol, Number]) -> bool:
        """Whether it serves calls of these sizes, one for each symbol."""
        pinned = all(sizes[symbol] == value for symbol, value in self.binding.items())
        ranged = all(sizes[symbol] in held for symbol, held in self.ranges.items())
        return pinned and ranged and all(holds(condition, sizes) for condition in self.conditions)

    def python(self, names: Mapping[sympy.Symbol, str]) -> str:
        """Return the test as Python over these names of the symbols."""
        tests = [f"{names[symbol]} == {value}" for symbol, value in self.binding.items()]
        for symbol, held in self.ranges.items():
            if held.end is not None:
                tests.append(f"{held.start} <= {names[symbol]} <= {held.end}")
            elif held.start > NO_LOWER_BOUND:
                tests.append(f"{held.start} <= {names[symbol]}")
            if held.multiple_of > 1:
                tests.append(f"{names[symbol]} % {held.multiple_of} == 0")
        renamed = {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
        tests += [_python(condition.xreplace(renamed), "_") for condition in self.conditions]
        return " and ".join(f"({test})" for test in tests) or "True"


Ranged = tuple[Sequence[RangeTest], Sequence[Callable[..., Any]], dict[Any, int]]
"""The tests of ranges in their order, the function of each, and how often each combination of sizes was served."""


def dispatch_function(
    tables: Sequence[tuple[Sequence[SymbolUse], Mapping[Any, Callable[..., Any]]]],
    missed: Callable[[tuple[Any, ...]], Any],
    written: Sequence[int] = (),
    exposed: Sequence[int] = (),
    overlapping: Callable[..., Any] | None = None,
    uses: Mapping[sympy.Symbol, SymbolUse] = MappingProxyType({}),
    ranged: Ranged = ((), (), {}),
) -> Emitted:
    """Return the function that looks a call's sizes up and runs the bucket that it finds.

    Args:
        tables: for each set of axes that buckets pin, how to read their sizes, and the buckets' functions by size. The
            tables may grow later; the function sees it.
        missed: gets the arguments of a call that no table and no range serves.
        written: positions of the arguments that the graph writes to.
        exposed: positions of the others that could share memory with them.
        overlapping: runs a call in which they do.
        uses: where the symbols of ranges are read.
        ranged: ranges, tried in order after the tables; their functions may change later.
    """
    namespace: dict[str, Any] = {"_missed": missed}
    lines = []
    if written and len(written) + len(exposed) > 1:
        # Storages that all differ settle it; only where two are one does the look at byte ranges follow.
        storages = [f"args[{position}].untyped_storage()._cdata" for position in written]
        others = [f"args[{position}].untyped_storage()._cdata" for position in exposed]
        namespace |= {"_overlapping": overlapping, "_overlap": written_overlap, "_written": written, "_exposed": exposed}
        lines.append(f"storages = {{{', '.join(storages)}}}")
        test = f"len(storages) != {len(storages)}"
        if others:
            test += f" or not storages.isdisjoint(({', '.join(others)},))"
        lines += [f"if ({test}) and _overlap(args, _written, _exposed):", "    return _overlapping(*args)"]
    for number, (read, table) in enumerate(tables):
        namespace[f"_find_{number}"] = table.get
        lines += [f"found = _find_{number}({_key(read)})", "if found is not None:", "    return found(*args)"]
    lines += _range_lines(uses, ranged, namespace)
    lines.append("return _missed(args)")
    source = "def dispatch(*args):\n" + "".join(f"    {line}\n" for line in lines)
    return _compiled(source, "dispatch", "dispatch", namespace)


def _range_lines(uses: Mapping[sympy.Symbol, SymbolUse], ranged: Ranged, namespace: dict[str, Any]) -> list[str]:
    """Return the lines that try the ranges in order."""
    tests, functions, seen = ranged
    if not tests:
        return []
    names = {symbol: f"n{number}" for number, symbol in enumerate(uses)}
    namespace |= {"_ranged": functions, "_seen": seen, "_times": seen.get, "_math": math}
    lines = [f"{names[symbol]} = {_reader(use, f'args[{use.placeholder}]')}" for symbol, use in uses.items()]
    key = names[next(iter(uses))] if len(uses) == 1 else f"({', '.join(names.values())})"
    for number, test in enumerate(tests):
        lines += [f"if {test.python(names)}:", f"    _seen[{key}] = _times({key}, 0) + 1"]
        lines.append(f"    return _ranged[{number}](*args)")
    return lines


def _compiled(source: str, name: str, title: str, namespace: dict[str, Any]) -> Emitted:
    return Emitted(function_from(source, name, title, namespace), source)
