"""The laws of the source tree: which folder may import which, and what every file carries."""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_OF_FOLDER = {"passes": "fxbucket.passes", "visualize": "fxbucket.visualize", "fxbucket": "fxbucket"}
MAX_LINES = 350

PRIVATE_TORCH_ALLOWED = {
    "fxbucket/distributed_compat.py",
    "fxbucket/data_parallel_compat.py",
    "fxbucket/graph_compat.py",
    "fxbucket/inductor.py",
    "fxbucket/inductor_passes.py",
    "fxbucket/serialization_compat.py",
    "fxbucket/torch_compat.py",
    "passes/conditions.py",
    "passes/symbolic.py",
}
PRIVATE_TORCH = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]["flake8-tidy-imports"][
        "banned-api"
    ]
)


@dataclass(frozen=True)
class Import:
    """One imported name, fully dotted: ``from a.b import c`` gives ``a.b.c``."""

    target: str
    line: int
    when_loaded: bool  # it runs when the module is imported: not in a function, not under TYPE_CHECKING


@dataclass(frozen=True)
class Source:
    """One Python file of the three code folders."""

    path: str  # from the root, with the real folder: passes/split.py
    module: str  # as it is imported: fxbucket.passes.split
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def imports(self) -> tuple[Import, ...]:
        package = self.module if self.path.endswith("__init__.py") else self.module.rpartition(".")[0]
        return tuple(imports_of(self.tree, package))


def is_within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or something in it."""
    return name == package or name.startswith(package + ".")


def imports_of(node: ast.AST, package: str, when_loaded: bool = True) -> Iterator[Import]:
    """Yield the imports below a node of a module in ``package``, top to bottom."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno, when_loaded) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        origin = ".".join(part for part in (base, node.module) if part)
        for alias in node.names:
            yield Import(origin if alias.name == "*" else f"{origin}.{alias.name}", node.lineno, when_loaded)
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.body:
            yield from imports_of(child, package, when_loaded=False)
        for child in node.orelse:
            yield from imports_of(child, package, when_loaded)
    else:
        runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from imports_of(child, package, when_loaded and not runs_later)


def torch_attributes_of(node: ast.AST) -> Iterator[Import]:
    """Yield the dotted names below a node that start at the name ``torch``, the longest of each chain."""
    name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    if is_within(name, "torch") and all(part.isidentifier() for part in name.split(".")):
        yield Import(name, node.lineno, when_loaded=False)
        return
    for child in ast.iter_child_nodes(node):
        yield from torch_attributes_of(child)


def is_private_torch(target: str) -> bool:
    """Whether an imported name is torch's own business: on ruff's list, or with an underscore in its path."""
    parts = target.split(".")
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return parts[0] == "torch" and (hidden or any(is_within(target, private) for private in PRIVATE_TORCH))


def sources_below(root: Path) -> Iterator[Source]:
    """Yield every Python file of the code folders once: the links in fxbucket/ are not followed."""
    for folder, package in PACKAGE_OF_FOLDER.items():
        for where, _, names in os.walk(root / folder, followlinks=False):
            for path in (Path(where, name) for name in sorted(names) if name.endswith(".py")):
                parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                yield Source(path.relative_to(root).as_posix(), module, path.read_text(encoding="utf-8"))


SOURCES = tuple(sources_below(ROOT))
MODULES = frozenset(source.module for source in SOURCES)


def module_of(target: str) -> str | None:
    """Return the module of this project that an imported name is, or lies in."""
    while target:
        if target in MODULES:
            return target
        target = target.rpartition(".")[0]
    return None


def in_folder(folder: str) -> Iterator[tuple[Source, Import]]:
    """Yield every import of a folder's files, those in functions too."""
    for source in SOURCES:
        if source.path.startswith(folder + "/"):
            yield from ((source, each) for each in source.imports)


def report(pairs: Iterator[tuple[Source, Import]]) -> list[str]:
    return [f"{source.path}:{each.line}: {each.target}" for source, each in pairs]


def test_every_folder_is_read_once():
    assert {source.path.partition("/")[0] for source in SOURCES} == set(PACKAGE_OF_FOLDER)
    assert len(MODULES) == len(SOURCES)
    assert not [source.path for source in SOURCES if source.path.startswith(("fxbucket/passes/", "fxbucket/visualize/"))]


def test_passes_stand_on_themselves():
    outside = ((s, i) for s, i in in_folder("passes") if is_within(i.target, "fxbucket"))
    assert report((s, i) for s, i in outside if not is_within(i.target, "fxbucket.passes")) == []


def test_visualize_stands_on_passes():
    own = ("fxbucket.passes", "fxbucket.visualize")
    outside = ((s, i) for s, i in in_folder("visualize") if is_within(i.target, "fxbucket"))
    assert report((s, i) for s, i in outside if not any(is_within(i.target, package) for package in own)) == []


def test_only_the_command_line_imports_visualize():
    commands = ("fxbucket/cli.py", "fxbucket/render.py", "fxbucket/suggest_command.py")
    drawing = ((s, i) for s, i in in_folder("fxbucket") if is_within(i.target, "fxbucket.visualize"))
    assert report((s, i) for s, i in drawing if s.path not in commands) == []


def test_nothing_is_imported_under_a_second_name():
    everything = (pair for folder in PACKAGE_OF_FOLDER for pair in in_folder(folder))
    assert report((s, i) for s, i in everything if i.target.partition(".")[0] in ("passes", "visualize")) == []


def test_modules_do_not_import_in_a_circle():
    graph = nx.DiGraph()
    for source in SOURCES:
        targets = (module_of(each.target) for each in source.imports if each.when_loaded)
        graph.add_edges_from((source.module, target) for target in targets if target not in (None, source.module))
    assert list(nx.simple_cycles(graph)) == []


def test_private_torch_is_named_in_two_files_only():
    others = [source for source in SOURCES if source.path not in PRIVATE_TORCH_ALLOWED]
    imported = [(s, i) for s in others for i in s.imports if is_private_torch(i.target)]
    used = [(s, i) for s in others for i in torch_attributes_of(s.tree)]
    reached = [(s, i) for s, i in used if any(is_within(i.target, private) for private in PRIVATE_TORCH)]
    assert report(iter(imported + reached)) == []


def test_every_module_has_a_docstring():
    assert [source.path for source in SOURCES if not ast.get_docstring(source.tree)] == []


def test_no_file_has_outgrown_its_subject():
    lengths = {source.path: len(source.text.splitlines()) for source in SOURCES}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("import a.b as c, d", ["a.b", "d"]),
        ("from a import b, c", ["a.b", "a.c"]),
        ("from a.b import *", ["a.b"]),
        ("from . import b", ["fxbucket.passes.b"]),
        ("from .b import c", ["fxbucket.passes.b.c"]),
        ("from .. import b", ["fxbucket.b"]),
        ("try:\n    import a\nexcept ImportError:\n    import b", ["a", "b"]),
        ("def f():\n    import a", []),
        ("class C:\n    import a\n    def f(self):\n        import b", ["a"]),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", ["b"]),
    ],
)
def test_imports_are_read_as_python_runs_them(text: str, targets: list[str]):
    found = imports_of(ast.parse(text), "fxbucket.passes")
    assert [each.target for each in found if each.when_loaded] == targets


@pytest.mark.parametrize(
    ("target", "private"),
    [
        ("torch", False),
        ("torch.fx.GraphModule", False),
        ("torch.__version__", False),
        ("torch._dynamo", True),
        ("torch.utils._pytree.tree_map", True),
        ("torch.fx.experimental.symbolic_shapes.ShapeEnv", True),
        ("numpy._core", False),
    ],
)
def test_private_torch_is_told_apart(target: str, private: bool):
    assert is_private_torch(target) is private
