"""What an artifact depends on beside its piece: versions, the machine, settings. Part of every artifact's key."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fxbucket.inductor import inductor_settings

FORMAT = 3
"""Counts up whenever what is written to the store, what a form holds, or how artifacts are made, changes its meaning."""


@dataclass(frozen=True)
class Environment:
    """Facts that must be the same where an artifact is made and where it is used.

    Attributes:
        facts: each fact by name, as text.
        local_reasons: settings that mean something in this process only; with any, nothing is stored or sent away.
    """

    facts: Mapping[str, str]
    local_reasons: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A SHA-256 of all facts, in hexadecimal."""
        return hashlib.sha256(repr(sorted(self.facts.items())).encode()).hexdigest()

    def key_of(self, form_digest: str) -> str:
        """Return the key of an artifact: a SHA-256 of its piece's form and of this environment, in hexadecimal."""
        return hashlib.sha256(f"{form_digest} {self.digest}".encode()).hexdigest()

    def differences(self, other: Environment) -> list[str]:
        """Return ``"name: this, other"`` for each fact that differs."""
        names = sorted(self.facts.keys() | other.facts.keys())
        pairs = [(name, self.facts.get(name, "nothing"), other.facts.get(name, "nothing")) for name in names]
        return [f"{name}: {mine}, {theirs}" for name, mine, theirs in pairs if mine != theirs]


def environment(inductor_options: Mapping[str, Any]) -> Environment:
    """Return the facts of this process as they are now, with these options of Inductor."""
    settings = {**inductor_settings(), **{f"inductor.{name}": value for name, value in inductor_options.items()}}
    texts: dict[str, str] = {}
    reasons: list[str] = []
    for name, value in settings.items():
        text = _setting_text(value)
        if text is None:
            reasons.append(f"{name} is {value!r}, which has no uuid() to know it by")
            text = f"object {id(value)}"
        texts[name] = text
    facts = {**_machine(), **_switches(), **texts}
    return Environment(facts, tuple(reasons))


def _setting_text(value: Any) -> str | None:
    """Return a setting as text that means the same in every process; ``None`` where there is no such text."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_setting_text(item) for item in value]
        if any(part is None for part in parts):
            return None
        ordered = sorted(map(str, parts)) if isinstance(value, (set, frozenset)) else list(map(str, parts))
        return f"{type(value).__name__}({', '.join(ordered)})"
    if isinstance(value, Mapping):
        return _setting_text([item for pair in value.items() for item in pair])
    uuid = getattr(value, "uuid", None)
    known = uuid() if callable(uuid) else None
    return None if known is None else f"{type(value).__qualname__} {known!r}"


@functools.cache
def _machine() -> Mapping[str, str]:
    facts = {
        "fxbucket format": str(FORMAT),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}",
        "system": f"{sys.platform} {platform.machine()} {platform.libc_ver()[0]}",
        "processor": _processor(),
        # Inductor names a library by the command that builds it, which holds these folders.
        "installed": f"{Path(torch.__file__).parent} {sys.base_prefix}",
        "triton": _triton_version(),
    }
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(number)
        facts[f"cuda:{number}"] = (
            f"{properties.name} {properties.major}.{properties.minor} {properties.multi_processor_count} "
            f"{torch.version.cuda or torch.version.hip}"
        )
    return facts


def _processor() -> str:
    """Return what compilers tune for: kernels are built for the very processor that they were compiled on."""
    capability = torch.backends.cpu.get_cpu_capability()
    information = Path("/proc/cpuinfo")
    if not information.is_file():
        return f"{capability} {platform.processor()}"
    lines = information.read_text(errors="replace").splitlines()
    told = [line for line in lines if line.partition(":")[0].strip() in ("model name", "flags", "Features", "CPU part")]
    kinds = sorted(set(told))
    return f"{capability} {hashlib.sha256(chr(10).join(kinds).encode()).hexdigest()[:16]}"


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


def _switches() -> dict[str, str]:
    """Return torch's global switches that compilers look at; those of one capture are part of its pieces' forms."""
    backends = torch.backends
    values: dict[str, object] = {
        "threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "mkldnn": backends.mkldnn.enabled,
        "cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic, backends.cudnn.allow_tf32),
        "cuda matmul": (
            backends.cuda.matmul.allow_tf32,
            backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        ),
        "fill uninitialized memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    }
    return {name: repr(value) for name, value in values.items()}
