"""Two axes at once: a size inside a dataclass, the same size inside a dict, and an int that is passed by keyword.

Several expressions may name one axis where they are always equal; here ``ids`` and ``mask`` have as many tokens. Listed
combinations of sizes are compiled, and both axes are looked up at each call.

Prints:

    axis tokens: 2..∞, read by batch.ids.shape[0] and batch.extra['mask'].shape[0]
    axis copies: 0..∞, read by copies
    compiled: tokens=8, copies=2
    compiled: tokens=16, copies=3
    8 tokens, 2 copies: [2, 8], served by tokens=8, copies=2
    16 tokens, 3 copies: [3, 16], served by tokens=16, copies=3
    16 tokens, 2 copies: [2, 16], served by dynamic
    error: size -1 of axis 'tokens' is negative; a tensor has 0 rows or more.
"""

from dataclasses import dataclass

import torch

import fxbucket


@dataclass
class Batch:
    """Token ids, and what belongs to them."""

    ids: torch.Tensor
    extra: dict[str, torch.Tensor]


def model(batch: Batch, *, copies: int) -> torch.Tensor:
    kept = torch.where(batch.extra["mask"], batch.ids.float().sqrt(), 0.0)
    return kept.expand(copies, -1) * copies


def main() -> None:
    axes = {"tokens": ["batch.ids.shape[0]", "batch.extra['mask'].shape[0]"], "copies": "copies"}
    sizes = [{"tokens": 8, "copies": 2}, {"tokens": 16, "copies": 3}]
    compiled = fxbucket.compile(model, axes=axes, sizes=sizes)
    compiled(batch_of(8), copies=2)
    (graph,) = compiled.explain().graphs
    for axis in graph.axes:
        print(f"axis {axis.name}: {axis.range}, read by {' and '.join(axis.expressions)}")
    for bucket in graph.buckets:
        print(f"{bucket.state}: {bucket.bucket}")

    for tokens, copies in ((8, 2), (16, 3), (16, 2)):
        batch = batch_of(tokens)
        before = compiled.explain().calls()
        result = compiled(batch, copies=copies)
        torch.testing.assert_close(result, model(batch, copies=copies))
        (served,) = (name for name, calls in compiled.explain().calls().items() if calls > before.get(name, 0))
        print(f"{tokens} tokens, {copies} copies: {list(result.shape)}, served by {served}")

    try:
        fxbucket.compile(model, axes=axes, sizes=[{"tokens": -1, "copies": 2}])
    except fxbucket.FxbucketError as error:
        print(f"error: {error}")


def batch_of(tokens: int) -> Batch:
    return Batch(ids=torch.arange(tokens), extra={"mask": torch.arange(tokens) % 2 == 0})


if __name__ == "__main__":
    main()
