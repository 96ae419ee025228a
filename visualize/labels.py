"""The texts of a drawing: short ones for boxes and arrows, whole ones for tooltips."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import fx

from fxbucket.passes.captured import value_of
from fxbucket.passes.symbolic import SYMBOLIC_TYPES
from fxbucket.passes.text import DTYPE_NAMES, Namer, target_text, value_text

WIRE = "·"
"""Stands in an argument list for a value that an arrow brings."""

TIMES = "\N{MULTIPLICATION SIGN}"

# What XML 1.0 cannot carry, not even escaped, and surrogates, which UTF-8 cannot.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

# An absolute path of at least one folder: /home/me/model.py, C:\\work\\model.py; the last name is kept.
_FOLDERS = re.compile(
    r"""(?<![\w./:*<])(?:[A-Za-z]:\\(?:[^\\\s'"<>|]+\\)+|/(?:[^/\s'"()<>,:;*=|]+/)+)(?=[^/\s'"()<>,:;*=|])"""
)

_FOLDERS_OF_LINE = re.compile(r"(?<![\w./:])(?:[^/\s'\"()<>,:;*=|]+/)+(?=[^/\s'\"()<>,:;*=|]+\.py:\d)")

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CONTAINER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_MANGLED = re.compile(r"[lg]_\w+?(?P<path>_(?:modules|parameters|buffers)_\w+?)_?")
_KIND = re.compile(r"_(?:modules|parameters|buffers)_")
_SIZE = re.compile(r"\.size\(\)\[(\d+)\]")
_ROOT = re.compile(r"^[LG]\[['\"](.+?)['\"]\]")


def shorten(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters: the middle of a longer one becomes an ellipsis."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def edge_text(value: object, name: Namer) -> str:
    """Return a value's dtype and shape, and no more: ``f32[2*tokens + 1, 64]``."""
    if isinstance(value, torch.Tensor):
        dtype = DTYPE_NAMES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        return f"{dtype}[{', '.join(name(size) for size in value.shape)}]"
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [edge_text(item, name) for item in value]
        if len(items) > 1 and len(set(items)) == 1:
            return f"{len(items)} {TIMES} {items[0]}"
        return f"({', '.join(items)})"
    return value_text(value, name)


def source_text(source: str) -> str:
    """Return torch's name for an argument as a person would write it: ``layers.0.weight``, ``batch['ids']``.

    Args:
        source: for example ``L['self']._modules['layers']._modules['0']._parameters['weight']``.
    """
    plain = _CONTAINER.sub(r".\1", source)
    if plain != source:
        return _ROOT.sub("", plain, count=1).removeprefix(".") or plain
    return _SIZE.sub(r".shape[\1]", _ROOT.sub(r"\1", plain, count=1))


def mangled_text(name: str) -> str:
    """Return Dynamo's name of a parameter's placeholder as a person would write it, other names as they are.

    Args:
        name: for example ``l_self_modules_layers_modules_0_parameters_weight_``.
    """
    found = _MANGLED.fullmatch(name)
    return _KIND.sub(".", found["path"]).removeprefix(".") if found else name


def op_title(node: fx.Node) -> str:
    """Return the bare name of what a node calls: ``linear``, ``attention``."""
    text = target_text(node).removesuffix(".default")
    return text if node.op in ("call_module", "get_attr") else text.rpartition(".")[2] or text


def literals_text(node: fx.Node, name: Namer) -> str:
    """Return a node's arguments with a dot for each value that an arrow brings, empty where there is nothing else.

    Sizes are written by axis name, wherever they come from: ``(·, (tokens, 64))``.
    """
    plain = [_argument(argument, name, repr) for argument in node.args]
    plain += [f"{key}={_argument(value, name, repr)}" for key, value in node.kwargs.items()]
    if not set("".join(plain)) - {WIRE}:
        return ""
    return f"({', '.join(plain)})"


def signature_text(node: fx.Node, name: Namer) -> str:
    """Return what a node does, the same for nodes that differ in names alone.

    A text among the arguments counts as a name: serving engines hand a layer's own name to its attention op.
    """
    arguments = [_argument(argument, name, lambda _: "''") for argument in node.args]
    arguments += [f"{key}={_argument(value, name, lambda _: repr(''))}" for key, value in sorted(node.kwargs.items())]
    target = "" if node.op in ("get_attr", "placeholder") else target_text(node)
    return f"{node.op} {target}({', '.join(arguments)})"


def _argument(argument: object, name: Namer, write: Callable[[str], str]) -> str:
    if isinstance(argument, fx.Node):
        value = value_of(argument)
        return name(value) if isinstance(value, SYMBOLIC_TYPES) else WIRE
    if isinstance(argument, SYMBOLIC_TYPES):
        return name(argument)
    if isinstance(argument, str):
        return write(argument)
    if isinstance(argument, (tuple, list)):
        items = [_argument(item, name, write) for item in argument]
        if isinstance(argument, list):
            return f"[{', '.join(items)}]"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(argument, dict):
        return f"{{{', '.join(f'{key}: {_argument(item, name, write)}' for key, item in argument.items())}}}"
    if isinstance(argument, slice):
        parts = [argument.start, argument.stop] + ([argument.step] if argument.step is not None else [])
        return ":".join("" if part is None else _argument(part, name, write) for part in parts)
    if isinstance(argument, torch.Tensor):
        return edge_text(argument, name)
    return without_addresses(repr(argument)).removeprefix("torch.")


def returns_text(structure: object) -> str:
    """Return what a program's call returns, values by their names: ``(x_2, 48, None)``."""
    return without_addresses(str(structure)).replace("%", "")


def printable(text: str) -> str:
    """Return a text with a sign for each character that XML or UTF-8 cannot carry."""
    return _UNPRINTABLE.sub("\ufffd", text)


def without_folders(text: str) -> str:
    """Return a text with the folders of paths left out: ``/home/me/model.py`` becomes ``model.py``.

    Relative paths lose theirs where they name a line of Python (``me/model.py:12``), since torch cuts paths short.
    """
    return _FOLDERS_OF_LINE.sub("", _FOLDERS.sub("", text))


def without_addresses(text: str) -> str:
    """Return a text without memory addresses, which differ from run to run."""
    return _ADDRESS.sub("", text)
