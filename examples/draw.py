"""Draw an attention layer, cut at its attention: with symbolic sizes, made concrete, and what differs between the two.

The last picture is of sixteen such layers, one after the other. Give a folder as the argument; without one the pictures go
to ``out/``. Graphviz's ``dot`` must be installed.

Prints:

    out/split.svg: 3 pieces, tokens in 2..∞
    out/concrete.svg: 3 pieces, tokens=64
    out/difference.svg: 12 changed, 1 gone, 0 new
    out/folded.svg: 33 pieces
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import fxbucket
from fxbucket.passes import Concretize, Discover, Pipeline, Split, Verify, at_op
from fxbucket.visualize import diff_text, save_diff_svg, save_svg


class Attention(nn.Module):
    """Attention over one sequence of tokens, with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(32, 96, bias=False)
        self.out = nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` plus what its tokens attend to."""
        tokens = x.shape[0]
        query, key, value = self.query_key_value(x).view(tokens, 3, 2, 16).permute(1, 2, 0, 3)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: torch.Tensor = self.out(mixed.transpose(0, 1).reshape(tokens, 32))
        return x + attended


ATTENTION = at_op("torch.nn.functional.scaled_dot_product_attention")


def attention() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the layer and the arguments of a call; the command line shows it by ``examples/draw.py:attention``."""
    return Attention(), (torch.randn(8, 32),)


def layers() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return sixteen layers and the arguments of a call."""
    return nn.Sequential(*(Attention() for _ in range(16))), (torch.randn(8, 32),)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        model, args = attention()
        program = fxbucket.capture(model, *args, axes={"tokens": "x.shape[0]"})
        model, args = layers()
        deep = fxbucket.capture(model, *args, axes={"tokens": "input.shape[0]"})
    split = Pipeline([Split(ATTENTION), Discover()])(program)
    save_svg(split, folder / "split.svg")
    print(f"{folder / 'split.svg'}: {len(split.pieces)} pieces, tokens in {split.axes[0].range}")

    concrete = Pipeline([Concretize({"tokens": 64}), Verify()])(split)
    save_svg(concrete, folder / "concrete.svg")
    print(f"{folder / 'concrete.svg'}: {len(concrete.pieces)} pieces, {concrete.bucket}")

    save_diff_svg(split, concrete, folder / "difference.svg")
    print(f"{folder / 'difference.svg'}: {diff_text(split, concrete).splitlines()[2]}")

    deep = Split(ATTENTION)(deep)
    save_svg(deep, folder / "folded.svg", fold=True)
    print(f"{folder / 'folded.svg'}: {len(deep.pieces)} pieces")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
