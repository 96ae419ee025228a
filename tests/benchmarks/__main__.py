"""Every measurement of the project: ``python -m tests.benchmarks`` lists them.

``python -m tests.benchmarks NAME ...`` runs those, ``all`` runs every one. With ``--write`` each also renews its section of
docs/benchmarks.md and its plots in docs/images, which needs ``pip install -e '.[bench]'``.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
HELPERS = {"__main__", "document", "fresh", "layers", "request_sizes", "seed_pattern"}


def benchmarks() -> dict[str, str]:
    """Return what each benchmark of this folder measures, by its name: the first line of its docstring."""
    paths = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in HELPERS]
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    return {name: (ast.get_docstring(tree) or "").partition("\n")[0] for name, tree in trees.items()}


def main() -> int:
    """List benchmarks, or run them one after the other; the result is the first exit code that is not 0."""
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Run measurements.")
    parser.add_argument("names", nargs="*", help=f"any of: all, {', '.join(known)}")
    parser.add_argument("--write", action="store_true", help="renew docs/benchmarks.md and its plots")
    given = parser.parse_args()
    unknown = set(given.names) - {*known, "all"}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; choose from all, {', '.join(known)}")
    for name in known if "all" in given.names else given.names:
        print(f"== {name}: {known[name]}", flush=True)
        options = ["--write"] if given.write else []
        done = subprocess.run(
            [sys.executable, "-m", f"tests.benchmarks.{name}", *options], cwd=FOLDER.parent.parent, check=False
        )
        if done.returncode:
            return done.returncode
    if not given.names:
        print("\n".join(f"{name:20} {what}" for name, what in known.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
