"""The global switches under which a capture is valid: grad mode, autocast, the default dtype, determinism."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Autocast:
    """Autocast for one kind of device: whether it is on, and to which dtype."""

    device: str
    enabled: bool
    dtype: torch.dtype


@dataclass(frozen=True)
class Ambient:
    """What torch.compile checks before each call of a capture, and what a later compilation must find again.

    Attributes:
        grad_enabled: whether gradients are recorded.
        autocast: autocast for each kind of device that is there.
        default_dtype: what ``torch.get_default_dtype()`` gave.
        deterministic: whether deterministic algorithms are asked for, and whether a missing one is only warned of.
    """

    grad_enabled: bool = True
    autocast: tuple[Autocast, ...] = ()
    default_dtype: torch.dtype = torch.float32
    deterministic: tuple[bool, bool] = (False, False)

    @staticmethod
    def now() -> Ambient:
        """Return the switches as they are."""
        devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        return Ambient(
            grad_enabled=torch.is_grad_enabled(),
            autocast=tuple(
                Autocast(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices
            ),
            default_dtype=torch.get_default_dtype(),
            deterministic=(
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
        )

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """While the context is open, the switches are as they were at the capture."""
        before = Ambient.now()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for setting in self.autocast:
                stack.enter_context(torch.autocast(setting.device, dtype=setting.dtype, enabled=setting.enabled))
            try:
                self._set_globals()
                yield
            finally:
                before._set_globals()

    def _set_globals(self) -> None:
        if torch.get_default_dtype() is not self.default_dtype:
            torch.set_default_dtype(self.default_dtype)
        wanted, warn_only = self.deterministic
        if (wanted, warn_only) != (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ):
            torch.use_deterministic_algorithms(wanted, warn_only=warn_only)
