"""The one place for torch's symbolic-shape internals: symbols, expressions, shape environments.

Checked with torch 2.11.0, 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._traceback import CapturedTraceback

from fxbucket.passes.buckets import NO_LOWER_BOUND, Range

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)

Number = int | float | bool
Expression: TypeAlias = sympy.Basic | int | float | bool
"""A size, stride, offset or scalar: a plain number, or a sympy expression over the capture's symbols."""


def is_fake(value: object) -> bool:
    """Whether ``value`` is a fake tensor: metadata without data."""
    return isinstance(value, FakeTensor)


def is_wrapper_subclass(value: object) -> bool:
    """Whether ``value`` is a tensor subclass that wraps other tensors (a jagged tensor, a DTensor)."""
    return isinstance(value, torch.Tensor) and bool(is_traceable_wrapper_subclass(value))


def holds_transform_wrapper(value: object) -> bool:
    """Whether a value is, or holds, a tensor of ``torch.func`` (batched, differentiated): it lives in its transform only."""
    if isinstance(value, torch.Tensor):
        return torch._C._functorch.is_functorch_wrapped_tensor(value)
    return isinstance(value, (tuple, list)) and any(holds_transform_wrapper(item) for item in value)


def is_unbacked(symbol: sympy.Basic) -> bool:
    """Whether the symbol stands for a value that only the data decides (a count of non-zeros, an ``item()``)."""
    return isinstance(symbol, sympy.Symbol) and symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def is_float_symbol(symbol: sympy.Basic) -> bool:
    """Whether the symbol stands for a Python float of the call."""
    return isinstance(symbol, sympy.Symbol) and symbol_is_type(symbol, (SymT.FLOAT, SymT.UNBACKED_FLOAT))


def expression_of(value: torch.SymInt | torch.SymFloat | torch.SymBool | Number) -> Expression:
    """Return the number, or the expression with the environment's replacements applied, behind a symbolic value."""
    if isinstance(value, SYMBOLIC_TYPES):
        expression = value.node.expr
        return _plain(expression)
    return value


def _plain(expression: sympy.Basic) -> Expression:
    """Return ``expression`` as a Python number where it is one."""
    if expression is sympy.true or expression is sympy.false:
        return bool(expression)
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Float):
        return float(expression)
    return expression


def symbols_in(value: object) -> frozenset[sympy.Symbol]:
    """Return the symbols in a symbolic number, a sympy expression, a tensor's metadata, or a container of them."""
    if isinstance(value, sympy.Basic):
        return frozenset(symbol for symbol in value.free_symbols if isinstance(symbol, sympy.Symbol))
    if isinstance(value, SYMBOLIC_TYPES):
        return symbols_in(value.node.expr)
    if isinstance(value, torch.Tensor):
        if is_wrapper_subclass(value) or value.layout is not torch.strided:
            return symbols_in(tuple(value.shape))
        storage = value.untyped_storage().nbytes() if is_fake(value) else 0
        return symbols_in((*value.shape, *value.stride(), value.storage_offset(), storage))
    if isinstance(value, Mapping):
        return symbols_in(tuple(value.values()))
    if isinstance(value, (tuple, list, set, frozenset)):
        return frozenset().union(*(symbols_in(item) for item in value)) if value else frozenset()
    if isinstance(value, slice):
        return symbols_in((value.start, value.stop, value.step))
    return frozenset()


def substitute(expression: Expression, binding: Mapping[sympy.Symbol, Number]) -> Expression:
    """Put the binding's numbers into an expression; exact, and a plain number once no symbol is left.

    Symbols that the binding does not name stay: nothing is ever guessed.
    """
    if not isinstance(expression, sympy.Basic):
        return expression
    free = symbols_in(expression)
    if not free:
        return _plain(expression)
    if free <= binding.keys():
        return evaluate(expression, binding)
    return _plain(expression.xreplace({symbol: sympy.sympify(binding[symbol]) for symbol in free if symbol in binding}))


class _Arithmetic(PythonReferenceAnalysis):
    int_truediv = staticmethod(operator.truediv)  # torch leaves it to sympy, which keeps a SymInt's expression


def evaluate(expression: Expression, values: Mapping[sympy.Symbol, object]) -> Number:
    """Evaluate an expression by Python's own arithmetic.

    Args:
        expression: any size expression of torch: floor and true division, ``Mod``, ``Min``, ``Max``, powers, comparisons.
        values: a value for every symbol; ints give an int, ``SymInt``s give a ``SymInt`` of their own environment.

    Raises:
        KeyError: a symbol has no value.
    """
    if not isinstance(expression, sympy.Basic):
        return expression
    plain = _plain(expression)
    if not isinstance(plain, sympy.Basic):
        return plain
    result = sympy_interp(_Arithmetic, dict(values), plain)
    if isinstance(result, sympy.Basic):
        result = _plain(result)
    if isinstance(result, float) and plain.is_integer and result.is_integer():
        # sympy folds some quotients of ints into a power of -1, whose Python value is a float.
        result = int(result)
    return result  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SymbolFacts:
    """What a shape environment knows of one symbol that a call's arguments decide.

    Attributes:
        symbol: the sympy symbol.
        sources: torch's names of the places that hold it, for example ``L['x'].size()[0]``.
        range: the inclusive range in which the capture is valid.
        hint: its value in the call that was captured.
    """

    symbol: sympy.Symbol
    sources: tuple[str, ...]
    range: Range
    hint: int | float


def fake_mode_of(values: Iterable[object]) -> FakeTensorMode | None:
    """Return the mode of the first fake tensor or symbolic number's environment in ``values``; ``None`` without one."""
    for value in values:
        if isinstance(value, FakeTensor):
            return value.fake_mode
        if isinstance(value, (tuple, list)):
            found = fake_mode_of(value)
            if found is not None:
                return found
    return None


def source_name(source: object) -> str:
    """Return torch's text for a source; a property since 2.12, a method before."""
    name = getattr(source, "name", None)
    return str(name() if callable(name) else name)


def read_symbols(env: ShapeEnv) -> tuple[SymbolFacts, ...]:
    """Return every backed symbol of the environment that stands for itself (was not replaced by another)."""
    # Renamed in 2.12; asking for the old name warns.
    hints: Mapping[sympy.Symbol, object] = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    sources: dict[sympy.Symbol, list[str]] = {}
    # Several sources may name one symbol: equal sizes that the capture proved equal, a view and its base.
    for place, symbol in _source_to_symbol(env).items():
        root = resolve(env, symbol)
        if isinstance(root, sympy.Symbol):
            sources.setdefault(root, []).append(place)
    for symbol, found in env.var_to_sources.items():
        root = resolve(env, symbol)
        if isinstance(root, sympy.Symbol):
            known = sources.setdefault(root, [])
            known.extend(name for name in map(source_name, found) if name not in known)
    facts = []
    for symbol, names in sources.items():
        hint = hints.get(symbol)
        if is_unbacked(symbol) or not isinstance(hint, (int, float, sympy.Integer, sympy.Float)):
            # A jagged tensor's ragged size has a stand-in of its own kind, which is no number.
            continue
        facts.append(SymbolFacts(symbol, tuple(names), _range_of(env, symbol), _python_number(hint)))
    return tuple(facts)


def constants_by_source(env: ShapeEnv) -> dict[str, int]:
    """Return the places whose symbol the capture fixed to one number, with that number."""
    fixed = {}
    for place, symbol in _source_to_symbol(env).items():
        root = resolve(env, symbol)
        if isinstance(root, int):
            fixed[place] = root
    return fixed


def expressions_by_source(env: ShapeEnv) -> dict[str, Expression]:
    """Return every place in a call's arguments that the environment has a symbol for, with what the symbol became."""
    return {place: resolve(env, symbol) for place, symbol in _source_to_symbol(env).items()}


def unbacked_range(env: ShapeEnv, symbol: sympy.Symbol) -> Range:
    """Return the inclusive range of a value that only the data decides."""
    return _range_of(env, symbol)


def _source_to_symbol(env: ShapeEnv) -> Mapping[str, sympy.Symbol]:
    found = getattr(env, "source_to_var", None)
    if found is None:
        found = getattr(env, "source_to_symbol", {})
    return {str(place): symbol for place, symbol in found.items() if isinstance(symbol, sympy.Symbol)}


def resolve(env: ShapeEnv, expression: sympy.Basic) -> Expression:
    """Apply the environment's replacements (``s3 -> s1``, ``s4 -> 8``) to an expression."""
    return _plain(env.replace(expression))


def _python_number(value: object) -> int | float:
    return float(value) if isinstance(value, (float, sympy.Float)) else int(value)  # type: ignore[call-overload]


def _range_of(env: ShapeEnv, symbol: sympy.Symbol) -> Range:
    bounds = env.var_to_range.get(symbol)
    if bounds is None or is_float_symbol(symbol):
        return Range(NO_LOWER_BOUND)
    lower, upper = bounds.lower, bounds.upper
    # A capture that knows nothing keeps sys.maxsize - 1 or infinity as the upper bound.
    unbounded = not isinstance(upper, sympy.Integer) or int(upper) >= 2**62
    start = int(lower) if isinstance(lower, sympy.Integer) else NO_LOWER_BOUND
    return Range(start, None if unbounded else int(upper))


def fresh_environment() -> tuple[ShapeEnv, FakeTensorMode]:
    """Return an empty shape environment and a fake-tensor mode over it, for one compilation."""
    env = ShapeEnv()
    return env, FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)


def adopt_symbol(env: ShapeEnv, symbol: sympy.Symbol, hint: int | float | None, bounds: Range) -> torch.SymInt:
    """Make a capture's symbol known in another environment, with the bounds that it has there.

    The symbol keeps its name, so that what a compiler records of it reads back without a translation.

    Args:
        env: where the symbol becomes known.
        symbol: the capture's symbol.
        hint: the value at which the compiler may try things; must lie in ``bounds``; ``None`` for an unbacked symbol.
        bounds: the inclusive range of the sizes that the compilation will serve.
    """
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc
    from torch.utils._sympy.value_ranges import ValueRanges

    upper = int_oo if bounds.end is None else sympy.Integer(bounds.end)
    env.var_to_range[symbol] = ValueRanges(sympy.Integer(bounds.start) if bounds.start > NO_LOWER_BOUND else -int_oo, upper)
    location = env._get_sloc()
    env.var_to_range_sloc[symbol] = ValueRangesSLoc(location, location)
    env.var_to_stack[symbol] = CapturedTraceback.extract()
    source = ConstantSource(str(symbol))
    if hint is not None:
        add_value = getattr(env, "add_backed_var_to_val", None) or env.add_var_to_val
        add_value(symbol, int(hint))
        env.var_to_sources[symbol] = [source]
        env.source_to_var[str(symbol)] = symbol
        env.symbol_guard_counter[symbol] = 0
    value = env.create_symintnode(symbol, hint=None if hint is None else int(hint), source=source)
    if not isinstance(value, torch.SymInt):
        raise TypeError(f"the shape environment made {value!r} of {symbol} instead of a symbol")
    return value


@contextlib.contextmanager
def without_guards(env: ShapeEnv | None) -> Iterator[None]:
    """Let metadata be built in ``env`` without recording what torch happened to ask meanwhile."""
    if env is None:
        yield
        return
    with env.suppress_guards():
        yield


def recorded_guards(env: ShapeEnv) -> tuple[tuple[sympy.Basic, str], ...]:
    """Return every condition that the environment holds true, each with the source line that asked for it."""
    found: dict[sympy.Basic, str] = {}
    for guard in env.guards:
        condition = env.replace(guard.expr)
        if condition is sympy.true:
            continue
        line = getattr(getattr(guard, "sloc", None), "maybe_user_loc", None)
        found.setdefault(condition, str(line) if line else "")
    return tuple(found.items())


def conditions_in(env: ShapeEnv, symbols: frozenset[sympy.Symbol]) -> tuple[sympy.Basic, ...]:
    """Return every condition on these symbols that the environment was asked and answered.

    Unlike :func:`recorded_guards` this does not apply the environment's replacements: a compilation that settled
    ``s3 == 8`` needs that very condition, and replacing ``s3`` by 8 in it would hide it.
    """
    found: dict[sympy.Basic, None] = {}
    for guard in env.guards:
        free = symbols_in(guard.expr)
        if free and free <= symbols:
            found.setdefault(guard.expr)
    return tuple(found)


def assume(env: ShapeEnv, conditions: Iterable[sympy.Basic]) -> None:
    """Make conditions that hold known in an environment, as if it had been asked for each of them and answered."""
    for condition in conditions:
        if not any(is_unbacked(symbol) for symbol in symbols_in(condition)):
            env.evaluate_expr(condition)


def asserted_at_run_time(env: ShapeEnv) -> tuple[sympy.Basic, ...]:
    """Return the conditions on values that only the data decides, which a run checks."""
    return tuple(checked.expr for found in env.deferred_runtime_asserts.values() for checked in found)


def with_symbolic_decompositions() -> contextlib.AbstractContextManager[object]:
    """Return a context in which composite ops take symbolic sizes, as they do while Dynamo captures."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Let tensors be computed for real, whichever modes are active."""
    with torch.utils._python_dispatch._disable_current_modes():
        yield
