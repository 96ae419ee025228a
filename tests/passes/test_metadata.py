"""A mapped tensor is what the captured one would have been at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import sympy
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fxbucket.passes.buckets import Range
from fxbucket.passes.conditions import holds
from fxbucket.passes.errors import CaptureError, SizeError
from fxbucket.passes.metadata import MetadataMapper
from fxbucket.passes.symbolic import adopt_symbol, expression_of, fresh_environment, is_fake, recorded_guards, symbols_in

S0, S1 = (sympy.Symbol(name, positive=True, integer=True) for name in ("s0", "s1"))
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool, torch.complex64]

View = Callable[[torch.Tensor], torch.Tensor]


def permuted(order: list[int]) -> tuple[View, str]:
    return (lambda x: x.permute(order)), f"permute {order}"


def sliced(dim: int, start: int, step: int) -> tuple[View, str]:
    return (lambda x: x[(slice(None),) * dim + (slice(start, None, step),)]), f"slice {dim} from {start} by {step}"


VIEWS = st.one_of(
    st.permutations(range(3)).map(permuted),
    st.builds(sliced, st.integers(0, 2), st.integers(0, 2), st.integers(1, 2)),
    st.sampled_from(
        [
            ((lambda x: x[0].expand(5, -1, -1)), "expand"),
            ((lambda x: x.unsqueeze(0)[0]), "unsqueeze and take"),
            ((lambda x: x[:, 1:2]), "one column"),
            ((lambda x: x.flatten().as_strided((x.shape[0], 2, 2), (1, 2, 0))), "overlapping windows"),
        ]
    ),
)


def sources() -> tuple[dict[str, Any], Any]:
    """Return symbolic sizes for ``s0`` and ``s1``, and the mode in which they may be used."""
    env, mode = fresh_environment()
    return {"s0": adopt_symbol(env, S0, 6, Range(4)), "s1": adopt_symbol(env, S1, 7, Range(4))}, mode


def mapper_for(**sizes: int) -> MetadataMapper:
    env, mode = fresh_environment()
    return MetadataMapper({sympy.Symbol(k, positive=True, integer=True): v for k, v in sizes.items()}, mode, env)


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.requires_grad, tensor.untyped_storage().nbytes(), type(tensor) is torch.nn.Parameter,
    )  # fmt: skip


def shared_storages(tensors: list[torch.Tensor]) -> list[int]:
    """Return for each tensor the position of the first one that lies in the same storage."""
    return [
        next(i for i, other in enumerate(tensors) if other.untyped_storage() == one.untyped_storage()) for one in tensors
    ]


def made(views: list[tuple[View, str]], rows: Any, columns: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return a base and one view of a view after another."""
    found = [torch.empty(rows, columns + 1, 2 * rows, dtype=dtype)]
    for view, _ in views:
        found.append(view(found[-1]))
    return found


@given(st.lists(VIEWS, max_size=4), st.integers(6, 12), st.integers(6, 12), st.sampled_from(DTYPES))
def test_every_number_of_a_view_is_what_torch_itself_gives_at_that_size(
    views: list[tuple[View, str]], rows: int, columns: int, dtype: torch.dtype
):
    symbols, mode = sources()
    with mode:
        symbolic = made(views, symbols["s0"], symbols["s1"], dtype)
    binding = {S0: rows, S1: columns}
    assume(all(holds(condition, binding) for condition, _ in recorded_guards(mode.shape_env)))
    mapper = mapper_for(s0=rows, s1=columns)
    mapped = [mapper.map(tensor) for tensor in symbolic]
    expected = made(views, rows, columns, dtype)
    assert [layout(tensor) for tensor in mapped] == [layout(tensor) for tensor in expected]
    assert all(is_fake(tensor) and not symbols_in(tensor) for tensor in mapped)
    assert shared_storages(mapped) == shared_storages(expected)


@given(st.lists(st.booleans(), min_size=2, max_size=5), st.integers(4, 9))
def test_tensors_share_a_storage_exactly_where_the_captured_ones_do(fresh: list[bool], rows: int):
    symbols, mode = sources()
    with mode:
        base = torch.empty(symbols["s0"], 3)
        tensors = [torch.empty(symbols["s0"], 3) if new else base[1:] for new in fresh]
    mapper = mapper_for(s0=rows)
    mapped = [mapper.map(tensor) for tensor in (base, *tensors)]
    shared = [other.untyped_storage() == mapped[0].untyped_storage() for other in mapped[1:]]
    assert shared == [not new for new in fresh]


def test_a_tensor_that_is_met_twice_is_one_tensor():
    symbols, mode = sources()
    with mode:
        tensor = torch.empty(symbols["s0"])
    mapper = mapper_for(s0=5)
    first, (second, third) = mapper.map(tensor), mapper.map((tensor, [tensor]))
    assert first is second
    assert first is third[0]


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("parameter", [True, False])
def test_requires_grad_and_being_a_parameter_are_kept(requires_grad: bool, parameter: bool):
    symbols, mode = sources()
    with mode:
        tensor = torch.empty(symbols["s0"], 2)
        tensor = (
            torch.nn.Parameter(tensor, requires_grad=requires_grad) if parameter else tensor.requires_grad_(requires_grad)
        )
    mapped = mapper_for(s0=5).map(tensor)
    assert isinstance(mapped, torch.nn.Parameter) is parameter
    assert mapped.requires_grad is requires_grad
    assert mapped.is_leaf


def test_mapping_works_and_builds_ordinary_leaves_whatever_mode_the_caller_is_in():
    symbols, mode = sources()
    with mode:
        tensor = torch.empty(symbols["s0"], requires_grad=True)
    with torch.inference_mode():
        mapped = mapper_for(s0=5).map(tensor)
    assert mapped.requires_grad
    assert not mapped.is_inference()
    assert torch.is_grad_enabled()


def test_conjugate_and_negative_views_stay_such():
    symbols, mode = sources()
    with mode:
        z = torch.empty(symbols["s0"], dtype=torch.complex64)
        conjugate, negative = z.conj(), z.conj().imag
    mapper = mapper_for(s0=5)
    assert mapper.map(conjugate).is_conj()
    assert mapper.map(negative).is_neg() == negative.is_neg()
    assert mapper.map(conjugate).untyped_storage() == mapper.map(z).untyped_storage()


class Pair(NamedTuple):
    left: Any
    right: Any


def test_containers_keep_their_types_and_what_holds_no_symbol_stays():
    symbols, _ = sources()
    s0 = symbols["s0"]
    mapped = mapper_for(s0=5).map(
        {"pair": Pair(s0, "text"), "list": [s0 * 2, (s0 + 1,)], "slice": slice(None, s0, 2), "size": torch.Size([s0, 3])}
    )
    assert mapped == {"pair": Pair(5, "text"), "list": [10, (6,)], "slice": slice(None, 5, 2), "size": torch.Size([5, 3])}
    assert type(mapped["pair"]) is Pair
    assert type(mapped["size"]) is torch.Size
    assert type(mapped["list"][0]) is int


def test_real_tensors_stay_themselves():
    tensor = torch.randn(3)
    assert mapper_for().map(tensor) is tensor


def test_a_symbol_may_be_mapped_to_a_symbol_of_another_environment():
    symbols, mode = sources()
    with mode:
        tensor = torch.empty(symbols["s0"], symbols["s1"])
    env, other = fresh_environment()
    kept = adopt_symbol(env, S1, 7, Range(4))
    mapped = MetadataMapper({S0: 5, S1: kept}, other, env).map(tensor)
    assert [expression_of(size) for size in mapped.shape] == [5, S1]
    assert [expression_of(stride) for stride in mapped.stride()] == [S1, 1]
    assert recorded_guards(env) == ()


def test_a_mapper_without_numbers_copies_metadata_as_it_is():
    env, mode = fresh_environment()
    rows = adopt_symbol(env, S0, 6, Range(4))
    with mode:
        tensor = torch.empty(rows, 3).t()
    copied = MetadataMapper(None, mode, env).map(tensor)
    assert copied is not tensor
    assert [expression_of(size) for size in copied.shape] == [3, S0]
    assert [expression_of(stride) for stride in copied.stride()] == [1, 3]


def test_a_symbol_without_a_number_is_an_error_that_names_it():
    symbols, mode = sources()
    with mode:
        tensor = torch.empty(symbols["s0"], symbols["s1"])
    with pytest.raises(SizeError, match=r"s1.*has no value in this bucket; name its axis too"):
        mapper_for(s0=5).map(tensor)
    with pytest.raises(SizeError, match="s1"):
        mapper_for(s0=5).number(symbols["s1"] + 1)


def test_tensors_that_cannot_be_rebuilt_are_refused_by_kind():
    _, mode = fresh_environment()
    with mode:
        sparse = torch.empty(3, 3).to_sparse()
    with pytest.raises(CaptureError, match=r"torch\.sparse_coo"):
        mapper_for().map(sparse)


def test_metadata_of_a_node_is_mapped_key_by_key():
    symbols, mode = sources()
    with mode:
        tensor = torch.empty(symbols["s0"])
    mapped = mapper_for(s0=5).meta({"example_value": tensor, "stack_trace": "line 3", "grapharg": object()})
    assert tuple(mapped["example_value"].shape) == (5,)
    assert mapped["stack_trace"] == "line 3"
    assert "grapharg" not in mapped
