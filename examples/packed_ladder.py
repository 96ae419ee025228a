"""Fine-tune on packed sequences: tokens vary from step to step, two pinned sizes serve every step, and an eager copy agrees.

A step is padded up to a pinned size: ids with 0, labels with what the loss ignores. Attention reads no row behind the last
document, whatever is there: that cannot be seen from outside of the op, so ``row_safe_ops`` promises it. The rest is proved.

Prints:

    163 tokens by 256, 93 padded: loss 3.910, eager's 3.910
    229 tokens by 256, 27 padded: loss 3.418, eager's 3.418
    279 tokens by 512, 233 padded: loss 2.846, eager's 2.846
    compiled in the warm-up: tokens=256, tokens=512; after it: nothing
"""

import random
import sys
from itertools import pairwise

import torch
from torch import Tensor, nn

import fxbucket

WIDTH, VOCABULARY, IGNORED, SIZES = 32, 50, -100, (256, 512)


def attend(qkv: Tensor, ends: Tensor) -> Tensor:
    """Attend within each document: (tokens, 3 * width) and where each document ends give (tokens, width)."""
    documents = [qkv[None, start:end].chunk(3, dim=-1) for start, end in pairwise([0, *ends.tolist()])]
    attended = [nn.functional.scaled_dot_product_attention(*document, is_causal=True)[0] for document in documents]
    return torch.cat([*attended, qkv.new_zeros(len(qkv) - int(ends[-1]), WIDTH)])


attention = torch.library.custom_op("packed_ladder::attention", attend, mutates_args=())
attention.register_fake(lambda qkv, ends: qkv.new_empty(qkv.shape[0], WIDTH))


@torch.library.custom_op("packed_ladder::attention_backward", mutates_args=())
def attention_backward(grad: Tensor, qkv: Tensor, ends: Tensor) -> Tensor:
    return torch.func.vjp(lambda qkv: attend(qkv, ends), qkv)[1](grad)[0]


attention_backward.register_fake(lambda grad, qkv, ends: torch.empty_like(qkv))
attention.register_autograd(
    lambda ctx, grad: (attention_backward(grad, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Model(nn.Module):
    """A language model with one layer of attention."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, labels: Tensor, ends: Tensor) -> Tensor:
        """Return the mean loss of the tokens that have a label."""
        x = self.embedding(ids)
        logits = self.head(x + attention(self.qkv(self.norm(x)), ends))
        return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)


def packed(chance: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Pack four documents that count upwards; a token's label is the next token, and the last of a document has none."""
    lengths, first = [chance.randint(16, 112) for _ in range(4)], chance.randrange(VOCABULARY)
    ids = torch.cat([torch.arange(first, first + length) % VOCABULARY for length in lengths])
    ends = torch.tensor(lengths).cumsum(0)
    return ids, ids.roll(-1).index_fill(0, ends - 1, IGNORED), ends


def main(compiler: str = "aot_eager") -> None:
    torch.manual_seed(0)
    chance, model, eager = random.Random(4), Model(), Model()
    eager.load_state_dict(model.state_dict())
    compiled = fxbucket.compile(
        model, axes={"tokens": ["ids.shape[0]", "labels.shape[0]"]}, sizes={"tokens": SIZES}, on_miss="pad",
        pad_values={"labels": IGNORED}, row_safe_ops=[attention], compiler=compiler,
    )  # fmt: skip
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.02) for one in (model, eager)]
    compiled.warmup(*packed(chance))
    warm = compiled.explain()
    for _ in range(3):
        batch, before = packed(chance), compiled.explain().calls()
        losses = compiled(*batch), eager(*batch)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
        (bucket,) = (name for name, calls in compiled.explain().calls().items() if calls > before[name])
        tokens, size = len(batch[0]), int(bucket.removeprefix("tokens="))
        print(f"{tokens} tokens by {size}, {size - tokens} padded: loss {losses[0]:.3f}, eager's {losses[1]:.3f}")
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-3)
    assert compiled.explain().seconds == warm.seconds, "something was compiled after the warm-up"
    print(f"compiled in the warm-up: {', '.join(warm.calls())}; after it: nothing")


if __name__ == "__main__":
    main(*sys.argv[1:])
