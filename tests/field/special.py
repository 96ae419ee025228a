"""Models of kinds that a compiler easily gets wrong, each with a call at several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.field.case import Case, Model

PINNED = 4

SIZES = (PINNED, 6, PINNED, 1, 0)
"""1 and 0 are captured on their own."""

r = torch.randn


def special(
    *arguments: Callable[[int], Any], sizes: tuple[int, ...] = SIZES, **facts: Any
) -> Callable[[Callable[[], Model]], Case]:
    """Make a case of a function that gives a model; ``arguments`` give its arguments for a size."""

    def decorate(make: Callable[[], Model]) -> Case:
        def world() -> Any:
            return make(), [tuple(argument(size) for argument in arguments) for size in sizes]

        return Case(make.__name__, world, make.__doc__ or "", **facts)

    return decorate


def rows(n: int) -> torch.Tensor:
    return r(n, 4)


def trained_rows(n: int) -> torch.Tensor:
    return r(n, 4, requires_grad=True)


@special(rows, sizes=SIZES[:-2])
def shapes_that_change_in_place() -> Model:
    """Each op after a change of shape sees the new one, across cuts too."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        tall = torch.sigmoid(y)
        y.transpose_(0, 1)
        wide = torch.sigmoid(y)
        y.unsqueeze_(0)
        return tall, wide + y.squeeze(0), torch.sigmoid(y)

    return model


@special(rows)
def conditional() -> Model:
    """The data choose one of two graphs inside the graph; both read a size."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x)
        return torch.cond(y.sum() > 8, lambda a: a.cos() + a.shape[0], lambda a: a.sin(), (y,)) + 1

    return model


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.use_reentrant = use_reentrant

    def inner(self, h: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(h)) * h.shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(checkpoint(self.inner, x, use_reentrant=self.use_reentrant)) * 2


@special(trained_rows)
def checkpoint_with_hooks() -> Model:
    """The forward pass is run again for the backward pass."""
    return Checkpointed(use_reentrant=False)


@special(trained_rows)
def checkpoint_reentrant() -> Model:
    """The same as an autograd function of its own."""
    return Checkpointed(use_reentrant=True)


class TripleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * 3


@special(trained_rows)
def autograd_function() -> Model:
    """A gradient that is not the derivative shows whether the function's own one is used."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(TripleBackward.apply(torch.sigmoid(x)))

    return model


@special(rows, sizes=SIZES[:-1])  # torch 2.11 refuses to map over no rows in eager, and does it when compiled
def vmapped() -> Model:
    """A transform that must stay in one piece."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: torch.sigmoid(row).sum() * row)(torch.sigmoid(x))

    return model


@special(rows)
def functional_gradient() -> Model:
    """A gradient inside the graph."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda row: torch.sigmoid(row).sum())(torch.sigmoid(x)) + 1

    return model


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.linear(self.norm(x)))


@special(rows, sizes=SIZES[:-2])
def running_statistics() -> Model:
    """Buffers are written by the op itself, and one counts the calls."""
    return Normalised()


@special(lambda n: torch.zeros(16, 4), rows, torch.arange, sizes=SIZES[:-1], also=("positions.shape[0]",))
def key_value_cache() -> Model:
    """A cache that outlives the call is written by index and through a view."""

    def model(cache: torch.Tensor, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, positions, x)
        seen = torch.sigmoid(cache)
        cache.narrow(0, 0, 2).add_(1)
        return (seen @ x.t()).sum(0)

    return model


@special(lambda n: r(n, 2))
def complex_views() -> Model:
    """Complex values, one of them lazily conjugated, leave the graph."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.view_as_complex(x)
        return torch.view_as_real(z * z.conj()), torch.sigmoid(x), z.conj()

    return model


@special(rows, sizes=SIZES[:-2])
def lists_of_tensors() -> Model:
    """How many tensors an op gives depends on the size."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        parts = torch.split(x, 2)
        return torch.cat(parts[::-1]), [torch.sigmoid(x), *parts]

    return model


@special(rows)
def sizes_as_outputs() -> Model:
    """A ``torch.Size`` and ints are arguments of ops and outputs of the model."""

    def model(x: torch.Tensor) -> tuple[Any, ...]:
        size = x.size()
        y = torch.sigmoid(x)
        return y.new_zeros(size), y.view(size.numel()), y.expand(2, *size), {"size": size, "next": size[0] + 1}

    return model


@special(rows)
def seeded_inside() -> Model:
    """The model seeds and draws."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        return torch.rand(x.shape) + torch.sigmoid(x), torch.randn_like(x)

    return model


@special(rows)
def random_numbers() -> Model:
    """Draws on both sides of a cut come in eager's order from the caller's seed."""

    def model(x: torch.Tensor) -> torch.Tensor:
        first = torch.rand_like(x)
        return torch.nn.functional.dropout(torch.sigmoid(x + first), 0.5) + torch.randn(x.shape)

    return model


@special(rows, sizes=SIZES[:-1])
def assignment_by_index() -> Model:
    """Writes through slices, before and after a read in another piece."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        y[1:] = 0
        z = torch.sigmoid(y)
        y[:, 0] = z[:, 1]
        return y, z

    return model


@special(trained_rows, sizes=SIZES[:-1])
def writes_with_gradients() -> Model:
    """Gradients flow through values that are written to."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1
        y.mul_(2)
        z = torch.sigmoid(y)
        y = y + 0
        y[0].add_(z[0])
        return y, z

    return model


@special(trained_rows)
def region_without_gradients() -> Model:
    """A no_grad region goes over two cuts."""

    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.sigmoid(x) * 2
            z = torch.sigmoid(y)
        return y * x + z

    return model


@special(rows)
def outputs_that_share_memory() -> Model:
    """Views of the argument, the argument itself, and views of one value."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = x.view(-1)
        z = torch.sigmoid(x)
        return flat, z, z.t(), flat[1:], x

    return model


@special(lambda n: torch.ones(n, 4))
def write_through_an_output() -> Model:
    """A view of the argument is written to and returned; the caller sees it in the argument."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        column = x[:, 0]
        column.add_(2)
        return column, torch.sigmoid(x)

    return model


@special(rows)
def masks() -> Model:
    """Booleans leave one piece and enter another."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        positive = x > 0
        return torch.where(positive, x, torch.sigmoid(x)), positive.sum(), positive.any(), x.masked_fill(positive, 0)

    return model


@special(lambda n: r(n, 4) > 0)
def booleans() -> Model:
    """Arguments and outputs are bool."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x ^ x.flip(0), ~x, x.logical_and(torch.sigmoid(x.float()) > 0.6), x.all(0)

    return model


@special(rows)
def infinite_constants() -> Model:
    """A constant that has no literal."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.sigmoid(x) + float("inf"), x.clamp(min=float("-inf")), torch.full_like(x, float("nan"))

    return model


@special(rows, sizes=SIZES[:-1])
def floats_of_sizes() -> Model:
    """A size under a root and a quotient of sizes: floats of the program, not of the data."""

    def model(x: torch.Tensor) -> tuple[Any, ...]:
        n = x.shape[0]
        return torch.sigmoid(x) * n**-0.5, x / n, x.mean(), n / 2

    return model


@special(rows)
def claims_about_sizes() -> Model:
    """Outputs are bools of a size."""

    def model(x: torch.Tensor) -> tuple[Any, ...]:
        return torch.sigmoid(x), x.shape[0] > 5, x.shape[0] % 2 == 0

    return model


@special(lambda n: r(n, 4).to(torch.float8_e4m3fn))
def eight_bits() -> Model:
    """A dtype with hardly an op of its own crosses cuts as argument, value and output."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.sigmoid(x.float())
        small = y.to(torch.float8_e5m2)
        return small, x.view(torch.uint8) + small.view(torch.uint8)

    return model


@special(lambda n: r(1, 4).expand(n, 4))
def expanded() -> Model:
    """An argument whose rows are one row: its stride is 0 at every size."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.sigmoid(x), x.contiguous(), x + x.shape[0], x

    return model


@special(lambda n: r(n, 3, 4, 5).to(memory_format=torch.channels_last), sizes=SIZES[:-2], axis="input.shape[0]")
def pooled_images() -> Model:
    """channels_last goes through a convolution, a cut and a pooling."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2)).to(memory_format=torch.channels_last)


pooled_images = Case(**{**vars(pooled_images), "axis": "input.shape[0]"})


@special(rows, lambda n: nn.Parameter(torch.ones(4)))
def parameter_as_argument() -> Model:
    """A Parameter comes with the call and gets its gradient."""

    def model(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * scale) @ scale

    return model


@special(lambda n: r(n, 4).t(), axis="x.shape[1]")
def transposed() -> Model:
    """The axis is the one with stride 1."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sigmoid(x)
        return y, y.t().reshape(-1), x.flatten()

    return model


def _two_windows(n: int, step: int) -> list[torch.Tensor]:
    buffer = torch.arange(24.0)
    return [buffer[:n], buffer[step : step + n]]


@special(lambda n: _two_windows(n, 12), axis="pair[0].shape[0]", also=("pair[1].shape[0]",))
def windows_apart() -> Model:
    """Two windows of one buffer that do not meet; one is written to."""

    def model(pair: list[torch.Tensor]) -> torch.Tensor:
        pair[0].mul_(3)
        return torch.sigmoid(pair[0]) + pair[1]

    return model


@special(lambda n: _two_windows(n, 2), axis="pair[0].shape[0]", also=("pair[1].shape[0]",))
def windows_that_meet() -> Model:
    """Two windows that share elements, and nothing is written."""

    def model(pair: list[torch.Tensor]) -> torch.Tensor:
        return torch.sigmoid(pair[0]) + pair[1]

    return model


@special(
    lambda n: _two_windows(n, 2),
    axis="pair[0].shape[0]",
    also=("pair[1].shape[0]",),
    sizes=SIZES[:-2],
    warns="an argument that it writes to shares memory",
)
def windows_that_meet_and_a_write() -> Model:
    """The first call already overlaps and writes: such a graph runs as it was captured."""

    def model(pair: list[torch.Tensor]) -> torch.Tensor:
        pair[0].mul_(3)
        return torch.sigmoid(pair[0]) + pair[1]

    return model
