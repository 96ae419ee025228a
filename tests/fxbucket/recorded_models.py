"""What the tests of recordings share: inputs on the GPU, what explain() says, and a comparison of many calls with eager."""

from __future__ import annotations

from typing import Any

import torch


def rows(number: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(number, 16, generator=torch.Generator().manual_seed(seed)).to("cuda")


def states(compiled: Any) -> dict[str, str]:
    """Return what is said of the recording of each bucket, but for what serves misses."""
    (graph,) = compiled.explain().graphs
    return {bucket.bucket: bucket.recording for bucket in graph.buckets if bucket.bucket != "dynamic"}


def assert_calls_equal_eager(compiled: Any, model: Any, plain: Any) -> None:
    """Call a compiled model at its sizes, 4 and 8, in turn: results are right and the caller's own, effects happen once."""
    kept = []
    with torch.no_grad():
        for call in range(12):
            x = rows((4, 8, 4)[call % 3], call)
            got, expected = compiled(x), plain(x)
            for one, other in zip(got, expected, strict=True):
                torch.testing.assert_close(one, other)
                assert one.stride() == other.stride()
            kept.append((got[0], got[0].clone()))
    assert all(torch.equal(one, other) for one, other in kept)
    assert model.calls.item() == 12
    assert compiled.explain().calls() == {"t=4": 8, "t=8": 4}
