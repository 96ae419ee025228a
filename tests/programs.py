"""Random programs as Python source, and calls of them at random sizes.

A program is text, so that a failing example is a script that reproduces itself. All values are small integers in
float64, so that every order of evaluation gives the same bits and equality needs no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

AXES = ("a", "b")

Dim = tuple[int, int, int]
"""A size ``p*a + q*b + r`` as ``(p, q, r)``."""

A: Dim = (1, 0, 0)
B: Dim = (0, 1, 0)


def constant(size: int) -> Dim:
    """Return the size that does not vary."""
    return (0, 0, size)


@dataclass(frozen=True)
class Value:
    """A variable of the program being drawn.

    Attributes:
        name: its name.
        shape: its sizes.
        writable: whether it may be changed in place: no autograd leaf, no expanded view.
        differentiable: whether it is part of the loss.
    """

    name: str
    shape: tuple[Dim, ...]
    writable: bool = True
    differentiable: bool = False


@dataclass
class Draft:
    """The program so far."""

    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    count: int = 0
    returned: list[str] = field(default_factory=list)

    def fresh(self) -> str:
        """Return a new variable's name."""
        self.count += 1
        return f"v{self.count}"

    def add(self, expression: str, shape: tuple[Dim, ...], source: Value | None = None, writable: bool = True) -> None:
        """Append an assignment."""
        name = self.fresh()
        self.lines.append(f"{name} = {expression}")
        self.values.append(Value(name, shape, writable, source.differentiable if source is not None else False))


@dataclass(frozen=True)
class RandomProgram:
    """A function over ``x`` (a, 3), ``y`` (b, a) and ``w`` (3,), as text.

    Attributes:
        source: defines ``program(x, y, w)``.
        needs_grad: which of the three arguments require gradients.
    """

    source: str
    needs_grad: tuple[bool, bool, bool]

    def function(self) -> Callable[..., Any]:
        """Return the program as a function of its own."""
        namespace: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, "<random program>", "exec"), namespace)
        made: Callable[..., Any] = namespace["program"]
        return made

    def arguments(self, a: int, b: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Return arguments for these sizes; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        shapes = ((a, 3), (b, a), (3,))
        made = [torch.randint(-3, 4, shape, generator=generator).double() for shape in shapes]
        return tuple(tensor.requires_grad_(needs) for tensor, needs in zip(made, self.needs_grad, strict=True))


UNARY = (
    "{0} + 1", "{0} * 2", "-{0}", "torch.relu({0})", "{0}.abs()", "{0}.clone()", "{0}.sign()",
    "{0} * 1", "{0} + 0", "{0} * torch.ones_like({0})",
)  # fmt: skip


def _unary(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from(draft.values))
    op = draw(st.sampled_from(UNARY))
    draft.add(op.format(value.name), value.shape, value)


def _binary(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from(draft.values))
    same = [other for other in draft.values if other.shape == value.shape]
    other = draw(st.sampled_from(same))
    op = draw(st.sampled_from(["{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})", "torch.where({0} > 0, {0}, {1})"]))
    grad = value if value.differentiable else other
    draft.add(op.format(value.name, other.name), value.shape, grad)


def _view(draw: st.DrawFn, draft: Draft) -> None:
    ranked = [value for value in draft.values if len(value.shape) >= 1]
    value = draw(st.sampled_from(ranked))
    shape, name = value.shape, value.name
    choices: list[tuple[str, tuple[Dim, ...], bool]] = [
        (f"{name}.unsqueeze(0)", (constant(1), *shape), value.writable),
        (f"{name}[..., None]", (*shape, constant(1)), value.writable),
        (f"{name}.unsqueeze(1).expand(-1, 2, *{name}.shape[1:])", (shape[0], constant(2), *shape[1:]), False),
    ]
    if len(shape) >= 2:
        choices.append((f"{name}.transpose(0, 1)", (shape[1], shape[0], *shape[2:]), value.writable))
        choices.append((f"{name}[0]", shape[1:], value.writable))
    p, q, r = shape[0]
    if r >= 0 and p + q >= 1:
        choices.append((f"{name}[1:]", ((p, q, r - 1), *shape[1:]), value.writable))
        choices.append((f"{name}[: {name}.shape[0] - 1]", ((p, q, r - 1), *shape[1:]), value.writable))
    expression, new_shape, writable = draw(st.sampled_from(choices))
    draft.add(expression, new_shape, value, writable)


def _reshape(draw: st.DrawFn, draft: Draft) -> None:
    two = [value for value in draft.values if len(value.shape) == 2 and constant(3) in value.shape]
    if not two:
        return
    value = draw(st.sampled_from(two))
    p, q, r = value.shape[0] if value.shape[1] == constant(3) else value.shape[1]
    draft.add(f"{value.name}.reshape(-1)", ((3 * p, 3 * q, 3 * r),), value)


def _join(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from([value for value in draft.values if value.shape]))
    p, q, r = value.shape[0]
    draft.add(f"torch.cat([{value.name}, {value.name}])", ((2 * p, 2 * q, 2 * r), *value.shape[1:]), value)


def _reduce(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from([value for value in draft.values if value.shape]))
    op = draw(st.sampled_from([".sum(0)", ".sum(-1)", ".cumsum(0)", ".amax(0)"]))
    shape = {".sum(0)": value.shape[1:], ".sum(-1)": value.shape[:-1], ".amax(0)": value.shape[1:]}.get(op, value.shape)
    if op == ".amax(0)":
        # Ties share the gradient of a maximum; which share each gets is not exact.
        draft.add(f"{value.name}.detach(){op}", shape)
    else:
        draft.add(f"{value.name}{op}", shape, value)


def _matmul(draw: st.DrawFn, draft: Draft) -> None:
    two = [value for value in draft.values if len(value.shape) == 2]
    value = draw(st.sampled_from(two))
    other = draw(st.sampled_from([other for other in two if other.shape[1] == value.shape[1]]))
    grad = value if value.differentiable else other
    draft.add(f"({value.name} @ {other.name}.t()).clamp(-9, 9)", (value.shape[0], other.shape[0]), grad)


def _pieces_of_one(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from([value for value in draft.values if value.shape and sum(value.shape[0][:2]) >= 1]))
    p, q, r = value.shape[0]
    name = draft.fresh()
    draft.lines.append(f"{name} = torch.split({value.name}, [1, {value.name}.shape[0] - 1])")
    draft.add(f"{name}[0]", (constant(1), *value.shape[1:]), value, writable=False)
    draft.add(f"{name}[1]", ((p, q, r - 1), *value.shape[1:]), value, writable=False)


def _in_place(draw: st.DrawFn, draft: Draft) -> None:
    writable = [value for value in draft.values if value.writable]
    if not writable:
        return
    value = draw(st.sampled_from(writable))
    op = draw(st.sampled_from(["{0}.add_(1)", "{0}.mul_(2)", "{0}.clamp_(-5, 5)", "{0}.copy_({0}.flip(0))", "{0}.fill_(3)"]))
    if not value.shape and "flip" in op:
        op = "{0}.add_(1)"
    draft.lines.append(op.format(value.name))


def _size(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from([value for value in draft.values if value.shape]))
    name = draft.fresh()
    expression = draw(
        st.sampled_from(["{0}.shape[0]", "{0}.shape[0] // 2", "{0}.numel()", "{0}.size()[0] * 2 + 1", "len({0})"])
    )
    draft.lines.append(f"{name} = {expression.format(value.name)}")
    draft.sizes.append(name)


def _use_size(draw: st.DrawFn, draft: Draft) -> None:
    if not draft.sizes:
        return
    size = draw(st.sampled_from(draft.sizes))
    value = draw(st.sampled_from(draft.values))
    draft.add(f"{value.name} + {size}", value.shape, value)


def _allocate(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from([value for value in draft.values if value.shape]))
    made = draw(
        st.sampled_from(
            [
                ("{0}.new_zeros({0}.shape)", value.shape),
                ("torch.arange({0}.shape[0], dtype=torch.float64)", (value.shape[0],)),
                ("torch.full_like({0}, 2)", value.shape),
            ]
        )
    )
    draft.add(made[0].format(value.name), made[1])


def _no_grad(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from(draft.values))
    name = draft.fresh()
    draft.lines += ["with torch.no_grad():", f"    {name} = {value.name} * 3"]
    draft.values.append(Value(name, value.shape))


def _branch(draw: st.DrawFn, draft: Draft) -> None:
    value = draw(st.sampled_from(draft.values))
    test = draw(st.sampled_from(["x.shape[0] % 2 == 0", "x.shape[0] > 4", "y.shape[0] < x.shape[0]"]))
    name = draft.fresh()
    draft.lines.append(f"{name} = {value.name} + 10 if {test} else {value.name} - 10")
    draft.values.append(Value(name, value.shape, True, value.differentiable))


_STEPS = (
    _unary, _unary, _binary, _binary, _view, _view, _reshape, _join, _reduce, _matmul, _pieces_of_one, _in_place, _in_place,
    _size, _use_size, _allocate, _no_grad, _branch,
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, max_steps: int = 12) -> RandomProgram:
    """Draw a program of up to ``max_steps`` steps."""
    needs_grad = tuple(draw(st.booleans()) for _ in range(3))
    shapes = ((A, constant(3)), (B, A), (constant(3),))
    draft = Draft()
    for name, shape, needs in zip("xyw", shapes, needs_grad, strict=True):
        draft.values.append(Value(name, shape, writable=not needs, differentiable=needs))
    for _ in range(draw(st.integers(2, max_steps))):
        draw(st.sampled_from(_STEPS))(draw, draft)
    made = [value.name for value in draft.values if value.name not in "xyw"] or ["x"]
    returned = draw(st.lists(st.sampled_from(made + draft.sizes), min_size=1, max_size=4, unique=True))
    if made[-1] not in returned:
        returned.append(made[-1])
    if draw(st.booleans()):
        returned.append("x")
    body = "\n".join(f"    {line}" for line in draft.lines)
    source = f"def program(x, y, w):\n{body}\n    return {', '.join(returned)},\n"
    return RandomProgram(source, needs_grad)  # type: ignore[arg-type]


def calls(max_calls: int = 4, smallest: int = 2) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Draw the sizes of some calls."""
    size = st.integers(smallest, 9)
    return st.lists(st.tuples(size, size), min_size=1, max_size=max_calls)
