"""The same engine as a backend of torch.compile, for code that calls torch.compile already.

Axes are then named by the arguments that torch.compile sees: those of the module's ``forward``.

Prints:

    backend=fxbucket.backend(...)
      16 rows: equal to eager
      24 rows: equal to eager
      calls: {'x.shape[0]=16': 1, 'x.shape[0]=64': 0, 'dynamic': 1}
    backend="fxbucket"
      16 rows: equal to eager
      64 rows: equal to eager
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fxbucket


class Block(nn.Module):
    """Two layers with a softmax between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 64)
        self.outer = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one row for each row of ``x``."""
        mixed: torch.Tensor = self.outer(self.inner(x).softmax(dim=-1))
        return mixed


def main() -> None:
    torch.manual_seed(0)
    model = Block()

    print("backend=fxbucket.backend(...)")
    # A backend value serves one model, and tells what it did.
    backend = fxbucket.backend(sizes={"x.shape[0]": [16, 64]}, splitting_ops=["aten::softmax"])
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (16, 24):
        compare(rows, compiled, model)
    print(f"  calls: {backend.explain().calls()}")

    print('backend="fxbucket"')
    torch.compiler.reset()
    options: dict[str, Any] = {"sizes": {"x.shape[0]": [16, 64]}, "splitting_ops": ["aten::softmax"]}
    compiled = torch.compile(model, backend="fxbucket", dynamic=True, options=options)
    for rows in (16, 64):
        compare(rows, compiled, model)


def compare(rows: int, compiled: Callable[..., torch.Tensor], model: nn.Module) -> None:
    x = torch.randn(rows, 32)
    torch.testing.assert_close(compiled(x), model(x))
    print(f"  {rows} rows: equal to eager")


if __name__ == "__main__":
    main()
