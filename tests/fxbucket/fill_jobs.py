"""Random copies with padding, and what plain torch makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from fxbucket.kernels import Job

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int32,
    torch.float32,
    torch.int64,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
FILLS = (0, 1, -0.0, 2.5, math.nan)  # no infinity: float8_e4m3fn has none


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory.

    Attributes:
        order: its dims, outermost in memory first.
        steps: elements from one to the next in each dim, as in ``tensor[::step]``.
        offset: elements in front of it.
    """

    order: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int

    def tensor(self, sizes: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a tensor of random bits, and the whole memory that it lies in, with an element or more behind it."""
        strides, room = [0] * len(sizes), 1
        for dim in reversed(self.order):
            strides[dim] = room * self.steps[dim]
            room *= max(1, sizes[dim]) * self.steps[dim]
        memory = random_bits(self.offset + room + 3, dtype, device)
        return memory.as_strided(sizes, strides, self.offset), memory


@dataclass(frozen=True)
class JobSpec:
    """One copy; ``expanded`` are dims in which the source is one row over and over."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    source_sizes: tuple[int, ...]
    source: Layout
    destination: Layout
    expanded: frozenset[int]
    is_lazy: bool
    fill: Any

    def build(self, device: str) -> tuple[Job, torch.Tensor]:
        """Return the job, and the memory that its destination lies in."""
        rows = tuple(1 if dim in self.expanded else size for dim, size in enumerate(self.source_sizes))
        source = self.source.tensor(rows, self.dtype, device)[0].expand(self.source_sizes)
        if self.is_lazy and self.dtype.is_complex:
            source = source.conj()
        destination, memory = self.destination.tensor(self.sizes, self.dtype, device)
        return (source, destination, self.fill), memory


def random_bits(number: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return a flat tensor of random bits; of a bool only the lowest is random."""
    size = torch.empty((), dtype=dtype).element_size()
    high = 2 if dtype == torch.bool else 256
    return torch.randint(0, high, (number * size,), dtype=torch.uint8).view(dtype).to(device)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)


def plainly(job: Job, memory: torch.Tensor) -> torch.Tensor:
    """Return what the memory of a job's destination holds afterwards."""
    source, destination, fill = job
    memory = memory.clone()
    target = memory.as_strided(destination.shape, destination.stride(), destination.storage_offset())
    target.copy_(torch.full(target.shape, fill, dtype=target.dtype, device=target.device))
    target[tuple(slice(size) for size in source.shape)] = source
    return memory


@st.composite
def layouts(draw: st.DrawFn, num_dims: int) -> Layout:
    is_plain = draw(st.booleans())
    dims = range(num_dims)
    order = tuple(dims) if is_plain else tuple(draw(st.permutations(dims)))
    steps = tuple(1 if is_plain else draw(st.sampled_from((1, 1, 2, 3))) for _ in dims)
    return Layout(order, steps, draw(st.sampled_from((0, 0, 1, 2, 3, 4, 8))))


@st.composite
def job_specs(draw: st.DrawFn, most: int = 8) -> JobSpec:
    """Up to five dims of sizes up to ``most``; a source is as large as its destination in most of them."""
    num_dims = draw(st.integers(0, 5))
    sizes = tuple(draw(st.sampled_from((1, 2, 3, 4, most, 0 if dim == 0 else 2))) for dim in range(num_dims))
    source_sizes = tuple(size if draw(st.booleans()) else draw(st.integers(0, size)) for size in sizes)
    dtype = draw(st.sampled_from(DTYPES))
    return JobSpec(
        dtype,
        sizes,
        source_sizes,
        draw(layouts(num_dims)),
        draw(layouts(num_dims)),
        draw(st.frozensets(st.integers(0, 4), max_size=2)),
        draw(st.booleans()),
        draw(st.sampled_from(FILLS if dtype.is_floating_point or dtype.is_complex else (0, 1, 7))),
    )
