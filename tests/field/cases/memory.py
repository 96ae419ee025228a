"""Faults of memory: strides, offsets, storages that are shared, and writes that others must see."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fxbucket.backend import Backend
from tests.field.case import Made, case

CAPACITY = 32


class _Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(positions * 2.0 + x)
        return self.head((gate * positions).t()).sum(-1)


@case("vllm-project/vllm#50046", "vllm-project/vllm#29014", axis="x.shape[0]")
def pitched_buffer() -> Made:
    """An argument is a window into a wider buffer that outlives the calls, so its row stride never varies.

    Fault: the pinned size was written into every symbol of the stride. Right: a bucket of n columns takes strides
    ``(CAPACITY + 1, 1)``; a call where the size is the stride by chance changes nothing for the others.
    """
    buffer = torch.randn(3, CAPACITY + 1)
    return _Rotary().eval(), [(buffer[:, :n], torch.randn(n)) for n in (6, 16, 5, CAPACITY + 1, 16)]


@case("pytorch/pytorch#172693", "pytorch/pytorch#193966")
def transposed_reshape() -> Made:
    """A permuted argument is reshaped, and both its axes vary.

    Fault: the argument was taken for contiguous. Right: values and the strides of each output are eager's.
    """

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = x * 2
        squashed = torch.sigmoid(doubled)
        rows, columns = x.shape[0], x.shape[1]
        return squashed.reshape(-1), doubled.reshape(rows, -1), squashed.transpose(0, 1).reshape(columns, -1)

    return model, [(torch.randn(b, 4, a).permute(2, 0, 1),) for a, b in ((3, 5), (6, 5), (6, 2), (2, 7))]


def _no_compilation_for_an_offset(backend: Backend) -> None:
    graphs = backend.explain().graphs
    assert len(graphs) == 1, "an offset is not a reason to capture again"
    served = [bucket for bucket in graphs[0].buckets if bucket.state == "compiled"]
    assert len(served) <= 2, [bucket.bucket for bucket in served]
    assert sum(bucket.calls for bucket in served) == len(OFFSETS)


OFFSETS = ((0, 8), (1, 8), (2, 8), (3, 8), (7, 8), (8, 8), (5, 12), (6, 12), (9, 12), (17, 8))


@case(
    "pytorch/pytorch#104563", "pytorch/pytorch#112771", "torch-spyre/torch-spyre#3770", inspect=_no_compilation_for_an_offset
)
def sliding_window() -> Made:
    """One shape at another storage offset each call, odd ones too.

    Fault: a compilation for each offset, or the offset forgotten and the wrong window read. Right: equal values, and
    two sizes are two compilations.
    """

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x).cumsum(0) + x[:1]

    line = torch.arange(64.0) / 10
    return model, [(line[offset : offset + n],) for offset, n in OFFSETS]


class _Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sigmoid(self.convolution(x) + 1) * 2, x + 1


@case("pytorch/pytorch#183770", "pytorch/pytorch#179442", "pytorch/pytorch#91551", "pytorch/pytorch#124256")
def channels_last() -> Made:
    """Images in channels_last whose number, height and width vary.

    Fault: an example input was made anew as contiguous, and the layout of the output was lost. Right: eager's strides,
    and afterwards a contiguous image of a size already seen works too.
    """
    images = [torch.randn(n, 3, h, h + 1).to(memory_format=torch.channels_last) for n, h in ((2, 5), (3, 5), (2, 8))]
    model = _Convolution().eval().to(memory_format=torch.channels_last)
    return model, [(image,) for image in (*images, torch.randn(2, 3, 5, 6))]


def _writes_were_seen_in_order(_: int, outputs: Any, arguments: Any) -> None:
    before, between, after, buffer, _gate = outputs
    assert (before == 1).all()
    assert (between == 2).all()
    assert (after == 3).all()
    assert buffer[0, 0] == 50
    assert (buffer.view(-1)[1:] == 3).all()
    assert (arguments[0] == 1).all()


@case("pytorch/pytorch#81244", "pytorch/xla#5309", holds=_writes_were_seen_in_order)
def write_order() -> Made:
    """Reads between writes, on both sides of a boundary that depends on none of them.

    Fault: FX holds no edge from a write to a later read, so a splitter moved one before the other. Right: each read sees
    the writes before it and none after.
    """

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        buffer = x.clone()
        before = buffer + 0
        buffer.fill_(2)
        gate = torch.sigmoid(x)
        between = buffer * 1
        buffer.add_(1)
        after = buffer * 1
        buffer.view(-1)[0] = 50
        return before, between, after, buffer, gate

    return model, [(torch.ones(n, 2),) for n in (3, 5, 2)]


def _overlap_was_seen(number: int, outputs: Any, _: Any) -> None:
    if number == 1:
        assert outputs.tolist() == [6.0, 6.0, 4.0, 4.0]


@case(
    "pytorch/pytorch#139789",
    "pytorch/pytorch#198095",
    splitting_ops=(),
    warns="share memory that the graph writes to",
    holds=_overlap_was_seen,
)
def overlap_on_a_later_call() -> Made:
    """Two arguments share memory in the second call only, and the model writes to one.

    Fault: torch.compile runs the graph of the first call, which is silently wrong. Right: eager's values in each call, with
    one warning.
    """

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x + y

    base, again = torch.ones(8), torch.ones(8)
    apart = [(torch.ones(n), torch.ones(n)) for n in (4, 5)]
    return model, [apart[0], (base[:4], base[2:6]), apart[1], (again[:4], again[2:6])]


def _caller_sees_the_write(_: int, outputs: Any, arguments: Any) -> None:
    assert (outputs[0] == 3).all()
    assert (outputs[1] == 6).all()
    assert (arguments[0] == 3).all()
    assert outputs[0].data_ptr() == arguments[0].data_ptr()


@case("pytorch/pytorch#195422", splitting_ops=(), holds=_caller_sees_the_write)
def identity_dropout() -> Made:
    """In eval mode a dropout returns its very argument, and the model writes to what it returned.

    Fault: torch.compile drops the write. Right: the caller's tensor is written to, and later reads see it.
    """

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.dropout(x, 0.3, training=False)
        y += 2
        return y, x * 2

    return model, [(torch.ones(n, 2),) for n in (3, 4)]


def _arguments_come_back_themselves(_: int, outputs: Any, arguments: Any) -> None:
    assert outputs[0] is arguments[0]
    assert outputs[1] is arguments[1]
    assert outputs[3] is None


@case(
    "pytorch/pytorch#140014",
    "pytorch/pytorch#141340",
    "pytorch/pytorch#74736",
    axis="s0.shape[0]",
    holds=_arguments_come_back_themselves,
)
def returned_argument() -> Made:
    """Arguments are returned as they are, one is not used, and their names are those of a compiler's own variables.

    Fault: an error of the splitter, or clashing names. Right: the caller gets the caller's tensors, and the size of the
    argument that is not used is nobody's business.
    """

    def model(s0: Any, input: Any, len: Any, unused: Any, **kwargs: Any) -> tuple[Any, ...]:
        return s0, input, torch.sigmoid(len) + s0.shape[0], kwargs.get("opt")

    r = torch.randn
    return model, [(r(n), r(2), r(n), r(unused)) for n, unused in ((3, 4), (5, 4), (5, 9), (2, 2))]


def _the_very_argument(_: int, outputs: Any, arguments: Any) -> None:
    assert outputs[0] is arguments[0]


@case("pytorch/pytorch#140014", splitting_ops=(), holds=_the_very_argument)
def nothing_to_do() -> Made:
    """A model without an op.

    Fault: the splitter fails on a graph with nothing in it. Right: the argument comes back.
    """

    def model(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x,)

    return model, [(torch.randn(n),) for n in (3, 5)]


@torch.library.custom_op("fxbucket_field::count", mutates_args={"buffer"})
def count(buffer: torch.Tensor, x: torch.Tensor) -> None:
    buffer[0] += 1
    buffer[1] += x.shape[0]


@count.register_fake
def _(buffer: torch.Tensor, x: torch.Tensor) -> None:
    return None


def _calls_and_rows_are_counted(number: int, _: Any, arguments: Any) -> None:
    assert arguments[1].tolist() == ([1, 3], [2, 8], [3, 10])[number]


@case(
    "pytorch/pytorch#129680",
    "pytorch/pytorch#105875",
    "pytorch/pytorch#52658",
    "pytorch/torchtitan#3539",
    holds=_calls_and_rows_are_counted,
)
def effect_only_op() -> Made:
    """An op gives nothing and only writes: it counts calls and rows.

    Fault: dead-code elimination drops it. Right: after 3, 5 and 2 rows the buffer holds 3 calls and 10 rows; ops that
    really are dead may go.
    """

    def model(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x)
        torch.ops.fxbucket_field.count(buffer, y)
        y.sum()
        torch.add(y, 1)
        return y * 2

    buffer = torch.zeros(2, dtype=torch.long)
    return model, [(torch.randn(n, 2), buffer) for n in (3, 5, 2)]
