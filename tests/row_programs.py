"""Random programs of many ops, and calls of them with padded arguments.

A program is drawn line by line: a line that eager cannot run at one size is dropped, so that templates need not know shapes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from fxbucket.passes import Program
from fxbucket.passes.symbolic import expression_of, substitute
from tests.equality import tensors_of

SIZES = {"a": 7, "b": 5}
"""The sizes at which a program is drawn and captured."""

DYNAMIC = {"a": ["x.shape[0]", "y.shape[1]", "i.shape[0]"], "b": ["y.shape[0]"]}

UNARY = (
    "{v} + 1", "-{v}", "{v} * 2", "{v}.relu()", "{v}.abs()", "{v}.exp()", "{v}.clone()", "{v}.sigmoid()",
    "{v}.tanh()", "1 / {v}", "{v}.clamp(-2, 2)", "{v}.detach()", "torch.nan_to_num({v})", "{v} ** 2", "{v}.sign()",
    "torch.isnan({v}) * 1.0", "torch.nn.functional.gelu({v})", "torch.nn.functional.leaky_relu({v})",
    "torch.zeros_like({v})", "torch.ones_like({v})", "torch.full_like({v}, -float('inf'))",
    "torch.full_like({v}, 2.0)", "torch.empty_like({v}).fill_(3)", "torch.nn.functional.logsigmoid({v})",
    "torch.nn.functional.hardswish({v})", "torch.nn.functional.dropout({v}, 0.5)",
    "torch.nn.functional.dropout({v}, 0.5, training=False)", "torch.rand_like({v})", "{v}.float().double()",
    "{v} * 0", "torch.nn.functional.silu({v})",
)  # fmt: skip
BINARY = (
    "{v} + {u}", "{v} - {u}", "{v} * {u}", "{v} / {u}", "torch.maximum({v}, {u})", "torch.where({v} > 0, {v}, {u})",
    "torch.where({m}, {v}, {u})", "torch.where({m}, {v}, 0.0)", "{v}.masked_fill({m}, 0.0)",
    "{v}.masked_fill({m}, -float('inf'))", "torch.lerp({v}, {u}, 0.5)", "torch.addcmul({v}, {u}, {u})",
    "torch.minimum({v}, {u})", "{v}.copysign({u})",
)  # fmt: skip
VIEWS = (
    "{v}.unsqueeze({d})", "{v}.transpose({d}, {e})", "{v}.t()", "{v}[{c}]", "{v}[-1]", "{v}[1:]", "{v}[:-1]",
    "{v}[:2]", "{v}[::2]", "{v}[-2:]", "{v}[1:-1]", "{v}[..., 0]", "{v}[..., 1:]", "{v}[:, :2]", "{v}[:, -1]",
    "{v}.reshape(-1)", "{v}.flatten(0, 1)", "{v}.flatten(1)", "{v}.reshape({v}.shape[0], -1)",
    "{v}.reshape(-1, {v}.shape[-1])", "{v}.unsqueeze(0).expand(2, *{v}.shape)",
    "{v}.unsqueeze(-1).expand(*{v}.shape, 3)", "{v}.squeeze()", "{v}.squeeze({d})", "{v}.view(-1, 3)",
    "{v}.view(3, -1)", "{v}.unflatten(0, (-1, 1))", "{v}.permute(*range({v}.dim() - 1, -1, -1))",
    "{v}.repeat(2, *[1] * ({v}.dim() - 1))", "{v}.repeat(*[1] * ({v}.dim() - 1), 2)", "{v}.repeat_interleave(2, {d})",
    "{v}.tile((2,))", "{v}.diagonal()", "{v}.diagonal(1)", "{v}.unfold({d}, 2, 1)", "{v}.flip({d})",
    "{v}.roll(1, {d})", "torch.cat([{v}, {v}], {d})", "torch.cat([{v}, {u}], {d})", "torch.cat([{v}[:1], {v}], 0)",
    "torch.stack([{v}, {v}], {d})", "{v}.tril()", "{v}.triu()", "{v}.triu(1)", "torch.nn.functional.pad({v}, (0, 1))",
    "torch.nn.functional.pad({v}, (1, 0))", "torch.nn.functional.pad({v}, (0, -1))",
    "torch.nn.functional.pad({v}, (0, 0, 1, 0))", "{v}.contiguous()", "torch.nn.functional.pad({v}, (0, 0, 0, 1))",
    "torch.nn.functional.pad({v}, (0, 0, 0, 1), value=2.0)", "{v}.split(1, -1)[1]",
    "torch.split({v}, [1, {v}.shape[0] - 1])[1]", "torch.split({v}, [{v}.shape[0] - 1, 1])[0]",
    "torch.split({v}, [1, {v}.shape[0] - 1])[0]", "{v}.unbind({d})[0]", "{v}.chunk(2, {d})[0]",
    "{v}.chunk(3, -1)[-1]", "{v}.narrow(0, 0, 2)", "{v}.movedim(0, -1)", "{v}.new_zeros({v}.shape)",
    "{v}.expand_as({u})", "{u}[:{v}.shape[0]]", "w20[:{v}.shape[0]]", "w20[{v}.shape[0]:]", "{v}[:{v}.shape[0] // 2]",
    "{v}[{v}.shape[0] // 2:]", "{v}.select_scatter({v}[0], 0, 1)", "{v}.slice_scatter({v}[1:], 0, 1)",
    "{v}.slice_scatter({v}[:-1], 0, 0, -1)", "torch.swapaxes({v}, 0, -1).contiguous()",
    "torch.complex({v}, {v}).real",
)  # fmt: skip
MERGES = (
    "{v}[..., None] * w", "torch.nn.functional.linear({v}, z)", "torch.nn.functional.linear({v}, z, w)",
    "{v}.flatten(0, 1)", "({v}.flatten(0, 1) * 2).view({v}.shape)",
    "({v}.flatten(0, 1) + {u}.flatten(0, 1)).view({v}.shape)",
    "({v}.flatten(0, 1) + {v}.transpose(0, 1).flatten(0, 1)).view({v}.shape)",
    "{v}.flatten(0, 1).cumsum(0).view({v}.shape)", "({v}.flatten(0, 1) @ z).view({v}.shape)",
    "{v}.flatten(0, 1).softmax(-1).view({v}.shape)", "{v}.flatten(0, 1).sum(-1).view({v}.shape[:2])",
    "{v}.flatten(0, 1).relu_().view({v}.shape)", "{v}.flatten(0, 1)[1:]",
    "{v}.flatten(0, 1).view({v}.shape[1], {v}.shape[0], *{v}.shape[2:])",
    "{v}.permute(*range({v}.dim() - 1, -1, -1)).reshape(-1)", "{v}.transpose(0, 1).reshape(-1, {v}.shape[-1])",
    "{v}.transpose(0, 1).flatten(0, 1)", "{v}.flatten(0, 1).t()", "{v}.view(2, -1, {v}.shape[-1])",
    "{v}.reshape({v}.shape[0] * {v}.shape[1], *{v}.shape[2:])", "{v}.view({u}.shape)",
    "{v}.reshape({v}.shape[1], {v}.shape[0], *{v}.shape[2:])",
    "{v}.flatten(0, 1).unflatten(0, ({v}.shape[0], {v}.shape[1]))", "{v}.expand(2, *{v}.shape).flatten(0, 1)",
    "{v}.expand(2, *{v}.shape).flatten(0, 1).unflatten(0, (2, -1))",
    "torch.nn.functional.layer_norm({v}.flatten(0, 1), {v}.shape[-1:]).view({v}.shape)", "torch.matmul({v}, z)",
    "torch.einsum('...k,jk->...j', {v}, z)", "torch.einsum('bik,bjk->bij', {v}, {v})",
)  # fmt: skip
REDUCTIONS = (
    "{v}.sum({d})", "{v}.sum()", "{v}.mean({d})", "{v}.amax({d})", "{v}.amin({d})", "{v}.max({d})[0]",
    "{v}.prod({d})", "{v}.sum({d}, keepdim=True)", "{v}.mean(-1, keepdim=True)", "{v}.var({d})", "{v}.std()",
    "{v}.logsumexp({d})", "{v}.norm(dim={d})", "{v}.softmax({d})", "{v}.log_softmax({d})", "{v}.cumsum({d})",
    "{v}.cumprod({d})", "{v}.cummax({d})[0]", "{v}.sort({d})[0]", "{v}.topk(2, {d})[0]", "{v}.argmax({d}).double()",
    "{v}.argmax().double()", "{v}.median({d})[0]", "(({v} > 0).any({d})) * 1.0", "(({v} > 0).all({d})) * 1.0",
    "{v}.count_nonzero({d}).double()", "{v}.amax()", "torch.nn.functional.layer_norm({v}, {v}.shape[-1:])",
    "torch.nn.functional.rms_norm({v}, {v}.shape[-1:])", "torch.nn.functional.group_norm({v}.unsqueeze(1), 1)",
    "torch.nn.functional.batch_norm({v}, None, None, training=True)",
    "torch.nn.functional.batch_norm({v}, w, w.abs())", "{v}.diff(dim={d})",
    "torch.nn.functional.normalize({v}, dim={d})", "torch.nn.functional.mse_loss({v}, {u})",
    "torch.nn.functional.mse_loss({v}, {u}, reduction='none')", "torch.nn.functional.cross_entropy({v}, {i})",
    "torch.nn.functional.cross_entropy({v}, {i}, reduction='none')",
    "torch.nn.functional.cross_entropy({v}, {i}, label_smoothing=0.1)", "torch.nn.functional.glu({v}, {d})",
    "torch.nn.functional.nll_loss({v}, {i}, ignore_index=0)", "torch.linalg.vector_norm({v}, 2, {d})",
)  # fmt: skip
PRODUCTS = (
    "{v} @ {u}", "{v} @ {u}.t()", "{v}.t() @ {u}", "torch.einsum('ij,kj->ik', {v}, {u})",
    "torch.einsum('ij,ik->jk', {v}, {u})", "torch.einsum('ij,jk->ik', {v}, {u})",
    "torch.bmm({v}.unsqueeze(0), {u}.unsqueeze(0))", "torch.outer({v}, {u})", "torch.nn.functional.linear({v}, z)",
    "torch.nn.functional.linear({v}, z, w)", "torch.addmm({v}, {u}, z)", "torch.dot({v}, {u})", "torch.mv({v}, {u})",
    "{v}.matmul(z)", "torch.cdist({v}, {u})",
    "torch.nn.functional.scaled_dot_product_attention({v}[None, None], {u}[None, None], {u}[None, None])",
    "torch.nn.functional.scaled_dot_product_attention({v}[:, None, None], {v}[:, None, None], {v}[:, None, None])",
    "torch.nn.functional.scaled_dot_product_attention({v}[None, None], {v}[None, None], {v}[None, None], is_causal=True)",
    "torch.nn.functional.scaled_dot_product_attention({v}[None, None], z[None, None], z[None, None], is_causal=True)",
    "torch.nn.functional.conv1d({v}.unsqueeze(1), z[:1, :2].unsqueeze(0))",
    "torch.nn.functional.conv1d({v}[None], z[:, :, None])", "torch.nn.functional.avg_pool1d({v}, 2)",
    "torch.nn.functional.max_pool1d({v}, 2)", "torch.kron({v}, z)",
    "torch.nn.functional.avg_pool1d({v}.unsqueeze(1), 2)", "torch.baddbmm({v}[None], {u}[None], z[None])",
)  # fmt: skip
INDEXING = (
    "z[{i}]", "w[{i}]", "torch.nn.functional.embedding({i}, z)", "{v}[{i}]", "{v}.index_select(0, {i})",
    "{v}[:, {i}]", "{v}.gather(1, {i}.unsqueeze(1))", "{v}.gather(0, {i}.unsqueeze(1))",
    "torch.nn.functional.one_hot({i}, 3).double()", "{v}.index_select(-1, torch.tensor([0, 2, 1]))",
    "{v}[torch.tensor([0, 1])]", "{v}[:, torch.tensor([0, 1])]", "{v}.scatter(1, {i}.unsqueeze(1), 5.0)",
    "{v}.scatter(0, {i}.unsqueeze(1), 5.0)", "{v}.scatter_add(1, {i}.unsqueeze(1), {v})",
    "{v}.index_add(0, {i}, {v})", "{v}.index_add(1, torch.tensor([0, 1]), {v}[:, :2])", "{v}[{v} > 0].sum()",
    "{v}.index_put((torch.tensor([0, 1]),), w)", "{v}.index_put((torch.tensor([0, 1]),), {v}[0])",
    "{v}.nonzero().sum() * 1.0", "torch.zeros(3, dtype=torch.float64).index_add(0, {i}, {v}[..., 0])",
    "torch.bucketize({v}, w.sort()[0]).double()", "torch.searchsorted({v}.contiguous(), {v}.contiguous()).double()",
    "torch.take_along_dim({v}, {i}.unsqueeze(1), 1)", "{v}[{m}].sum()", "z[{i}, {i}]",
    "{v}[torch.arange({v}.shape[0]), {i}]", "torch.isin({v}, w) * 1.0", "torch.isin({v}, {u}) * 1.0",
    "{v}.masked_select({m}).sum()", "torch.bincount({i}, minlength=3).double()", "z.index_put(({i},), {v})",
    "z.index_put(({i},), {v}, accumulate=True)",
)  # fmt: skip
SIZED = (
    "{v} / {v}.shape[0]", "{v} + {v}.numel()", "torch.arange({v}.shape[0], dtype=torch.float64)",
    "torch.arange(1, {v}.shape[0], 2, dtype=torch.float64)", "torch.zeros({v}.shape[0], 3, dtype=torch.float64)",
    "torch.full((3,), float({v}.dim()), dtype=torch.float64)", "torch.eye({v}.shape[0], dtype=torch.float64)",
    "torch.ones({v}.shape[0], {v}.shape[0], dtype=torch.float64).tril()",
    "torch.full((3,), {v}.shape[0], dtype=torch.float64)", "torch.tensor({v}.shape[0]).double()",
    "torch.linspace(0, 1, {v}.shape[0], dtype=torch.float64)", "{v}.new_ones({v}.shape[0] * 2, 3)",
    "torch.arange({v}.shape[0], 20, dtype=torch.float64)", "torch.randn(3).double()",
    "torch.full(({v}.shape[0],), float('-inf'), dtype=torch.float64)", "{v}[: 9 - {v}.shape[0]]",
)  # fmt: skip
WRITES = (
    "{v}.add_(1)", "{v}.mul_(2)", "{v}.relu_()", "{v}.fill_(3)", "{v}.zero_()", "{v}[0] = 4", "{v}[:, 0] = 4",
    "{v}[1:] = 4", "{v}[:-1] = 4", "{v}[-1] = 4", "{v}[:-1].add_(1)", "{v}[1:].add_(1)", "{v}[::2].mul_(3)",
    "{v}.copy_({u})", "{v}.add_({u})", "{v}[:2].copy_({u}[:2])", "w20[:{v}.shape[0]].add_(1)",
    "w20[:{v}.shape[0]] = {v}[:, 0]", "{v}.t().add_(1)", "{v}.masked_fill_({m}, 0)",
    "{v}.index_put_((torch.tensor([0]),), {v}[0])", "{v}.scatter_(1, {i}.unsqueeze(1), 2)", "{v}.cumsum_(0)",
    "{v}[{i}] = 1", "{v}[{m}] = 1", "{v}.index_copy_(0, {i}, {v})", "{v}.view(-1).add_(1)", "{v}.uniform_()",
    "{v}.diagonal().add_(1)", "{v}.copy_({v}.flip(0))", "{v}.tril_()", "z[:2].add_({v}.sum())",
    "{v}.unsqueeze(0).mul_(2)", "{v}[:, 1:].copy_({v}[:, :-1].clone())", "{v}[2:].zero_()", "w20.add_({v}.sum())",
    "w20[1:3].add_(1)",
)  # fmt: skip
MASKS = (
    "{v} > 0", "{v} == {u}", "torch.isfinite({v})", "~{m}", "{m} & {n}", "{m} | {n}",
    "torch.ones_like({v}, dtype=torch.bool)", "torch.zeros_like({v}, dtype=torch.bool)", "{i} == 0",
    "{m}.unsqueeze(-1)", "{m}.unsqueeze(0)", "{m}.any(-1)", "{m}.cumsum(0) > 1",
    "torch.ones({v}.shape[0], {v}.shape[0], dtype=torch.bool).tril()", "{v}[..., 0] > 0", "{m}.logical_not()",
    "{v} == -float('inf')", "{m}.flip(0)",
)  # fmt: skip
FAMILIES = (
    UNARY,
    BINARY,
    BINARY,
    VIEWS,
    VIEWS,
    VIEWS,
    MERGES,
    MERGES,
    REDUCTIONS,
    REDUCTIONS,
    PRODUCTS,
    INDEXING,
    SIZED,
    WRITES,
)


def arguments(sizes: Mapping[str, int], seed: int) -> dict[str, torch.Tensor]:
    """Return arguments of these sizes: small integers in float64, and indices below 3."""
    generator = torch.Generator().manual_seed(seed)
    a, b = sizes["a"], sizes["b"]
    shapes = {"x": (a, 3), "y": (b, a), "w": (3,), "z": (3, 3), "w20": (20,)}
    made = {name: torch.randint(-3, 4, shape, generator=generator).double() for name, shape in shapes.items()}
    return made | {"i": torch.randint(0, 3, (a,), generator=generator)}


@dataclass(frozen=True)
class PaddedProgram:
    """A function over ``x`` (a, 3), ``y`` (b, a), ``w`` (3,), ``z`` (3, 3), ``w20`` (20,) and ``i`` (a,), as text."""

    source: str

    def function(self) -> Callable[..., Any]:
        """Return the program as a function of its own."""
        namespace: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, "<random program>", "exec"), namespace)
        made: Callable[..., Any] = namespace["program"]
        return made


Choose = Callable[[Sequence[Any]], Any]


def draw_program(choose: Choose, steps: int) -> PaddedProgram:
    """Draw a program of up to ``steps`` lines; ``choose`` takes one of several."""
    scope: dict[str, Any] = {"torch": torch, **arguments(SIZES, 1)}
    kinds: dict[str, list[str]] = {"float": ["x", "y", "x", "y", "w", "z", "w20"], "bool": [], "int": ["i"]}
    lines: list[str] = []
    for step in range(steps):
        makes_mask = choose(range(6)) == 0
        template = choose(MASKS if makes_mask else choose(FAMILIES))
        recent = kinds["float"][-4:]
        if "{m}" in template and not kinds["bool"]:
            continue
        expression = template.format(
            v=choose(choose([kinds["float"], recent])), u=choose(kinds["float"]), i=choose(kinds["int"]),
            m=choose(kinds["bool"] or ["None"]), n=choose(kinds["bool"] or ["None"]), d=choose([0, 1, -1, 0]),
            e=choose([0, 1, 2, -1]), c=choose([0, 1, 2]),
        )  # fmt: skip
        is_write = template in WRITES
        line = expression if is_write else f"v{step} = {expression}"
        try:
            exec(line, scope)
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue
        if not is_write:
            value = scope[f"v{step}"]
            if not isinstance(value, torch.Tensor) or value.dim() > 4 or value.numel() > 4000:
                continue
            kind = {torch.float64: "float", torch.bool: "bool"}.get(value.dtype)
            if kind is None:
                continue
            kinds[kind].append(f"v{step}")
        lines.append(line)
    names = [name for held in (kinds["float"], kinds["bool"]) for name in held if name.startswith("v")]
    returned = list(dict.fromkeys([*(names[-1:]), *(choose(names) for _ in range(2) if names)])) or ["x"]
    body = "\n".join(f"    {line}" for line in lines)
    return PaddedProgram(
        f"def program(x, y, w, z, w20, i):\n{body}\n    return ({', '.join(returned)}, x * 1, y * 1, i * 1)\n"
    )


def fits(program: Program, sizes: Mapping[str, int]) -> bool:
    """Whether a capture is valid for these sizes."""
    binding: dict[sympy.Symbol, Any] = {}
    for axis in program.axes:
        size = sizes["b" if axis.name == "b" else "a"]
        if axis.symbol is None:
            if axis.is_fixed and expression_of(axis.expression) != size:
                return False
            continue
        if size not in axis.range:
            return False
        binding[axis.symbol] = size
    return all(substitute(guard.condition, binding) in (True, sympy.true) for guard in program.capture.guards)


def run(program: Program, given: Mapping[str, torch.Tensor]) -> list[Any]:
    """Run the captured graph on arguments by name."""
    torch.manual_seed(0)
    scope = {"L": dict(given), "G": {}}
    values = [eval(placeholder.source, scope) for placeholder in program.capture.placeholders]
    return list(program.capture.module(*values))


def padded(real: torch.Tensor, shape: Sequence[int], fill: object, seed: int) -> torch.Tensor:
    """Return a tensor of this shape that begins with ``real``; ``fill`` is a number, or ``None`` for random ones."""
    generator = torch.Generator().manual_seed(seed)
    if fill is None or not real.is_floating_point():
        made = torch.randint(0 if not real.is_floating_point() else -9, 3, tuple(shape), generator=generator).to(real.dtype)
    else:
        made = torch.full(tuple(shape), fill, dtype=real.dtype)
    made[tuple(slice(0, size) for size in real.shape)] = real
    return made


def difference(real: Any, bucket: Any) -> str:
    """Return how what a bucket gave differs from what the call gives, or an empty text."""
    ours, theirs = list(tensors_of(bucket)), list(tensors_of(real))
    for position, (got, expected) in enumerate(zip(ours, theirs, strict=True)):
        if got.dim() != expected.dim() or any(one < other for one, other in zip(got.shape, expected.shape, strict=True)):
            return f"{position}: shape {tuple(got.shape)} holds no {tuple(expected.shape)}"
        block = got[tuple(slice(0, size) for size in expected.shape)]
        if not torch.allclose(block.double(), expected.double(), rtol=1e-9, atol=1e-9, equal_nan=True):
            return f"{position}: {block.tolist()} instead of {expected.tolist()}"
    return ""


def random_choose(seed: int) -> Choose:
    """Return a choice by a seeded generator."""
    return random.Random(seed).choice
