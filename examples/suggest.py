"""Suggest the sizes to pin for a table of request sizes, draw the answer, and compile a model for them.

Give a folder for the picture as the argument; without one it goes to ``out/``.

Prints:

    8 sizes for 20,000 calls: 19.1% of all rows are padding
    sizes to pin
    ┏━━━━━━┳━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━┓
    ┃ size ┃ calls ┃ of all calls ┃ rows of padding ┃ of its rows ┃
    ┡━━━━━━╇━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━┩
    │ 144  │ 6,965 │ 34.8%        │ 482,086         │ 48.1%       │
    │ 304  │ 3,474 │ 17.4%        │ 309,281         │ 29.3%       │
    │ 560  │ 2,756 │ 13.8%        │ 378,801         │ 24.5%       │
    │ 960  │ 2,195 │ 11.0%        │ 475,717         │ 22.6%       │
    │ 1440 │ 1,516 │ 7.6%         │ 383,231         │ 17.6%       │
    │ 2016 │ 1,196 │ 6.0%         │ 346,572         │ 14.4%       │
    │ 2880 │ 995   │ 5.0%         │ 452,777         │ 15.8%       │
    │ 4096 │ 903   │ 4.5%         │ 388,855         │ 10.5%       │
    └──────┴───────┴──────────────┴─────────────────┴─────────────┘
    ladders
    ┏━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
    ┃ ladder        ┃ rows of padding ┃ of all rows ┃ cost      ┃ sizes                                         ┃
    ┡━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┩
    │ suggested     │ 3,217,320       │ 19.1%       │ 3,217,320 │ 144, 304, 560, 960, 1440, 2016, 2880, 4096    │
    │ powers of two │ 5,134,200       │ 27.3%       │ 5,134,200 │ 32, 64, 128, 256, 512, 1024, 2048, 4096       │
    │ linear        │ 6,268,600       │ 31.5%       │ 6,268,600 │ 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096 │
    └───────────────┴─────────────────┴─────────────┴───────────┴───────────────────────────────────────────────┘
    out/ladder.svg
    ['tokens=960']
"""

import csv
import sys
from pathlib import Path

import torch
from torch import nn

import fxbucket
from fxbucket.visualize import save_suggestion

TABLE = Path(__file__).resolve().parent.parent / "tests" / "benchmarks" / "request_sizes.csv"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with TABLE.open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        histogram = {int(row["size"]): int(row["count"]) for row in rows}

    suggestion = fxbucket.suggest_sizes(histogram, budget=8, multiple_of=16)
    print(suggestion)
    save_suggestion(suggestion, folder / "ladder.svg")
    print(folder / "ladder.svg")

    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    # Inductor is the default; "eager" keeps this example quick.
    compiled = fxbucket.compile(
        model, axes={"tokens": "input.shape[0]"}, sizes={"tokens": suggestion.sizes}, compiler="eager"
    )
    compiled(torch.randn(960, 8))
    print([bucket for bucket, calls in compiled.explain().calls().items() if calls])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
