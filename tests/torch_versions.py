"""Which torch the tests run with, where it does some things in another way than the one that they were written with."""

from __future__ import annotations

import torch

OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
