"""Copies of tensors into larger ones, with padding: any number of them in one launch of a Triton kernel.

Where that kernel cannot run, torch's own copies do the same, in several launches.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxbucket.fill_table import BLOCK_WORDS, COLUMNS, WIDEST, Plan, plan_of, table_of
from fxbucket.passes.errors import CopyError, FxbucketWarning

Job = tuple[torch.Tensor, torch.Tensor, complex]

# Kernels take this many addresses as arguments, and more of them from memory.
_MOST_ARGUMENTS = 64
# An address that Triton infers nothing from: no multiple of two, and no number of 32 bits.
_ANY_ADDRESS = (1 << 40) + 1


@dataclass(frozen=True, eq=False)
class Slot:
    """Memory that one tensor of every call is copied into.

    Attributes:
        destination: strided memory without overlap; its address, sizes and strides stay as they are.
        sizes: of the tensors that will be copied; each at most the destination's.
        strides: of those tensors, in elements.
        fill: the number that the rest of the destination is filled with.
    """

    destination: torch.Tensor
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    fill: complex = 0


class Filler:
    """Copies the tensors of a call into their slots; ``prepare`` makes it.

    It writes memory and nothing else: no gradient is recorded, and autograd's version counters stay. Sources and
    destinations must not overlap, save that a source may lie exactly where it goes.

    Attributes:
        slots: where the tensors go, in the order in which they are given.
        is_one_launch: whether a call launches one kernel at most.
    """

    is_one_launch = False

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self._expected = [
            (tuple(slot.sizes), tuple(slot.strides), slot.destination.dtype, slot.destination.device) for slot in self.slots
        ]

    def __call__(self, sources: Sequence[torch.Tensor]) -> None:
        """Copy one tensor into each slot, on the current stream.

        Raises:
            CopyError: a tensor is not as its slot expects it.
        """
        for source, (sizes, strides, dtype, device) in zip(sources, self._expected, strict=True):
            if (
                source.stride() != strides
                or source.shape != sizes
                or source.dtype is not dtype
                or source.device != device
                or source.is_neg()
                or source.is_conj()
            ):
                self._refuse(sources)
        self.unchecked(sources)

    def unchecked(self, sources: Sequence[torch.Tensor]) -> None:
        """Copy tensors that the caller knows to be as their slots expect them; others give wrong values, or a crash."""
        raise NotImplementedError

    def _refuse(self, sources: Sequence[torch.Tensor]) -> None:
        for position, (source, expected) in enumerate(zip(sources, self._expected, strict=True)):
            given = (tuple(source.shape), source.stride(), source.dtype, source.device)
            names = ("sizes", "strides", "dtype", "device")
            for name, wanted, got in zip(names, expected, given, strict=True):
                if wanted != got:
                    raise CopyError(f"job {position}: its {name} are {got}, and its slot was prepared for {wanted}")
            if source.is_neg() or source.is_conj():
                raise CopyError(
                    f"job {position}: the tensor is a lazy conjugate or negative; "
                    "give what its resolve_conj().resolve_neg() returns"
                )


def prepare(slots: Sequence[Slot]) -> Filler:
    """Return what fills these slots, in one launch where that is possible.

    Not to be called while a stream is captured: it copies a table to the device, and may compile. Calls of the filler may
    be captured; those with more than 64 tensors are then torch's own copies.

    Raises:
        CopyError: a source is larger than its destination or has other dims, a destination overlaps itself, or its dtype
            does not hold the fill.
    """
    for position, slot in enumerate(slots):
        _check(position, slot)
    plans = _plans(slots)
    if plans is not None:
        try:
            return _KernelFiller(slots, plans)
        except Exception as error:  # of a missing C compiler, an old driver, a GPU that Triton does not know: it varies
            text = " ".join(str(error).split())[:300]
            warnings.warn(
                f"Triton's kernel cannot be made, so that torch copies one by one: {type(error).__name__}: {text}",
                FxbucketWarning,
                stacklevel=2,
            )
    return _TorchFiller(slots)


def copy_and_pad(jobs: Iterable[Job]) -> None:
    """Copy each source into the leading corner of its destination, and fill the rest.

    For many calls with the same destinations, ``prepare`` once and call the filler.

    Args:
        jobs: source, destination of the same dtype, device and number of dims, and the number to fill with.

    Raises:
        CopyError: a job's tensors do not fit each other; nothing was written.
    """
    slots, sources = [], []
    for position, (given, destination, fill) in enumerate(jobs):
        source = given.detach().resolve_conj().resolve_neg()
        for name in ("dtype", "device"):
            here, there = getattr(source, name), getattr(destination, name)
            if here != there:
                raise CopyError(f"job {position}: the source's {name} is {here}, the destination's {there}")
        slots.append(Slot(destination, tuple(source.shape), source.stride(), fill))
        sources.append(source)
    prepare(slots).unchecked(sources)


def _check(position: int, slot: Slot) -> None:
    destination = slot.destination
    sizes, place = tuple(destination.shape), f"job {position}"
    if destination.is_neg() or destination.is_conj():
        raise CopyError(f"{place}: the destination is a lazy conjugate or negative, not memory")
    if not len(slot.sizes) == len(slot.strides) == len(sizes):
        raise CopyError(f"{place}: the source has {len(slot.sizes)} dims, the destination {len(sizes)}")
    for dim, (size, most) in enumerate(zip(slot.sizes, sizes, strict=True)):
        if size > most:
            raise CopyError(f"{place}: the source has size {size} in dim {dim}, the destination {most}")
        if most > 1 and destination.stride(dim) == 0 and destination.numel() > 0:
            raise CopyError(f"{place}: the destination is expanded in dim {dim}, so that its elements overlap; clone it")
    try:
        torch.full((), slot.fill, dtype=destination.dtype)
    except (RuntimeError, TypeError) as error:
        raise CopyError(f"{place}: {destination.dtype} does not hold the fill {slot.fill!r}") from error


def _plans(slots: Sequence[Slot]) -> list[Plan] | None:
    """Return the plan of each slot; ``None`` where one kernel cannot fill them all."""
    devices = {slot.destination.device for slot in slots}
    if len(devices) != 1 or any(slot.destination.layout != torch.strided for slot in slots):
        return None
    device = next(iter(devices))
    if device.type not in ("cpu", "cuda") or not _has_triton():
        return None
    # Only Triton's interpreter runs kernels on a CPU, and it cannot read a GPU's memory.
    if (device.type == "cpu") is not _is_interpreted():
        return None
    plans = [plan_of(slot.destination, slot.sizes, slot.strides, slot.fill) for slot in slots]
    return [plan for plan in plans if plan is not None] if None not in plans else None


class _KernelFiller(Filler):
    """Fills by one launch."""

    is_one_launch = True

    def __init__(self, slots: Sequence[Slot], plans: Sequence[Plan]) -> None:
        super().__init__(slots)
        device = slots[0].destination.device
        rows, owners = table_of(plans)
        # Both copies are done when they return, so that any stream may read them.
        self._table = torch.tensor(rows, dtype=torch.int64).to(device)
        self._owners = torch.tensor(owners, dtype=torch.int64).to(device)
        self._device = device
        self._is_one_of_several = device.type == "cuda" and torch.cuda.device_count() > 1
        self._is_listed = len(slots) > _MOST_ARGUMENTS
        # Counts are rounded up to powers of two, so that few kernels are compiled.
        num_arguments = 0 if self._is_listed else 1 << (len(slots) - 1).bit_length()
        self._unused = (0,) * (num_arguments - len(slots))
        most_words = max(plan.narrow.num_words for plan in plans)
        constants = _constants(num_arguments, most_words + BLOCK_WORDS * WIDEST >= 2**31)
        self._launch: Any = _launcher(device, constants, len(owners)) if owners else None
        # The launcher asks a tensor for its address, and the driver whether that is right; an int is taken as it is.
        places = (self._table, self._owners)
        self._places: Any = places if device.type == "cpu" else tuple(place.data_ptr() for place in places)
        self._constants = constants

    def unchecked(self, sources: Sequence[torch.Tensor]) -> None:
        if self._launch is None:
            return
        if self._is_one_of_several and torch.cuda.current_device() != self._device.index:
            with torch.cuda.device(self._device):
                self.unchecked(sources)
            return
        addresses: Any = (*[source.data_ptr() for source in sources], *self._unused)
        if self._is_listed:
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                _TorchFiller(self.slots).unchecked(sources)  # a replay would read the list after its memory is gone
                return
            addresses = _listed(addresses, self._device)
        self._launch(*self._places, addresses, *self._constants)


class _TorchFiller(Filler):
    """Fills by torch's own copies."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        super().__init__(slots)
        self._corners: list[tuple[int, torch.Tensor]] = []
        self._margins: list[tuple[torch.Tensor, complex]] = []
        self._whole: dict[tuple[torch.dtype, torch.device], list[tuple[int, torch.Tensor]]] = {}
        for position, slot in enumerate(slots):
            target = slot.destination.detach()
            if tuple(target.shape) == tuple(slot.sizes):
                self._whole.setdefault((target.dtype, target.device), []).append((position, target))
                continue
            for dim, size in enumerate(slot.sizes):
                self._margins.append((target.narrow(dim, size, target.shape[dim] - size), slot.fill))
                target = target.narrow(dim, 0, size)
            self._corners.append((position, target))

    def unchecked(self, sources: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for margin, fill in self._margins:
                margin.fill_(fill)
            for position, corner in self._corners:
                corner.copy_(sources[position], non_blocking=True)
            for group in self._whole.values():
                targets = [target for _, target in group]
                torch._foreach_copy_(targets, [sources[position] for position, _ in group], non_blocking=True)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _is_interpreted() -> bool:
    """Whether kernels are run by Triton's interpreter: as Triton itself decides when a kernel's module is imported."""
    if "fxbucket.fill_kernel" not in sys.modules and not os.environ.get("TRITON_INTERPRET"):
        return False
    from triton.runtime import JITFunction

    from fxbucket.fill_kernel import fill

    return not isinstance(fill, JITFunction)


def _constants(num_arguments: int, is_long: bool) -> tuple[Any, ...]:
    """Return the constants of a kernel for a number of addresses; 0 stands for addresses in memory."""
    import triton.language as tl

    return num_arguments, num_arguments == 0, COLUMNS, BLOCK_WORDS, tl.int64 if is_long else tl.int32


def _launcher(device: torch.device, constants: tuple[Any, ...], num_blocks: int) -> Any:
    """Return what launches a number of blocks when it is given the kernel's arguments, with all that takes time done."""
    grid = (num_blocks, 1, 1)
    if _is_interpreted():
        from fxbucket.fill_kernel import fill

        return fill[grid]
    with torch.cuda.device(device):
        return _compiled(device, constants)[grid]


@functools.cache
def _compiled(device: torch.device, constants: tuple[Any, ...]) -> Any:
    """Return the kernel for the current device, compiled.

    A compiled kernel is launched as it is: Triton's look-up of the one that fits the arguments takes longer than the rest.
    """
    from fxbucket.fill_kernel import fill

    ints = torch.empty(2, dtype=torch.int64, device=device)
    num_arguments = constants[0]
    return fill.warmup(ints, ints, (_ANY_ADDRESS,) * num_arguments if num_arguments else ints, *constants, grid=(1, 1, 1))


def _listed(addresses: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return addresses in a device's memory, by a copy in the current stream that the host does not wait for."""
    listed = torch.tensor(addresses, dtype=torch.int64, pin_memory=device.type == "cuda")
    return listed.to(device, non_blocking=True)
