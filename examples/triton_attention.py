"""Attention as a Triton kernel: registered as an op, cut out by its name, and run as it is between compiled pieces.

Without a GPU, Triton's interpreter runs the kernel, slowly and with the same results; with one, whole calls are recorded as
CUDA graphs. A call of 50 tokens is padded to 64: no row reads a later one, which ``row_safe_ops`` promises of the op.

Prints:

    piece_0: what is left between cuts
    piece_1: boundary op example::triton_attention
    piece_2: what is left between cuts
    piece_3: boundary op example::triton_attention
    piece_4: what is left between cuts
    32 tokens: equal to eager, served by tokens=32
    64 tokens: equal to eager, served by tokens=64
    50 tokens: equal to eager, served by tokens=64
"""

import os
import sys

import torch
from torch import Tensor, nn

import fxbucket

DEVICE, DTYPE = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read by Triton when it is imported

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

BLOCK, HEADS, HEAD_WIDTH = 16, 2, 16
WIDTH = HEADS * HEAD_WIDTH


@triton.jit
def attention_kernel(qkv, out, tokens, heads, scale, width: tl.constexpr, block: tl.constexpr):
    """Attend with one block of one head's queries, block by block of keys, rescaling what is summed so far."""
    first, head = tl.program_id(0) * block, tl.program_id(1)
    rows, columns = tl.arange(0, block), tl.arange(0, width)
    queries = first + rows
    here = qkv + head * width + columns[None, :]
    query = tl.load(here + queries[:, None] * (3 * heads * width), mask=queries[:, None] < tokens, other=0.0)
    highest = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    summed = tl.zeros([block, width], tl.float32)
    for start in range(0, first + block, block):
        keys = start + rows
        there = here + keys[:, None] * (3 * heads * width)
        key = tl.load(there + heads * width, mask=keys[:, None] < tokens, other=0.0)
        value = tl.load(there + 2 * heads * width, mask=keys[:, None] < tokens, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(keys[None, :] <= queries[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, kept = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        summed = summed * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        highest = higher
    attended = (summed / total[:, None]).to(out.dtype.element_ty)
    places = (queries[:, None] * heads + head) * width + columns[None, :]
    tl.store(out + places, attended, mask=queries[:, None] < tokens)


# A kernel that is interpreted is called as it is: torch 2.11 cannot wrap one.
launcher = attention_kernel if DEVICE == "cpu" else torch.library.wrap_triton(attention_kernel)


@torch.library.triton_op("example::triton_attention", mutates_args=())
def triton_attention(qkv: Tensor) -> Tensor:
    """Causal attention: (tokens, 3, heads, width) gives (tokens, heads, width)."""
    tokens, _, heads, width = qkv.shape
    out = qkv.new_empty(tokens, heads, width)
    grid = (triton.cdiv(tokens, BLOCK), heads)
    launcher[grid](qkv.contiguous(), out, tokens, heads, width**-0.5, width=width, block=BLOCK)
    return out


# Else torch would run the function itself on tensors without data, which Triton's interpreter cannot.
triton_attention.register_fake(lambda qkv: qkv.new_empty(qkv.shape[0], *qkv.shape[2:]))


def torch_attention(qkv: Tensor) -> Tensor:
    """Return the same by torch's own attention."""
    q, k, v = qkv.permute(1, 2, 0, 3).unsqueeze(1)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)


class Layer(nn.Module):
    """Attention behind a norm, added to what came in."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, attention) -> Tensor:
        """Return (tokens, width) for the same."""
        qkv = self.qkv(self.norm(x)).view(-1, 3, HEADS, HEAD_WIDTH)
        return x + self.out(attention(qkv).flatten(1))


class Model(nn.Module):
    """Two layers; ``attention`` is what they attend with."""

    def __init__(self):
        super().__init__()
        self.layers, self.attention = nn.ModuleList(Layer() for _ in range(2)), triton_attention

    def forward(self, x: Tensor) -> Tensor:
        """Return (tokens, width) for the same."""
        for layer in self.layers:
            x = layer(x, self.attention)
        return x


@torch.no_grad()
def main(compiler: str = "inductor") -> None:
    torch.manual_seed(0)
    model, eager = Model().to(DEVICE, DTYPE), Model().to(DEVICE, DTYPE)
    eager.load_state_dict(model.state_dict())
    eager.attention = torch_attention
    compiled = fxbucket.compile(
        model, axes={"tokens": "x.shape[0]"}, sizes={"tokens": [32, 64]}, splitting_ops=["example::triton_attention"],
        on_miss="pad", row_safe_ops=["example::triton_attention"], cudagraphs="full", compiler=compiler,
    )  # fmt: skip
    compiled.warmup(torch.randn(32, WIDTH, device=DEVICE, dtype=DTYPE))
    for piece in compiled.programs[0].pieces:
        print(f"{piece.name}: {piece.reason}")
    tolerance = 2e-2 if DTYPE is torch.bfloat16 else 1e-5
    for tokens in (32, 64, 50):
        x, before = torch.randn(tokens, WIDTH, device=DEVICE, dtype=DTYPE), compiled.explain().calls()
        torch.testing.assert_close(compiled(x), eager(x), rtol=tolerance, atol=tolerance)
        (bucket,) = (name for name, calls in compiled.explain().calls().items() if calls > before.get(name, 0))
        print(f"{tokens} tokens: equal to eager, served by {bucket}")


if __name__ == "__main__":
    main(*sys.argv[1:])
