from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

import fxbucket
from fxbucket.build import Builder
from fxbucket.compilers import compile_piece, compiler_for
from fxbucket.options import Options
from fxbucket.passes import Concretize, Pipeline, Program, Split, at_op
from fxbucket.passes.errors import CompileError, FxbucketError, OptionError
from fxbucket.passes.symbolic import is_fake, symbols_in


def model(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.sigmoid(x.flatten() * n).view(x.shape[0], -1).t() + 1


@pytest.fixture(scope="module")
def split() -> Program:
    x = torch.randn(4, 3)
    return Split(at_op("aten::sigmoid"))(fxbucket.capture(model, x, 5, dynamic=["x.shape[0]", "n"]))


def concrete(split: Program, rows: int = 8, n: int = 2) -> Program:
    return Concretize({"x.shape[0]": rows, "n": n})(split)


def test_a_compiler_is_given_a_static_module_and_static_fake_inputs(split: Program, compiler: Any):
    program = concrete(split)
    compiled = [piece for piece in program.pieces if piece.is_compiled]
    for piece in compiled:
        compile_piece(piece, program, compiler)
    assert compiler.count == len(compiled) == 2
    for module, inputs in compiler.given:
        assert isinstance(module, fx.GraphModule)
        assert all(is_fake(value) for value in inputs)
        assert not symbols_in(inputs)
        assert not any(symbols_in((list(node.meta.values()), node.args)) for node in module.graph.nodes)
    assert [tuple(value.shape) for value in compiler.given[0][1]] == [(8, 3)]


def test_a_boundary_and_a_trivial_piece_are_not_given_to_the_compiler(compiler: Any):
    program = Split(at_op("aten::sigmoid"))(
        fxbucket.capture(lambda x: torch.sigmoid(torch.sigmoid(x).t()), torch.randn(4, 3), dynamic=["x.shape[0]"])
    )
    done = Concretize({"x.shape[0]": 8})(program)
    x = torch.randn(8, 3)
    (built,) = Builder(Options(compiler=compiler)).build([done])
    (first,) = built.artifacts[0].call(x)
    (second,) = built.artifacts[1].call(first)
    assert [artifact.origin for artifact in built.artifacts] == ["as it is"] * len(done.pieces)
    assert torch.equal(second, torch.sigmoid(x).t())
    assert compiler.count == 0


def test_a_compiler_that_rewrites_its_module_changes_no_program(split: Program):
    program = concrete(split)
    before = str(program)

    def vandal(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        forward = fx.GraphModule(module, fx.Graph()).forward
        for node in reversed(list(module.graph.nodes)):
            node.meta.clear()
            if node.op == "output":
                node.args = ((),)
            elif node.op != "placeholder":
                module.graph.erase_node(node)
        return forward

    for piece in program.pieces:
        compile_piece(piece, program, vandal)
    assert str(program) == before


@pytest.mark.parametrize("enabled", [True, False])
def test_a_compiler_works_in_the_grad_mode_of_the_capture_and_outside_every_mode(enabled: bool):
    with torch.set_grad_enabled(enabled):
        program = Concretize({"x.shape[0]": 8})(
            Split()(fxbucket.capture(lambda x: x + 1, torch.randn(4), dynamic=["x.shape[0]"]))
        )
    seen: list[bool] = []

    def looks(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(torch.is_grad_enabled())
        assert float(torch.ones(2).sum()) == 2.0, "real work is possible"
        return module.forward

    with torch.set_grad_enabled(not enabled):
        compile_piece(program.pieces[0], program, looks)
        assert torch.is_grad_enabled() is not enabled
    assert seen == [enabled]


def test_a_compiler_that_fails_is_told_with_piece_and_bucket_and_its_own_error(split: Program):
    program = concrete(split)

    def fails(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        raise ZeroDivisionError("no tiles")

    with pytest.raises(CompileError, match=r"compiling piece_0 for bucket x.shape\[0\]=8, n=2 failed: .*no tiles") as caught:
        compile_piece(program.pieces[0], program, fails)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_our_own_kind_comes_through_as_it_is(split: Program):
    program = concrete(split)

    def fails(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        raise OptionError("mine")

    with pytest.raises(OptionError, match="mine"):
        compile_piece(program.pieces[0], program, fails)


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_a_compiler_by_name_computes_what_the_piece_does(split: Program, name: str):
    program = concrete(split)
    piece = program.pieces[0]
    x = torch.randn(8, 3)
    (found,) = compile_piece(piece, program, compiler_for(name, {})).call(x)
    assert torch.equal(found, piece.module(x)[0])


def test_a_callable_is_its_own_compiler(compiler: Any):
    assert compiler_for(compiler, {}) is compiler


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("inducter", {}, "'inducter' is not a backend of torch.compile.*'inductor'"),
        ("aot_eager", {"max_autotune": True}, "inductor_options are given, but the compiler is 'aot_eager'; leave them out"),
        ("inductor", {"max_autotun": 1}, "Inductor has no option 'max_autotun'.*'max_autotune'"),
    ],
)
def test_a_compiler_that_does_not_exist_is_refused_with_the_nearest(name: str, options: dict[str, Any], said: str):
    with pytest.raises(OptionError, match=said) as caught:
        compiler_for(name, options)
    assert isinstance(caught.value, FxbucketError)


@pytest.mark.parametrize("compile_when", ["first_call", "lazily"])
def test_a_failed_compilation_reaches_the_caller_and_may_succeed_later(compile_when: str):
    fail = True

    def moody(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if fail:
            raise RuntimeError("out of memory")
        return module.forward

    compiled = fxbucket.compile(lambda x: x + 1, sizes={"x.shape[0]": [4]}, compiler=moody, compile_when=compile_when)
    x = torch.randn(4)
    for _ in range(2):
        with pytest.raises(CompileError, match=r"piece_0 for bucket x.shape\[0\]=4 failed: .*out of memory"):
            compiled(x)
    fail = False
    assert torch.equal(compiled(x), x + 1)
    assert compiled.explain().calls()["x.shape[0]=4"] == 1


def test_inductor_compiles_a_static_piece_with_its_options():
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) + 1

    program = Pipeline([Split(), Concretize({"x.shape[0]": 8})])(
        fxbucket.capture(small, torch.randn(4, 4), dynamic=["x.shape[0]"])
    )
    x = torch.randn(8, 4)
    compiled = compile_piece(program.pieces[0], program, compiler_for("inductor", {"max_autotune": False})).call
    torch.testing.assert_close(compiled(x)[0], small(x))


def test_pieces_that_are_equal_at_a_size_alone_share_an_artifact_of_this_process_in_the_right_order():
    @torch.compiler.allow_in_graph
    def mixed(left: torch.Tensor, right: torch.Tensor, number: int) -> torch.Tensor:
        return left * 2 + right * number

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        number = x.shape[0] // 16 + 1
        return mixed(mixed(x.sin(), y, number).cos().sin(), y, number).cos()

    axes = {"rows": ["x.shape[0]", "y.shape[0]"]}
    compiled = fxbucket.compile(model, axes=axes, sizes={"rows": [20]}, splitting_ops=["torch.cos"], compiler="eager")
    x, y = torch.randn(20), torch.randn(20)
    assert torch.equal(compiled(x, y), model(x, y))
    (bucket, *_) = compiled.explain().graphs[0].buckets
    assert [artifact.origin for artifact in bucket.artifacts][:3] == ["compiled", "as it is", "shared"]
