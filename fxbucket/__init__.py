"""fxbucket: one trace, many static compilations, one look-up a call.

``fxbucket.compile`` for users, ``fxbucket.backend`` for those who live in torch.compile, ``fxbucket.capture`` and
``fxbucket.passes`` for those who write passes, ``fxbucket.visualize`` for all who want to look.
"""

import importlib
import logging
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxbucket import passes as passes
    from fxbucket.backend import backend as backend
    from fxbucket.capture import capture as capture
    from fxbucket.compiled import compile as compile
    from fxbucket.passes.buckets import Range as Range
    from fxbucket.passes.captured import Axis as Axis
    from fxbucket.passes.errors import FxbucketError as FxbucketError
    from fxbucket.passes.errors import FxbucketWarning as FxbucketWarning
    from fxbucket.saving import load as load
    from fxbucket.suggest import suggest_sizes as suggest_sizes

__all__ = [
    "Axis", "FxbucketError", "FxbucketWarning", "Range", "backend", "capture", "compile", "load", "suggest_sizes",
]  # fmt: skip
__version__ = "0.1.0"

_HOMES = {
    "Axis": "fxbucket.passes.captured",
    "FxbucketError": "fxbucket.passes.errors",
    "FxbucketWarning": "fxbucket.passes.errors",
    "Range": "fxbucket.passes.buckets",
    "backend": "fxbucket.backend",
    "capture": "fxbucket.capture",
    "compile": "fxbucket.compiled",
    "load": "fxbucket.saving",
    "suggest_sizes": "fxbucket.suggest",
}
_PACKAGES = ("passes", "visualize")


class _Package(ModuleType):
    """Imports torch when the first public name is asked for, so that ``fxbucket --help`` need not wait for it."""

    def __getattr__(self, name: str) -> Any:
        if name in _PACKAGES:
            return importlib.import_module(f"fxbucket.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'fxbucket' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Two functions are named as the modules that hold them. Python puts each module that it imports into its package,
        # where these two must not take the place of the functions.
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_HOMES, *_PACKAGES})


sys.modules[__name__].__class__ = _Package

# A library is silent until the program that uses it says where its log goes.
logging.getLogger("fxbucket").addHandler(logging.NullHandler())
