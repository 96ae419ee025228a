from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxbucket
from fxbucket.passes import Split, at_op, every_n_nodes
from fxbucket.passes.writes import holds_write, may_write, writes_to_shared_inputs
from tests.equality import assert_equals_eager
from tests.programs import RandomProgram


@torch.library.custom_op("fxbucket_writes::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


@double_.register_fake
def _(x: torch.Tensor) -> None:
    return None


def nodes_of(model: Callable[..., Any]) -> list[torch.fx.Node]:
    graph = fxbucket.capture(model, torch.randn(4, 3)).capture.module.graph
    return [node for node in graph.nodes if node.op in ("call_function", "call_method")]


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "method": lambda x: x.add_(1),
    "function": lambda x: torch.relu_(x),
    "operator": lambda x: x.__iadd__(1),
    "item": lambda x: x.__setitem__(0, 1.0),
    "keyword": lambda x: torch.nn.functional.relu(x, inplace=True),
    "position": lambda x: torch.nn.functional.relu(x, True),
    "out": lambda x: torch.add(x, 1, out=x),
    "custom op": lambda x: torch.ops.fxbucket_writes.double_(x),
    "overload": lambda x: torch.ops.aten.add_.Tensor(x, x),
    "statistics": lambda x: torch.nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=True),
}


@pytest.mark.parametrize("how", WRITES)
def test_every_spelling_of_a_write_is_known(how: str):
    assert any(may_write(node) for node in nodes_of(lambda x: (WRITES[how](x), x + 1)[1]))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.relu(x) + 1,
        lambda x: torch.nn.functional.relu(x, False),
        lambda x: torch.nn.functional.relu(x, inplace=False),
        lambda x: x.sum(0, True),
        lambda x: x[1:].t().contiguous(),
        lambda x: torch.ops.aten.add.Tensor(x, x),
    ],
)
def test_what_does_not_write_is_known_too(model: Callable[..., Any]):
    assert not any(may_write(node) for node in nodes_of(model))


def test_a_write_in_the_body_of_a_higher_order_op_is_found():
    def body(y: torch.Tensor) -> torch.Tensor:
        return y.clone().add_(1)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    assert holds_write(fxbucket.capture(model, torch.randn(4, 3)).capture.module)


def test_a_piece_that_writes_to_what_two_inputs_share_runs_as_it_is_and_no_other():
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        half = torch.sigmoid(y)[:, :2]
        y.mul_(2)
        view = y[1:]
        z = torch.sigmoid(view)
        view.add_(1)
        return torch.relu(z).sum() + half.exp().sum() + y.exp()

    program = Split(at_op("aten::sigmoid"))(fxbucket.capture(model, torch.randn(4, 3), dynamic=["x.shape[0]"]))
    shared = [piece.name for piece in program.pieces if writes_to_shared_inputs(piece.module)]
    assert shared, "no piece takes a view and its base, so this shows nothing"
    for piece in program.pieces:
        if piece.name in shared:
            assert not piece.is_compiled
    assert any(piece.is_compiled for piece in program.pieces)
    assert_equals_eager(
        fxbucket.compile(model, sizes={"x.shape[0]": [4]}, splitting_ops=["aten::sigmoid"], compiler="aot_eager"),
        model, (torch.ones(4, 3),), (torch.ones(4, 3),),
    )  # fmt: skip


FOUND = {
    "an expanded view": """
    v3 = x.reshape(-1)
    v4 = torch.maximum(v3, v3)
    v5 = torch.maximum(v4, v3)
    v6 = torch.cat([y, y]).sum(0)
    v7 = v4.unsqueeze(1).expand(-1, 2, *v4.shape[1:])
    v4.fill_(3)
    return v3 + x.shape[0], v7, v4, x
""",
    "memory of symbolic length": """
    with torch.no_grad():
        v1 = w * 3
    v2 = x.reshape(-1)
    v3 = x.reshape(-1)
    v2.copy_(v2.flip(0))
    v4 = x.reshape(-1)
    return v1, v3, v2, v4, y[: y.shape[0] - 1]
""",
    "a view made under no_grad": """
    with torch.no_grad():
        v1 = x * 3
        v3 = y * 3
    v1.copy_(v1.flip(0))
    v4 = v1 + 10 if y.shape[0] < x.shape[0] else v1 - 10
    v6 = v1.sign()
    v6.copy_(v6.flip(0))
    v7 = v1.unsqueeze(1).expand(-1, 2, *v1.shape[1:])
    v1.fill_(3)
    return v6, v1, y.sign() - v3
""",
}
"""What random programs found: AOTAutograd fails on each where the cut hands it a base and a view of it."""


@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.parametrize("sizes", ["seen", "pinned"])
def test_shared_memory_that_compilers_fail_on_is_right(kind: str, sizes: str):
    needs_grad = (kind == "a view made under no_grad",) * 3
    program = RandomProgram(f"def program(x, y, w):{FOUND[kind]}", needs_grad)
    if sizes == "seen":
        backend = fxbucket.backend(sizes="seen", splitting_ops=[every_n_nodes(3)], compiler="aot_eager")
        compiled: Any = torch.compile(program.function(), backend=backend, dynamic=True)
    else:
        pinned = {"x.shape[0]": [2], "y.shape[0]": [7]}
        compiled = fxbucket.compile(program.function(), sizes=pinned, splitting_ops=[every_n_nodes(3)], compiler="aot_eager")
    for number, (a, b) in enumerate([(5, 4), (2, 7), (6, 3)]):
        assert_equals_eager(compiled, program.function(), program.arguments(a, b, number), program.arguments(a, b, number))
