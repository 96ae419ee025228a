"""One line of Python a rule: what padding leaves alone, and what it reaches, with the reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes.rows import RowProof, positions_of, prove_rows

F = "torch.nn.functional."


def prove(
    expression: str, axes: str = "a", fills: dict[str, Any] | None = None, setup: str = "", **options: Any
) -> RowProof:
    """Prove a function of x (a, 4), y (b, a), w (4,), z (4, 4), long (20, 4), i (a,) ints below 4 and m (a,) bools."""
    torch.compiler.reset()
    lines = "".join(f"    {line}\n" for line in setup.splitlines())
    source = f"def model(x, y, w, z, long, i, m):\n{lines}    return {expression}, x * 1, y * 1, i * 1, ~m\n"
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<model>", "exec"), scope)
    given = (
        torch.randn(7, 4), torch.randn(5, 7), torch.randn(4), torch.randn(4, 4), torch.randn(20, 4),
        torch.arange(7) % 4, torch.arange(7) > 2,
    )  # fmt: skip
    named = {"a": ["x.shape[0]", "y.shape[1]", "i.shape[0]", "m.shape[0]"], "b": ["y.shape[0]"]}
    program = fxbucket.capture(scope["model"], *given, dynamic=list(named), axes=named)
    symbols = {symbol for axis in axes for symbol in program.capture.axis(axis).symbols}
    return prove_rows(program, symbols, fills=positions_of(program.capture, fills or {}))


SAFE = [
    "x.relu() + 1", "x + w", "x * x[:, :1]", "torch.where(m[:, None], x, 0.0)", "x.masked_fill(m[:, None], 1)", "x @ z",
    "x @ x.t()", "torch.einsum('ij,kj->ik', x, x)", F + "linear(x, z, w)", "torch.bmm(x[:, None], x[:, :, None])",
    "torch.outer(x[:, 0], w)", F + "layer_norm(x, (4,), w)", F + "rms_norm(x, (4,))", F + "group_norm(x, 2)",
    F + "batch_norm(x, w, w * w)", "x.softmax(1)", "x.log_softmax(-1)", "x.sum(1)", "x.mean(-1, keepdim=True)",
    "x.var(1)", "x.amax(1)", "x.argmax(1)", "x.logsumexp(1)", "x.norm(dim=1)", "x.any(1)", "x.cumsum(0)", "x.cumprod(1)",
    "x.sort(1)[0]", "x.topk(2, 1)[0]", "x.median(1)[0]", "x.flip(1)", "x.roll(1, 1)", F + "glu(x, 1)", "x.diff(dim=0)",
    "x.t()", "x[None].permute(2, 1, 0)", "x.reshape(-1)", "x.reshape(-1, 2)", "x.view(-1, 2, 2).flatten(0, 1)",
    "x[:, None].squeeze(1)", "x[0]", "x[1:]", "x[:-1]", "x[::2]", "x[:2]", "x[2:-1]", "x[:, -1]", "x[: x.shape[0] - 2]",
    "long[: x.shape[0]]", "w.expand(x.shape[0], 4)", "x.split(2, 1)[1]", "x.unbind(1)[3]", "x.chunk(2, 1)[1]",
    "torch.split(x, [1, x.shape[0] - 1])[1]", "x.diagonal()", "x.unfold(0, 2, 1)", "torch.cat([x, x], 1)",
    "torch.cat([z, x])", "torch.stack([x, x])", "x.repeat(1, 2)", "x.repeat_interleave(2, 0)", "x.tril()",
    F + "pad(x, (1, 2))", F + "pad(x, (0, 0, 2, 0))", F + "pad(x, (0, 0, 0, -1))", "z[i]", F + "embedding(i, z)",
    "z[i, i]", "x[:, torch.tensor([0, 3])]", "x.gather(1, i[:, None])", "x.scatter(1, x[:, :1].long(), 3.0)",
    "x.scatter_add(1, x[:, :2].long(), x)", "torch.bucketize(x, w)", "x.index_select(1, torch.tensor([0, 1]))",
    "x.index_add(1, torch.tensor([0]), x[:, :1])", "torch.arange(x.shape[0])", "torch.zeros(x.shape[0], 3)",
    "torch.eye(x.shape[0])", "torch.ones_like(x)", "torch.arange(1, x.shape[0], 2)",
    F + "cross_entropy(x, i, reduction='none')", F + "mse_loss(x, x, reduction='none')",
    F + "dropout(x, 0.5, training=False)", F + "conv1d(x[:, None], z[:1, :2][None])", F + "max_pool1d(x[:, None], 2)",
    F + "avg_pool1d(x[:, None], 2)", "torch.randn(3) + w[:3]", "x.shape[0] * 2", "x.numel()",
    F + "scaled_dot_product_attention(*[x[:, None, None]] * 3)",
    F + "scaled_dot_product_attention(x[None, None], z[None, None], z[None, None])", "x.select_scatter(w, 0, 1)",
    "x[torch.arange(x.shape[0])]", "x[torch.arange(x.shape[0] - 1) + 1]", "x[torch.arange(0, x.shape[0], 2)]",
    "x.index_select(0, torch.arange(x.shape[0]).clone())", "x.gather(0, torch.arange(x.shape[0])[:, None].expand(-1, 4))",
    "y[torch.arange(y.shape[0])[:, None], torch.arange(y.shape[1])]",
    "torch.arange(x.shape[0])[None].expand(3, -1)[torch.zeros(1, 1, dtype=torch.int64), torch.arange(x.shape[0])]",
    "x[torch.stack([torch.arange(x.shape[0])] * 2)]", "x.slice_scatter(x[1:] * 2, 0, 1)",
    "(x > 0).float().mean(1)", "torch.nan_to_num(1 / x)", "x.to(torch.float16)",
]  # fmt: skip

UNSAFE = [
    ("x.sum()", "it reduces over dim 0 (a)"), ("x.mean(0)", "it reduces over dim 0 (a), padded rows too"),
    ("x.amax(0)", "reduces over dim 0"), ("x.var(0)", "reduces"), ("x.argmax()", "reduces"), ("x.any()", "reduces"),
    ("x.median()", "reduces"), ("x.norm()", "reduces"), ("x.logsumexp(0)", "reduces"),
    ("x.softmax(0)", "it normalizes over dim 0 (a)"), ("x.log_softmax(0)", "normalizes"),
    ("x.t() @ x", "it sums over dim 1 (a)"), ("y @ x", "it sums over dim 1 (a)"),
    ("torch.einsum('ij,ik->jk', x, x)", "sums over"), ("torch.dot(x[:, 0], x[:, 0])", "sums over"),
    (F + "layer_norm(x, x.shape)", "the number a goes into its result"),
    (F + "batch_norm(x, None, None, training=True)", "statistics"),
    (F + "group_norm(x.t()[None], 2)", "the number a goes into its result"), ("x.sort(0)[0]", "it orders dim 0 (a)"),
    ("x.topk(2, 0)[0]", "orders"), ("x.flip(0)", "turns around"), ("x.roll(1, 0)", "rolls over"),
    ("x.roll(1)", "rolls over"), ("x.flip(0).cumsum(0)", "turns around"),
    ("x.t().reshape(-1)", "padding comes between what is real"),
    ("x[:, None].expand(-1, 2, -1).transpose(0, 1).flatten(0, 1)", "between"),
    ("x[-1]", "index -1 counts from the end of dim 0 (a)"), ("x[-2:]", "a slice from -2 counts from the end"),
    ("x[x.shape[0] // 2 :]", "the number (a//2) goes into its result"),
    ("long[x.shape[0] :]", "the number a goes into its result"), ("x.chunk(2)[1]", "may fall while the axis grows"),
    ("torch.split(x, [x.shape[0] - 1, 1])[1]", "begins at a - 1"),
    ("torch.cat([x, z])", "rows behind the padding of dim 0 (a)"), ("x.repeat(2, 1)", "it repeats dim 0 (a)"),
    (F + "pad(x, (0, 0, 0, 1))", "it puts 1 rows behind"), ("x[i]", "where an index says, which may be a padded row"),
    ("x[torch.arange(x.shape[0]) + 1]", "which may be a padded row"), ("x[torch.arange(x.shape[0]) - 1]", "padded row"),
    ("x[-torch.arange(x.shape[0])]", "padded row"), ("x[torch.arange(x.shape[0]).flip(0)]", "turns around"),
    ("x[torch.arange(20)]", "padded row"), ("x[torch.arange(x.shape[0]).to(torch.int8).long()]", "padded row"),
    ("x[torch.arange(x.shape[0]).mul_(-1)]", "padded row"), ("x[torch.arange(x.shape[0], 2 * x.shape[0]) - 7]", "goes into"),
    ("x.index_select(0, i)", "which may be a padded row"), ("x.gather(0, i[:, None])", "which may be a padded row"),
    ("x[m]", "depends on the data"), ("x[x > 0]", "depends on the data"), ("x.nonzero()", "depends on the data"),
    ("x.masked_select(x > 0)", "depends on the data"), ("z.index_put((i,), x)", "where padded indices say"),
    ("z.index_add(0, i, x)", "where an index says"), ("z.scatter(0, i[:, None], x)", "writes along"),
    ("torch.bincount(i, minlength=4)", "goes over every row"), ("torch.isin(w, x)", "goes over every row"),
    ("torch.bucketize(w, x[:, 0])", "reads from dim 0"), ("x / x.shape[0]", "the number a goes into its result"),
    ("torch.full((3,), x.shape[0])", "the number a"), ("torch.tensor(x.shape[0])", "the number a"),
    ("x + x.numel()", "the number 4*a"), ("torch.arange(x.shape[0], 20)", "the number a"),
    ("torch.rand_like(x)", "random numbers"), (F + "dropout(x, 0.5)", "random numbers"),
    ("torch.randperm(x.shape[0])", "random numbers"),
    (F + "cross_entropy(x, i)", "unless the padding of the targets is ignore_index (-100)"),
    (F + "mse_loss(x, x)", "reduces over every row"), (F + "nll_loss(x, i)", "ignore_index"),
    (F + "conv1d(x.t()[None], z[:, :, None])", "it sums over dim 2 (a)"),
    (F + "avg_pool1d(x.t()[None], 2)", "mixes places"), ("x.scatter(1, i[:, None], 3.0)", "to rows that are real"),
    (F + "scaled_dot_product_attention(*[x[None, None]] * 3)", "a position that is masked still multiplies its value"),
    (F + "scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True)",
     "a position that is masked still multiplies its value"),
    ("torch.fft.fft(x, dim=0)", "no rule for it; declare it with row_safe_ops="),
    ("x.as_strided((2, 2), (1, 1))", "no rule"), ("long[: 20 - x.shape[0]]", "may fall while the axis grows"),
    ("x.shape[0] / 2 + 0.5", "the number"),
]  # fmt: skip


@pytest.mark.parametrize("expression", SAFE)
def test_what_keeps_rows_apart_is_proved(expression: str):
    proof = prove(expression)
    assert proof.is_safe, proof


@pytest.mark.parametrize(("expression", "reason"), UNSAFE)
def test_what_mixes_rows_is_refused_with_its_reason(expression: str, reason: str):
    proof = prove(expression)
    assert not proof.is_safe
    assert reason in str(proof)


@pytest.mark.parametrize(
    ("setup", "result", "reason"),
    [
        ("h = x.clone(); h.add_(1)", "h", ""),
        ("x.mul_(2)", "x", ""),
        ("h = x.clone(); h[1:] = 4", "h", ""),
        ("h = x.clone(); h[:, 0] = 4", "h", ""),
        ("h = x.clone(); h[0] = 4", "h", ""),
        ("h = x.clone(); h.view(-1).add_(1)", "h", ""),
        ("h = x.clone(); h.t().add_(1)", "h", ""),
        ("h = x.clone(); h.scatter_(1, x[:, :1].long(), 2)", "h", ""),
        ("h = x.clone(); h[:-1].add_(1)", "h", "and so to other rows of it"),
        ("h = x.clone(); h[: x.shape[0] // 2].unsqueeze(0).zero_()", "h", "and so to other rows of it"),
        ("h = torch.cat([x, x], 1).view(-1, 4); h[: x.shape[0]].zero_()", "h", "and so to other rows of it"),
        ("h = x.clone(); h[-1] = 4", "h", "counts from the end"),
        ("h = x.clone(); h.copy_(x.flip(0))", "h", "turns around"),
        ("h = x.clone(); v = h[:, 0]; v.copy_(x[:, 0].flip(0))", "h + 1", "turns around"),
        ("h = x.clone(); h.uniform_()", "x", "random numbers"),
        ("long[: x.shape[0]].add_(1)", "x", "and so to other rows of it"),
        ("long[: x.shape[0]] = x", "x", "and so to other rows of it"),
        ("w.add_(x.sum(0))", "x", "reduces over dim 0"),
        ("z[i] = x", "z", "where padded indices say"),
        ("h = x.clone(); h[x[:, 0] > 0] = 0", "h", ""),
        ("h = x.clone(); h[m] = 0", "h", "depends on the data"),
        ("unused = x.sum(0)", "x", ""),
        ("unused = x.clone(); unused.copy_(x.flip(0))", "x", ""),
    ],
)
def test_writes_reach_all_that_shares_their_memory(setup: str, result: str, reason: str):
    proof = prove(result, setup=setup.replace("; ", "\n"))
    assert proof.is_safe == (not reason), proof
    assert reason in str(proof)


@pytest.mark.parametrize(
    ("expression", "fill", "is_safe"),
    [
        ("x.sum(0)", 0.0, True), ("x.sum(0)", 1.0, False), ("x.sum(0)", math.nan, False), ("x.prod(0)", 1.0, True),
        ("x.amax(0)", -math.inf, True), ("x.amax(0)", 0.0, False), ("x.amin(0)", math.inf, True),
        ("x.mean(0)", 0.0, False), ("x.softmax(0)", -math.inf, True), ("x.softmax(0)", -1e30, False),
        ("x.logsumexp(0)", -math.inf, True), ("x.softmax(0).sum(0)", -math.inf, False), ("x.norm(dim=0)", 0.0, True),
        ("x.count_nonzero(0)", 0.0, True), ("(x * 2).sum(0)", 0.0, True), ("(x + 1).sum(0)", 0.0, False),
        ("(x + 1).sum(0)", -1.0, True), ("(x + w).sum(0)", 0.0, False),
        ("x.relu().t().reshape(2, 2, -1).sum(2)", 0.0, True), ("(x * w).sum(0)", 0.0, False), ("x.t() @ x", 0.0, True),
        ("x.t() @ x", 1.0, False), ("x.t() @ x.exp()", 0.0, True), ("x.t() @ (1 / x)", 0.0, False),
        ("x[:-1].sum(0)", 0.0, False), ("x[1:].sum(0)", 0.0, True), ("torch.cat([z, x]).sum(0)", 0.0, True),
        ("x.masked_fill(x == 0, 5.0).sum(0)", 0.0, False), ("torch.where(x == 0, 0.0, w).sum(0)", 0.0, True),
        ("(x == 0).all(0)", 0.0, True), ("(x > 0).any()", 0.0, True), ("x.sum(1).sum()", 0.0, True),
        ("x.argmax(0)", -math.inf, True), ("x.argmax()", -math.inf, False), (F + "pad(x, (0, 0, 0, 1))", 0.0, True),
        (F + "pad(x, (0, 0, 0, 1), value=2.0)", 0.0, False), ("(x[:, None] * x[None]).sum((0, 1))", 0.0, False),
        ("(x * 1e-30 * 1e-30).sum(0)", 1.0, False),
    ],
)  # fmt: skip
def test_padding_that_is_known_may_be_neutral(expression: str, fill: float, is_safe: bool):
    proof = prove(expression, fills={"x": fill})
    assert proof.is_safe == is_safe, proof


@pytest.mark.parametrize(
    ("expression", "is_safe"),
    [
        (F + "cross_entropy(x, i, ignore_index=-7)", True),
        (F + "cross_entropy(x, i, ignore_index=-7, reduction='sum')", True),
        (F + "nll_loss(x, i, w, ignore_index=-7)", True),
        (F + "cross_entropy(x, i)", False),
        (F + "cross_entropy(x[1:], i[:-1], ignore_index=-7)", False),
        (F + "cross_entropy(x[:-1], i[1:], ignore_index=-7)", True),
    ],
)
def test_a_loss_ignores_padding_whose_target_it_ignores(expression: str, is_safe: bool):
    proof = prove(expression, fills={"i": -7})
    assert proof.is_safe == is_safe, proof


H = "(y[..., None] * w)"
"""A tensor (b, a, 4), whose rows a view into two dims puts behind each other."""


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (F + f"linear({H}, z, w)", ""), (f"{H} @ z", ""), (f"torch.einsum('btk,jk->btj', {H}, z)", ""),
        (f"({H}.flatten(0, 1) * 2).view({H}.shape)", ""), (f"{H}.flatten(0, 1).softmax(1).view({H}.shape)", ""),
        (f"({H}.flatten(0, 1) + {H}.exp().flatten(0, 1) @ z).unflatten(0, (y.shape[0], -1))", ""),
        (F + f"layer_norm({H}.flatten(0, 1), (4,)).view({H}.shape)", ""),
        (f"{H}.flatten(0, 1).sum(1).view({H}.shape[:2])", ""),
        (f"{H}.flatten(0, 1).amax(1, keepdim=True).view(y.shape[0], -1)", ""),
        (f"{H}.view(y.shape[0], -1).t().t().view({H}.shape)", ""),
        (f"{H}.flatten(0, 1).clone().mul_(2).view({H}.shape)", ""),
        (f"{H}.flatten(0, 1).t().view(4, y.shape[0], -1)", ""),
        (f"{H}.flatten(0, 1)", "where padding comes between what is real"), (f"{H}.flatten(0, 1)[:3]", "comes between"),
        (f"{H}.flatten(0, 1).cumsum(0).view({H}.shape)", "comes between"), (f"{H}.flatten(0, 1)[0]", "comes between"),
        (f"{H}.flatten(0, 1).sum(0)", "reduces over dim 0"),
        (f"{H}.flatten(0, 1).view(-1, y.shape[0], 4)", "comes between"),
        (f"({H}.flatten(0, 1) + {H}.transpose(0, 1).flatten(0, 1)).view({H}.shape)", "comes between"),
        (f"({H}.flatten(0, 1) + torch.arange({H}.flatten(0, 1).shape[0])[:, None]).view({H}.shape)", "comes between"),
        (f"{H}.flatten(0, 1).view(1, y.shape[0], -1, 4).view(-1, 4)", "comes between"),
        (f"torch.zeros({H}.flatten(0, 1).shape).copy_({H}.flatten(0, 1)).view({H}.shape)", "comes between"),
        (f"torch.cat([z, {H}.flatten(0, 1)])", "comes between"),
        (f"{H}.flatten(0, 1).view(torch.int32)", "holds several"),
    ],
)  # fmt: skip
def test_a_dim_that_holds_several_is_followed_as_long_as_its_places_are_apart(expression: str, reason: str):
    proof = prove(expression)
    assert proof.is_safe == (not reason), proof
    assert reason in str(proof)


def test_two_axes_that_are_padded_do_not_flatten_and_one_of_them_does():
    assert prove("y.reshape(-1)", axes="b").is_safe
    assert not prove("y.reshape(-1)", axes="a").is_safe
    assert not prove("y.reshape(-1)", axes="ab").is_safe
    assert prove("y.sum(0)", axes="a").is_safe
    assert not prove("y.sum(0)", axes="ab").is_safe
    assert prove("y.t().cumsum(1)", axes="ab").is_safe
