"""Make the report of a compiled model: one HTML page that shows every step, with calls over time.

Give a folder as the argument; without one the page goes to ``out/``. Drawings need Graphviz's ``dot``; without it the page
says so. With a second argument, the path of a PNG, a picture of the page is made with Chromium.

Prints:

    out/report.html: 3 pieces, buckets tokens=16, tokens=64, dynamic, tokens=1
    tokens=1: refused, size 1 of axis 'tokens' lies outside 2..∞...
    recorded calls: 30
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import fxbucket
from fxbucket.visualize import save_page


class Block(nn.Module):
    """Attention over one sequence of tokens, then a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.query_key_value = nn.Linear(32, 96, bias=False)
        self.out = nn.Linear(32, 32, bias=False)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output for ``x`` of shape (tokens, 32)."""
        tokens = x.shape[0]
        query, key, value = self.query_key_value(self.norm(x)).view(tokens, 3, 2, 16).permute(1, 2, 0, 3)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(0, 1).reshape(tokens, 32))
        result: torch.Tensor = x + self.down(F.gelu(self.up(x)))
        return result


def main(folder: Path) -> Path:
    compiled = fxbucket.compile(
        Block(),
        axes={"tokens": "x.shape[0]"},
        sizes={"tokens": [16, 64, 1]},
        splitting_ops=["torch.nn.functional.scaled_dot_product_attention"],
    )
    with torch.no_grad():
        compiled.warmup(torch.randn(16, 32))
        with compiled.profile():
            for number in range(30):
                compiled(torch.randn((16, 64, 16, 40)[number % 4], 32))

    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    save_page(compiled, page, title="An attention block", source_links=False)

    explanation = compiled.explain()
    (graph,) = explanation.graphs
    print(f"{page}: {len(graph.pieces)} pieces, buckets {', '.join(bucket.bucket for bucket in graph.buckets)}")
    for bucket in graph.buckets:
        if bucket.state == "refused":
            print(f"{bucket.bucket}: refused, {bucket.reason}")
    print(f"recorded calls: {len(explanation.profile.calls)}")
    return page


def photograph(page: Path, picture: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("there is no chromium here")
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--window-size=1280,860", "--virtual-time-budget=4000", f"--screenshot={picture.resolve()}"]
        chosen = "bucket=tokens%3D16&piece=piece_2&view=drawing"
        subprocess.run([*command, f"{page.resolve().as_uri()}#{chosen}"], check=True, capture_output=True)


if __name__ == "__main__":
    made = main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
    if len(sys.argv) > 2:
        photograph(made, Path(sys.argv[2]))
