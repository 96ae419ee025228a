"""An artifact of Inductor called below its wrappers, and without the checks of inputs that are settled already."""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fxbucket.generated import function_from
from fxbucket.inductor import generated_code, innermost_call

_CHECK, _CHECK_SEVERAL = "assert_size_stride", "assert_size_stride_grouped"
"""What Inductor's code calls to check the sizes and strides of an input, or of what an op that it did not compile gave; from
torch 2.14 on several at once."""


@dataclass(frozen=True, eq=False)
class Direct:
    """What runs an artifact below its wrappers.

    Attributes:
        call: takes a list of the inputs, which it may empty, and returns the outputs.
        definition: the code of ``call`` as a function of the inputs, and no list; ``None`` where it has a form that is not
            known.
    """

    call: Callable[[list[Any]], Any]
    definition: ast.FunctionDef | None
    _made: dict[frozenset[int], Callable[..., Any] | None] = field(default_factory=dict, repr=False)

    def unchecked(self, checked: Set[int]) -> Callable[..., Any] | None:
        """Return a function of the inputs that leaves out the checks of sizes and strides, but for these inputs.

        Checks of what ops return that Inductor only calls are kept.

        Args:
            checked: positions of the inputs that are still checked.
        """
        if self.definition is None:
            return None
        wanted = frozenset(checked)
        if wanted not in self._made:
            self._made[wanted] = self._without_checks(self.definition, wanted)
        return self._made[wanted]

    def _without_checks(self, definition: ast.FunctionDef, checked: Set[int]) -> Callable[..., Any] | None:
        method = self.call.__func__  # type: ignore[attr-defined]
        names = [argument.arg for argument in definition.args.args]
        assigned = {
            node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        settled = {name for position, name in enumerate(names) if position not in checked} - assigned
        tree = _WithoutChecks(settled).visit(copy.deepcopy(definition))
        try:
            made = function_from(ast.unparse(tree) + "\n", definition.name, f"artifact {method.__module__}", {})
        except SyntaxError:  # nothing is left in a block
            return None
        return types.FunctionType(made.__code__, method.__globals__, definition.name)


def direct_call(artifact: Any) -> Direct | None:
    """Return what runs an artifact below its wrappers; ``None`` where they may have something to do."""
    call = innermost_call(artifact)
    if call is None:
        return None
    return Direct(call, _definition(call, generated_code(artifact)))


def _definition(call: Any, code: str) -> ast.FunctionDef | None:
    """Return a method ``call(self, args)`` of generated code as a function of what is in ``args``."""
    if not isinstance(call, types.MethodType) or not isinstance(call.__func__, types.FunctionType):
        return None
    owner, _, name = call.__func__.__qualname__.rpartition(".")
    try:
        module = ast.parse(code)
    except SyntaxError:
        return None
    classes = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == owner]
    methods = [node for held in classes for node in held.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(methods) != 1 or [argument.arg for argument in methods[0].args.args] != ["self", "args"]:
        return None
    if len(methods[0].body) < 3:
        return None
    unpack, clear, *body = methods[0].body
    names = _names_unpacked(unpack)
    used = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if names is None or ast.unparse(clear) != "args.clear()" or used & {"self", "args"} or len({*names}) != len(names):
        return None
    made = ast.parse(f"def {name}({', '.join(names)}): pass").body[0]
    assert isinstance(made, ast.FunctionDef)  # it was just written so
    made.body = body
    return made


def _names_unpacked(statement: ast.stmt) -> Sequence[str] | None:
    """Return the names of ``a, b = args``."""
    if not isinstance(statement, ast.Assign) or ast.unparse(statement.value) != "args" or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Tuple):
        return None
    names = [item.id for item in target.elts if isinstance(item, ast.Name)]
    return names if len(names) == len(target.elts) else None


class _WithoutChecks(ast.NodeTransformer):
    """Leaves out the checks of the variables of these names."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return node
        if call.func.id == _CHECK and self._is_settled(call.args[0]):
            return None
        several = call.args[:3]
        if call.func.id == _CHECK_SEVERAL and len(several) == 3:
            columns = [held.elts for held in several if isinstance(held, ast.Tuple)]
            if len({len(column) for column in columns}) != 1 or len(columns) != 3:
                return node
            kept = [row for row in zip(*columns, strict=True) if not self._is_settled(row[0])]
            if not kept:
                return None
            call.args[:3] = [ast.Tuple(list(column), ast.Load()) for column in zip(*kept, strict=True)]
        return node

    def _is_settled(self, variable: ast.expr) -> bool:
        return isinstance(variable, ast.Name) and variable.id in self._names
