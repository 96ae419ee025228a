"""What the tests of drawings share: programs from models and from plain FX graphs, and readers of DOT and SVG."""

from __future__ import annotations

import contextlib
import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import fx

import fxbucket
from fxbucket.explain import Explanation
from fxbucket.passes import Concretize, Discover, Pipeline, Program, Split, at_op
from fxbucket.passes.captured import Capture, Placeholder

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}"
ROWS = 8


@torch.library.custom_op("drawing::attention", mutates_args=())
def attention(query: torch.Tensor, key: torch.Tensor, layer: str) -> torch.Tensor:
    return query * key


@attention.register_fake
def _(query: torch.Tensor, key: torch.Tensor, layer: str) -> torch.Tensor:
    return torch.empty_like(query)


class Layer(torch.nn.Module):
    """As in a serving engine, a layer hands its own name to its attention op."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.name = f"layers.{index}.attention"
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(torch.ops.drawing.attention(query, key, self.name).reshape(x.shape[0], 16))


class Stack(torch.nn.Module):
    """An embedding, layers that are all alike, and a head."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 16)
        self.layers = torch.nn.ModuleList(Layer(index) for index in range(num_layers))
        self.head = torch.nn.Linear(16, 10)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x), x.sum()


def captured_stack(num_layers: int) -> Program:
    return fxbucket.capture(Stack(num_layers), torch.arange(ROWS), axes={"tokens": "ids.shape[0]"})


@pytest.fixture(scope="session")
def captured() -> Program:
    """Two layers, before Split. Programs are immutable, so all tests share it."""
    return captured_stack(2)


@pytest.fixture(scope="session")
def split(captured: Program) -> Program:
    """Five pieces: attention is a boundary."""
    return Pipeline([Split(at_op("drawing::attention")), Discover()])(captured)


@pytest.fixture(scope="session")
def concrete(split: Program) -> Program:
    return Concretize({"tokens": 512})(split)


@pytest.fixture(scope="session")
def captured_deep() -> Program:
    """32 layers, before Split."""
    return captured_stack(32)


@pytest.fixture(scope="session")
def deep(captured_deep: Program) -> Program:
    """65 pieces."""
    return Split(at_op("drawing::attention"))(captured_deep)


OPS: tuple[Callable[..., Any], ...] = (torch.relu, torch.add, torch.mul, torch.tanh, torch.sub, torch.cat)


def plain_program(steps: Sequence[tuple[int, Sequence[int]]], num_inputs: int = 1) -> Program:
    """Return the program of an FX graph, without a model.

    Args:
        steps: for each node an index into ``OPS``, and which values before it (inputs first) it reads.
        num_inputs: how many arguments the graph has.
    """
    graph = fx.Graph()
    values = [graph.placeholder(f"x{index}") for index in range(num_inputs)]
    for op, reads in steps:
        values.append(graph.call_function(OPS[op], tuple(values[read] for read in reads)))
    for node in values:
        node.meta["example_value"] = torch.empty(ROWS, 4, device="meta")
    graph.output((values[-1], values[len(values) // 2], 7))
    module = fx.GraphModule(torch.nn.Module(), graph)
    placeholders = tuple(Placeholder(index, f"x{index}", f"L['x{index}']", "input") for index in range(num_inputs))
    return Program(Capture(module, placeholders, ()))


@dataclass(frozen=True)
class Parsed:
    """What Graphviz reads in a DOT text.

    Attributes:
        nodes: the attributes of each node by its name; an argument that is drawn several times counts once.
        edges: the attributes of each edge by ``(tail, head)``.
        clusters: the names of the nodes in each cluster, those of clusters inside it too, by the cluster's name.
    """

    nodes: dict[str, dict[str, Any]]
    edges: dict[tuple[str, str], dict[str, Any]]
    clusters: dict[str, frozenset[str]]


def parse(dot: str) -> Parsed:
    """Read a DOT text with Graphviz itself."""
    done = subprocess.run(["dot", "-Tdot_json"], input=dot.encode(), capture_output=True, check=True)
    # Graphviz 2 writes control characters and invalid escapes of its own into JSON strings.
    found = json.loads(done.stdout.decode(), strict=False)
    objects = found.get("objects", [])
    names = {item["_gvid"]: item["name"].partition("@")[0] for item in objects}
    nodes = {names[item["_gvid"]]: item for item in objects if not item["name"].startswith("cluster_")}
    edges = {(names[edge["tail"]], names[edge["head"]]): edge for edge in found.get("edges", [])}
    clusters = {
        item["name"].removeprefix("cluster_"): frozenset(names[node] for node in item.get("nodes", ()))
        for item in objects
        if item["name"].startswith("cluster_")
    }
    assert len(edges) == len(found.get("edges", []))
    return Parsed(nodes, edges, clusters)


@dataclass(frozen=True)
class Drawn:
    """What an SVG text shows."""

    root: ET.Element

    @property
    def texts(self) -> list[str]:
        """Every text that can be read."""
        return [text.text or "" for text in self.root.iter(f"{SVG}text")]

    def group(self, key: str) -> ET.Element:
        """Return the group of a box by its key."""
        (found,) = (group for group in self.root.iter(f"{SVG}g") if group.get("id") == key)
        return found

    def title(self, key: str) -> str:
        """Return the tooltip of a box."""
        return self.group(key).findtext(f"{SVG}title") or ""

    def texts_of(self, key: str) -> list[str]:
        """Return the texts in a box, top to bottom."""
        return [text.text or "" for text in self.group(key).iter(f"{SVG}text")]

    def links_of(self, key: str) -> list[str]:
        """Return where a click on a box leads."""
        return [link.get(f"{XLINK}href", "") for link in self.group(key).iter(f"{SVG}a")]


@pytest.fixture(scope="session")
def plain() -> Callable[..., Program]:
    return plain_program


@pytest.fixture(scope="session")
def read_dot() -> Callable[[str], Parsed]:
    return parse


@pytest.fixture(scope="session")
def read_svg() -> Callable[[str], Drawn]:
    return lambda text: Drawn(ET.fromstring(text.encode()))


class Halves(torch.nn.Module):
    """A guard on its rows (they must be even), a boundary, and a name that HTML must escape."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2 == 0:
            x = x + 1
        return torch.sigmoid(self.up(x).relu()).t()


def explain_halves(profiled: bool) -> Explanation:
    torch.compiler.reset()
    compiled = fxbucket.compile(
        Halves(),
        sizes={"rows": [4, 8, 7]},
        axes={"rows": "x.shape[0]"},
        splitting_ops=["aten::sigmoid"],
        compiler="eager",
    )
    with torch.no_grad():
        compiled(torch.randn(4, 4))
        with compiled.profile() if profiled else contextlib.nullcontext():
            for rows in (4, 8, 8, 6):
                compiled(torch.randn(rows, 4))
    return compiled.explain()


@pytest.fixture(scope="session")
def explained() -> Explanation:
    """Three pieces; buckets of 4 and 8 rows, one of 7 that is refused, one miss; four recorded calls."""
    return explain_halves(profiled=True)


@pytest.fixture(scope="session")
def unprofiled() -> Explanation:
    return explain_halves(profiled=False)


@pytest.fixture(scope="session")
def concrete_deep(deep: Program) -> Program:
    """65 pieces for 16 tokens."""
    return Concretize({"tokens": 16})(deep)
