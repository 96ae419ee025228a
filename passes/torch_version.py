"""Which torch fxbucket stands on; asked before anything private of torch is imported."""

from __future__ import annotations

import torch

from fxbucket.passes.errors import UnsupportedTorchError

OLDEST_TORCH = (2, 11)


def check_torch_version(version: str | None = None) -> None:
    """Raise :class:`UnsupportedTorchError` where torch is older than the oldest that fxbucket supports.

    Args:
        version: what ``torch.__version__`` says; the installed torch's where left out.
    """
    text = version if version is not None else torch.__version__
    major, minor = (int(part) for part in text.split("+")[0].split(".")[:2])
    if (major, minor) < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedTorchError(f"torch {text} is too old: fxbucket needs torch {wanted} or newer; upgrade torch.")
