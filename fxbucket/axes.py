"""Axes as users name them: Python expressions that read a size from the arguments of a call."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import Any, Literal

import torch

from fxbucket.passes.errors import AxisError, nearest

Segment = tuple[Literal["item", "attribute"], Any]


@dataclass(frozen=True)
class Reading:
    """One Python expression that reads an axis.

    Attributes:
        expression: as the user wrote it.
        root: the argument that it starts from.
        path: how to get from there to the tensor or the int: items and attributes.
        dim: the tensor's dimension, or ``None`` where the path leads to an int.
        keywords: the name under which the model takes other keyword arguments (``**kwargs``).
    """

    expression: str
    root: str
    path: tuple[Segment, ...]
    dim: int | None
    keywords: str = "kwargs"

    def resolved(self, arguments: Mapping[str, Any]) -> Reading:
        """Return the reading with items counted from the front, as torch writes them; unchanged where it cannot be read."""
        value = arguments.get(self.root)
        path: list[Segment] = []
        for kind, key in self.path:
            counted = kind == "item" and isinstance(key, int) and key < 0 and isinstance(value, Sequence)
            path.append((kind, key + len(value) if counted and isinstance(value, Sequence) else key))
            try:
                value = value[key] if kind == "item" else getattr(value, key)  # type: ignore[index]
            except (KeyError, IndexError, AttributeError, TypeError):
                return self
        return replace(self, path=tuple(path))

    def owner(self, arguments: Mapping[str, Any]) -> Any:
        """Return the tensor (or the int) that the expression reads in a call.

        Raises:
            AxisError: the call has no such argument, or the path does not lead to a tensor or an int.
        """
        if self.root not in arguments:
            possible = [name for argument in arguments for name in readings_of(argument, arguments[argument])]
            raise AxisError(
                f"axis {self.expression!r} names no argument of the model; {nearest(self.expression, possible)}."
            )
        value = arguments[self.root]
        for kind, key in self.path:
            try:
                value = value[key] if kind == "item" else getattr(value, key)
            except (KeyError, IndexError, AttributeError, TypeError) as error:
                possible = list(readings_of(self.root, arguments[self.root]))
                raise AxisError(
                    f"axis {self.expression!r} cannot be read: {type(error).__name__} {error}; "
                    f"{nearest(self.expression, possible)}."
                ) from error
        wanted = "a tensor" if self.dim is not None else "an int"
        right = isinstance(value, torch.Tensor) if self.dim is not None else type(value) is int
        if not right:
            possible = list(readings_of(self.root, arguments[self.root]))
            raise AxisError(
                f"axis {self.expression!r} must read {wanted}, but this call gives {type(value).__name__}; "
                f"{nearest(self.expression, possible)}."
            )
        if self.dim is not None and not -value.dim() <= self.dim < value.dim():
            raise AxisError(
                f"axis {self.expression!r}: the tensor has {value.dim()} dimensions, so the dim must be in "
                f"{-value.dim()}..{value.dim() - 1}."
            )
        return value

    def read(self, arguments: Mapping[str, Any]) -> int:
        """Return the size in a call; raises as :meth:`owner` does."""
        owner = self.owner(arguments)
        return int(owner.shape[self.dim]) if self.dim is not None else int(owner)

    def sources(self, num_dims: int | None) -> tuple[str, ...]:
        """Return torch's spellings of the place, for captures whose call is not at hand.

        Args:
            num_dims: the tensor's number of dimensions, to count a negative dim from the front.
        """
        steps = "".join(f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in self.path)
        size = ""
        if self.dim is not None:
            dim = self.dim if self.dim >= 0 else self.dim + (num_dims or 0)
            size = f".size()[{dim}]"
        roots = (f"L[{self.root!r}]", f"L[{self.keywords!r}][{self.root!r}]")
        return tuple(f"{root}{steps}{size}" for root in roots)


@dataclass(frozen=True)
class AxisSpec:
    """An axis as the user named it.

    Attributes:
        name: the short name, or the expression itself.
        readings: the expressions that read it; all are always equal.
    """

    name: str
    readings: tuple[Reading, ...]


def parse_reading(expression: object) -> Reading:
    """Parse one axis expression.

    Args:
        expression: ``"x.shape[0]"``, ``"x.size(0)"``, ``"batch['ids'].shape[1]"``, ``"xs[0].shape[-1]"`` or ``"n"``.

    Raises:
        AxisError: it is not such an expression.
    """
    if not isinstance(expression, str) or not expression.strip():
        raise AxisError(f"axis {expression!r} is not an expression; write one such as 'x.shape[0]' or 'n'.")
    wrong = AxisError(
        f"axis {expression!r} is not an expression that reads a size; write an argument's name, then items and attributes, "
        "then .shape[i] for a tensor: 'x.shape[0]', \"batch['ids'].shape[1]\", 'n'."
    )
    try:
        tree: ast.expr = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise wrong from error
    dim: int | None = None
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Attribute) and tree.value.attr == "shape":
        dim = _constant(tree.slice, int, wrong)
        tree = tree.value.value
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and tree.func.attr == "size":
        if len(tree.args) != 1 or tree.keywords:
            raise wrong
        dim = _constant(tree.args[0], int, wrong)
        tree = tree.func.value
    path: list[Segment] = []
    while not isinstance(tree, ast.Name):
        if isinstance(tree, ast.Subscript):
            path.append(("item", _constant(tree.slice, (int, str), wrong)))
            tree = tree.value
        elif isinstance(tree, ast.Attribute) and tree.attr != "shape":
            path.append(("attribute", tree.attr))
            tree = tree.value
        else:
            raise wrong
    return Reading(expression.strip(), tree.id, tuple(reversed(path)), dim)


def _constant(node: ast.expr, kinds: Any, wrong: AxisError) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError as error:
        raise wrong from error
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise wrong
    return value


def axis_specs(
    axes: Mapping[str, str | Sequence[str]] | None, names: Iterable[str]
) -> tuple[tuple[AxisSpec, ...], Callable[[str], str]]:
    """Return every axis that the user named, and a function from any spelling of one to its name.

    Args:
        axes: short name → expression, or several expressions that are always equal.
        names: what ``sizes`` and ``ranges`` call their axes: short names, or expressions.
    """
    specs: dict[str, AxisSpec] = {}
    spelled: dict[str, str] = {}
    for name, given in (axes or {}).items():
        expressions = [given] if isinstance(given, str) else list(given)
        if not expressions:
            raise AxisError(f"axis {name!r} has no expression; give at least one, such as 'x.shape[0]'.")
        readings = tuple(parse_reading(expression) for expression in expressions)
        specs[name] = AxisSpec(name, readings)
        if spelled.get(name, name) != name:
            raise AxisError(f"axis name {name!r} is also an expression of axis {spelled[name]!r}; choose another name.")
        spelled[name] = name
        for reading in readings:
            if spelled.get(reading.expression, name) != name:
                raise AxisError(
                    f"expression {reading.expression!r} is given to two axes, {spelled[reading.expression]!r} too."
                )
            spelled[reading.expression] = name
    for name in names:
        if name in spelled:
            continue
        reading = parse_reading(name)
        specs[name] = AxisSpec(name, (reading,))
        spelled[name] = name
    return tuple(specs.values()), lambda spelling: spelled[spelling]


def bound_arguments(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, defaults filled in and ``**kwargs`` spread out.

    Raises:
        TypeError: the arguments do not fit the signature; the same error that the model itself would raise.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        found[name] = value
        if signature.parameters[name].kind is Parameter.VAR_KEYWORD:
            found.update(value)
    return found


def readings_of(name: str, value: Any, depth: int = 3) -> Iterable[str]:
    """Yield every axis expression that an argument offers, for messages that list what was possible."""
    if isinstance(value, torch.Tensor):
        yield from (f"{name}.shape[{dim}]" for dim in range(value.dim()))
    elif type(value) is int:
        yield name
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from readings_of(f"{name}[{key!r}]", item, depth - 1)
    elif depth and isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from readings_of(f"{name}[{index}]", item, depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from readings_of(f"{name}.{field}", getattr(value, field, None), depth - 1)
