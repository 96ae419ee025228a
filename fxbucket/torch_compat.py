"""The one place for torch's private names outside symbolic shapes and Inductor.

Checked with torch 2.11.0, 2.13.0 and 2.14.1. Each function says which private name it stands for and why no public one
would do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import fx

from fxbucket.passes.captured import value_of
from fxbucket.passes.kernel_calls import is_kernel_call
from fxbucket.passes.symbolic import FakeTensorMode, ShapeEnv, source_name


def tracing_shape_env() -> ShapeEnv | None:
    """Return the shape environment of the capture that is calling the backend.

    Stands for ``torch._guards.TracingContext``: a backend is given the graph but not the environment of its symbols.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    return mode.shape_env if mode is not None else None


def current_frame() -> int | None:
    """Return a number for the function that is being captured; stands for ``torch._guards.CompileContext``."""
    from torch._guards import CompileContext

    identity = CompileContext.current_compile_id()
    return identity.frame_id if identity is not None else None


@contextlib.contextmanager
def compiling_under(mode: FakeTensorMode) -> Iterator[None]:
    """Let a compiler see ``mode`` as the capture that it compiles for, apart from any capture in progress.

    Stands for ``torch._guards.tracing``: AOTAutograd takes its fake-tensor mode from the ambient context.
    """
    from torch._guards import TracingContext, tracing

    with tracing(TracingContext(mode)):
        yield


def repeatable_backward() -> AbstractContextManager[Any]:
    """Return what makes compilers generate backward passes that leave saved values as they are.

    By default a compiled backward may write to the memory of what the forward saved for it, and then refuses
    ``retain_graph=True`` and ``create_graph=True``. Stands for ``torch._functorch.config.donated_buffer``: the backward
    reads that setting when it runs, and takes what was compiled with it off for something that must not run twice. So what
    is replaced is the search for such memory, ``collect_bw_donated_buffer_idxs``: it finds none.
    """
    from torch._functorch._aot_autograd import graph_compile

    found: AbstractContextManager[Any] = mock.patch.object(graph_compile, "collect_bw_donated_buffer_idxs", return_value=[])
    return found


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Do work in the middle of a call without the caller's hooks on what autograd saves, such as a checkpoint's.

    Hooks of the innermost context alone are called, so one whose hooks do nothing hides the others. Stands for
    ``torch._C._autograd._top_saved_tensors_default_hooks``, which tells whether there are any: compilers look at hooks too.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


@contextlib.contextmanager
def without_tracing() -> Iterator[None]:
    """Run real work in the middle of a capture: no ambient tracing context, no fake-tensor mode, no dispatch mode."""
    from torch._guards import tracing
    from torch.utils._python_dispatch import _disable_current_modes

    with tracing(None), _disable_current_modes():
        yield


def no_other_compilation() -> threading.RLock:
    """Return a lock that every capture of this process holds; a thread that holds it may hold it again.

    Stands for ``torch._dynamo.convert_frame.compile_lock``: settings of torch's compilers belong to the process, so that
    two threads that compile at once would see, and could leave behind, each other's.
    """
    from torch._dynamo.convert_frame import compile_lock

    lock: threading.RLock = compile_lock
    return lock


_behind: set[int] = set()
"""Threads of fxbucket's own that compile while other threads call models."""


def tell_tracing_threads_apart() -> None:
    """Keep a trace in one thread from being taken for one in another; to be called before ``torch.compile`` gets the model.

    Before torch 2.14 a trace by FX is a fact of the process, not of its thread, and Dynamo refuses every call of a compiled
    model that any thread makes meanwhile. Stands for ``torch.fx._symbolic_trace.is_fx_symbolic_tracing``, which each
    compiled function looks up when it is made.
    """
    from torch.fx import _symbolic_trace

    tracing = _symbolic_trace.is_fx_symbolic_tracing
    if getattr(tracing, "knows_threads", False):
        return

    def tracing_here() -> bool:
        if not tracing() or (_behind and threading.get_ident() not in _behind):
            return False
        # Compilers trace while their thread holds the lock; where another one does, the trace is that one's.
        compilation = no_other_compilation()
        is_own = compilation.acquire(blocking=False)
        if is_own:
            compilation.release()
        return is_own

    tracing_here.knows_threads = True  # type: ignore[attr-defined]
    _symbolic_trace.is_fx_symbolic_tracing = tracing_here


@contextlib.contextmanager
def compiling_behind() -> Iterator[None]:
    """Compile in this thread without other threads' calls of compiled models being taken for part of it."""
    _behind.add(threading.get_ident())
    try:
        yield
    finally:
        _behind.discard(threading.get_ident())


def registered_backend(name: str) -> Callable[..., Any]:
    """Return a ``torch.compile`` backend by name; raises ``torch._dynamo.exc.InvalidBackend`` for an unknown one."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def backend_names() -> list[str]:
    """Return the names of all registered backends of ``torch.compile``."""
    from torch._dynamo import list_backends

    return list(list_backends(exclude_tags=()))


def kernels_read_by_tracing(op: Any, differentiates: bool) -> list[str]:
    """Return the kinds of definitions of an op overload that a compiler reads instead of calling the op.

    Stands for ``torch._C.DispatchKey``, an overload's ``py_kernels`` and ``python_key_table``, and the rules that
    ``torch.library`` keeps in ``torch._library.simple_registry``: torch.library registers, and nothing public tells what.

    Args:
        op: an ``OpOverload``.
        differentiates: whether the op may be traced for a backward.
    """
    from torch._library.simple_registry import singleton

    keys = ("CompositeImplicitAutograd", "Functionalize", "FuncTorchBatched", "AutocastCPU", "AutocastCUDA")
    of_backward = ("Autograd", "AutogradCPU", "AutogradCUDA") if differentiates else ()
    found = [name for name in (*keys, *of_backward) if op.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, name))]
    entry = singleton.find(op.name())
    rules = {
        "rules of torch.library": entry.torch_dispatch_rules._data,
        "kernels": op.py_kernels,
        "modes": op.python_key_table,
    }
    return [*found, *(name for name, held in rules.items() if held)]


def lacks_backward(op: Any) -> bool:
    """Whether an op overload was made by ``torch.library.custom_op`` or ``triton_op`` and given no formula for its backward.

    Stands for ``torch._library.custom_ops.OPDEFS``: such an op raises its error in the backward, and nothing public tells
    before. Any other op without a formula of its own either is made of ops that have one, or torch warns of it.
    """
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(f"{op.namespace}::{op._opname}")
    return definition is not None and definition._backward_fn is None


def count_kernel_writes(module: fx.GraphModule) -> None:
    """Raise the version of each fake tensor of a captured graph that a Triton kernel writes to, as every other write does.

    Stands for ``get_mutated_tensors`` of ``torch._higher_order_ops.triton_kernel_wrap``, which reads a kernel's code; where
    it cannot, it names every tensor that the kernel is given.
    """
    nodes = [node for inner in module.modules() if isinstance(inner, fx.GraphModule) for node in inner.graph.nodes]
    for node in filter(is_kernel_call, nodes):
        from torch._higher_order_ops.triton_kernel_wrap import get_mutated_tensors

        held = dict(node.kwargs)
        given = fx.node.map_arg(held["kwargs"], value_of)
        written = get_mutated_tensors(held["kernel_idx"], held["constant_args_idx"], given, held["tma_descriptor_metadata"])
        for name in written:
            if isinstance(given.get(name), torch.Tensor) and not given[name].is_inference():
                torch.autograd.graph.increment_version(given[name])


def mark_dim_dynamic(tensor: torch.Tensor, dim: int) -> Callable[[], None]:
    """Make a dim dynamic for the capture that begins; returns what takes the mark away again.

    Stands for the attributes that ``torch._dynamo.maybe_mark_dynamic`` sets, which it never takes away. Left on the tensor,
    they would make any other torch.compile that is given it fail: its guards find marks that its capture did not see.
    """
    before = {name: set(value) if isinstance(value, set) else value for name, value in _marks_on(tensor)}
    torch._dynamo.maybe_mark_dynamic(tensor, dim)

    def undo() -> None:
        for name, _ in _marks_on(tensor):
            if name in before:
                setattr(tensor, name, before[name])
            else:
                delattr(tensor, name)

    return undo


_MARKS = ("_dynamo_weak_dynamic_indices", "_has_dynamo_dim_marking")
"""What a mark on a tensor consists of; not every torch sets both."""


def _marks_on(tensor: torch.Tensor) -> list[tuple[str, Any]]:
    return [(name, getattr(tensor, name)) for name in _MARKS if hasattr(tensor, name)]


_WEAK_MARK = "_dynamo_weak_dynamic_indices"
PROPAGATED_MARK = (
    "_dynamo_propagated_dynamic_indices" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13) else _WEAK_MARK
)
"""The attribute by which AOTAutograd tells a later capture which dims of a tensor vary; the weak mark before 2.13."""


def hooks_are_guarded() -> AbstractContextManager[Any]:
    """Return a context in which a capture guards on modules' hooks; stands for a setting of ``torch._dynamo.config``."""
    setting: AbstractContextManager[Any] = torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)
    return setting


def original_error(error: BaseException) -> BaseException:
    """Return the error that a backend raised, where torch wrapped it in ``BackendCompilerFailed``."""
    from torch._dynamo.exc import BackendCompilerFailed

    return error.inner_exception if isinstance(error, BackendCompilerFailed) else error


def captured_argument(node: fx.Node) -> tuple[str, Any]:
    """Return torch's text for where a placeholder's value came from, and the real value of the call being captured.

    Stands for ``node.meta["grapharg"]``, which Dynamo clears when the capture ends.
    """
    argument = node.meta.get("grapharg")
    if argument is None:
        return node.name, None
    held = argument._example
    real = held() if callable(held) and not isinstance(held, torch.Tensor) else held
    return source_name(argument.source), real


def is_graph_fragment(module: fx.GraphModule) -> bool:
    """Whether the model's Python goes on after this graph; stands for ``compile_subgraph_reason`` on Dynamo's modules."""
    reason = getattr(module, "compile_subgraph_reason", None)
    return bool(reason is not None and reason.graph_break)


class CaptureWatch:
    """Calls ``start`` when Dynamo begins a capture, in the thread that calls the model, and ``end`` when it ends.

    Stands for ``torch._dynamo.callback.callback_handler``: marks on tensors are needed during a capture only, and a call
    that captures nothing should not pay for them.
    """

    def __init__(self, start: Callable[[], None], end: Callable[[], None]) -> None:
        from torch._dynamo.callback import callback_handler

        self._handler = callback_handler
        self._start = lambda _: start()
        self._end = lambda _: end()

    def ensure(self) -> None:
        """Be registered; ``torch.compiler.reset()`` forgets all who were."""
        if self._start not in self._handler.start_callbacks:
            self._handler.register_start_callback(self._start)
            self._handler.register_end_callback(self._end)


def capture_id() -> Any:
    """Return torch's own number of the capture in progress, ``None`` outside of one; for :func:`trace_artifact`.

    Stands for ``torch._guards.CompileContext``, as :func:`current_frame` does.
    """
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


def trace_artifact(name: str, encoding: str, text: Callable[[], str], capture: Any) -> None:
    """Add a text to torch's structured trace (``TORCH_TRACE``), where ``tlparse`` shows it beside Dynamo's of that capture.

    Stands for ``torch._logging.trace_structured``: nothing public writes to the trace. Without one, ``text`` is not called.

    Args:
        name: what it is listed as.
        encoding: ``"json"`` or ``"string"``.
        text: gives the text.
        capture: what :func:`capture_id` gave; a bucket may be compiled long after its capture.
    """
    from torch._logging import trace_structured

    trace_structured(
        "artifact", lambda: {"name": name, "encoding": encoding}, payload_fn=text, compile_id=capture, expect_trace_id=False
    )


def guards_tensors_of_modules() -> bool:
    """Whether a capture's guards see that a parameter or buffer got other sizes, strides or another dtype in place.

    Before torch 2.13 they look at such a tensor again only when its module's dict changed.
    """
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
