"""Which torch the tests run with, where it does some things in another way than the one that they were written with."""

from __future__ import annotations

import torch

_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
OLDER = _VERSION < (2, 13)
NEWER = _VERSION > (2, 13)
