"""The one place for Inductor's private names: one graph → an artifact, and an artifact to and from a file.

Checked with torch 2.11.0, 2.13.0 and 2.14.1. Each function says which private name it stands for and why no public one
would do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx

from fxbucket.inductor_passes import results_with_memory_of_their_own
from fxbucket.process_folder import process_folder


def inductor_compile(module: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Compile one graph with Inductor into an artifact that can be saved.

    To be called under :func:`fxbucket.torch_compat.compiling_under`. The backward is compiled too, at once and not at the
    first backward, so that it is part of what is saved.

    Stands for ``torch._inductor.standalone_compile``, which has no name in ``torch.compiler`` yet.
    """
    import torch._functorch.config
    import torch._inductor

    settings = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
    with settings, _idle_wrappers_noted(), results_with_memory_of_their_own():
        return torch._inductor.standalone_compile(
            module, list(example_inputs), dynamic_shapes="from_tracing_context", options={"config_patches": options}
        )


def inductor_option_names() -> list[str]:
    """Return the names of Inductor's options; stands for ``torch._inductor.list_options``."""
    import torch._inductor

    return list(torch._inductor.list_options())


def inductor_settings() -> dict[str, Any]:
    """Return every setting that decides what Inductor and AOTAutograd generate, by name.

    Stands for ``save_config_portable`` of ``torch._inductor.config`` and ``torch._functorch.config``, which torch's own
    caches use for their keys.
    """
    import torch._functorch.config
    import torch._inductor.config

    inductor = torch._inductor.config.save_config_portable()
    functorch = torch._functorch.config.save_config_portable()
    return {**{f"inductor.{key}": value for key, value in inductor.items()}, **{f"aot.{k}": v for k, v in functorch.items()}}


@contextlib.contextmanager
def with_inductor_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """While the context is open, every setting is what :func:`inductor_settings` gave in another process."""
    import torch._functorch.config
    import torch._inductor.config

    now = inductor_settings()
    changed = {name: value for name, value in settings.items() if name in now and now[name] != value}
    split = {"inductor.": torch._inductor.config, "aot.": torch._functorch.config}
    with contextlib.ExitStack() as stack:
        for prefix, config in split.items():
            of_this = {name.removeprefix(prefix): value for name, value in changed.items() if name.startswith(prefix)}
            stack.enter_context(config.patch(of_this))
        yield


@contextlib.contextmanager
def inductor_folder(folder: Path) -> Iterator[None]:
    """While the context is open, Inductor writes the files of a compilation under ``folder``, and none elsewhere.

    Libraries that this process has built before are there already: pieces of one model share many of their kernels.

    Stands for ``torch._inductor.runtime.cache_dir_utils.temporary_cache_dir``: what an artifact needs can only be told from
    what other compilations left where torch's caches begin empty.
    """
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

    if not torch.cuda.is_available():
        # Compiles a test program, whose place is where other processes find it.
        pick_vec_isa()
    _link(process_folder("libraries"), folder)
    before = os.environ.pop("TRITON_CACHE_DIR", None)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    try:
        with temporary_cache_dir(str(folder)):
            yield
            _link(folder, process_folder("libraries"))
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before


def _link(source: Path, target: Path) -> None:
    """Make every library under one folder known under another."""
    for path in source.glob("??/*.so"):
        place = target / path.relative_to(source)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, place)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, place)


def inductor_save(artifact: Any, path: Path) -> None:
    """Write what :func:`inductor_compile` returned to a file; stands for ``CompiledArtifact.save``.

    Raises:
        Exception: the artifact holds something that cannot be written; torch raises several kinds.
    """
    artifact.save(path=str(path), format="binary")


def inductor_load(path: Path, folder: Path) -> Callable[..., Any]:
    """Return the artifact in a file, with the libraries that lie under ``folder`` and without asking a compiler.

    Stands for ``CompiledArtifact.load``, and for two shortcuts: the libraries are there, so no header needs to be
    precompiled for them; and they were built on a CPU of the same kind, so which vector instructions it has is known.
    """
    import torch._inductor.config
    from torch._inductor import CompiledArtifact, codecache

    with (
        torch._inductor.config.patch({"cpp.vec_isa_ok": True}),
        inductor_folder(folder),
        _idle_wrappers_noted(),
        # Not by its setting, which is part of the name under which a library is looked for.
        mock.patch.object(codecache, "_precompile_header", return_value=None),
    ):
        loaded: Callable[..., Any] = CompiledArtifact.load(path=str(path), format="binary")
    return loaded


def libraries_in(folder: Path) -> Mapping[str, bytes]:
    """Return the shared libraries that a compilation under this folder uses, by their path in it.

    To be called while :func:`inductor_folder` is open. Stands for the ``cache`` of ``torch._inductor.codecache``'s classes
    for C++: they were empty when the compilation began, and name what it uses.
    """
    from torch._inductor import codecache

    kinds = (codecache.CppCodeCache, codecache.CppPythonBindingsCodeCache, codecache.CppWrapperCodeCache)
    used = {name for kind in kinds for name in kind.cache}
    paths = [path for path in sorted(folder.glob("??/*.so")) if path.name.split(".")[0] in used]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def is_op_rewritten(op: Any) -> bool:
    """Whether Inductor was told to replace an op overload by others, or how to generate code for it.

    Stands for ``torch._inductor.decomposition.decompositions``, ``lowering.lowerings`` and ``fallbacks``. Where a module is
    not loaded, nobody registered anything with it.
    """
    decomposition = sys.modules.get("torch._inductor.decomposition")
    if op in torch._decomp.decomposition_table or (decomposition is not None and op in decomposition.decompositions):
        return True
    lowering = sys.modules.get("torch._inductor.lowering")
    # Inductor itself adds what it only calls.
    return lowering is not None and op in lowering.lowerings and op not in lowering.fallbacks


_idle: MutableMapping[Callable[..., Any], Any] = weakref.WeakKeyDictionary()
"""AOTAutograd's wrappers that do nothing at a call but hand it on, and what each hands it on to."""


@contextlib.contextmanager
def _idle_wrappers_noted() -> Iterator[None]:
    """While the context is open, each wrapper that AOTAutograd makes and that has nothing to do is noted.

    Stands for ``_create_runtime_wrapper`` of ``torch._functorch._aot_autograd.runtime_wrappers``: all that decides what a
    wrapper does passes through it and is nowhere to be read afterwards. Without that name nothing is noted.
    """
    from torch._functorch._aot_autograd import runtime_wrappers

    make = getattr(runtime_wrappers, "_create_runtime_wrapper", None)
    if make is None:
        yield
        return

    def noting(compiled_fn: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = make(compiled_fn, **settings)
        if _is_idle(**settings):
            _idle[made] = compiled_fn
        return made

    with mock.patch.object(runtime_wrappers, "_create_runtime_wrapper", noting):
        yield


def _is_idle(runtime_metadata: Any = None, trace_joint: bool = True, disable_amp: bool = True, **_: Any) -> bool:
    """Whether a wrapper with these settings leaves arguments, results and global state alone; not where one is unknown."""
    if trace_joint or disable_amp or runtime_metadata is None:
        return False
    unknown = object()
    quiet = {
        "mutated_inp_runtime_indices": (),  # nothing is written back to arguments
        "mutated_graph_handled_indices_seen_by_autograd": (),  # no version counter is moved on
        "num_outputs_aliased": 0,  # no result is a view of an argument or of another result
        "num_intermediate_bases": 0,
        "dynamic_outputs": False,  # no result is marked for a later capture
        "grad_enabled_mutation": None,  # the grad mode stays
        "is_rng_op_functionalized": False,
        "tokens": (),  # no effect is put in order
    }
    found = {name: getattr(runtime_metadata, name, unknown) for name in quiet}
    return all(
        found[name] == wanted if not isinstance(wanted, tuple) else found[name] is not unknown and not found[name]
        for name, wanted in quiet.items()
    )


def innermost_call(artifact: Any) -> Callable[[list[Any]], Any] | None:
    """Return what runs an artifact below its wrappers, where each of them does nothing but hand the call on.

    It takes a list of the inputs, which it may empty, and returns the outputs. It does nothing about the grad mode, which a
    wrapper switches off: it must not be called where gradients are recorded of any input. The first call of each artifact
    must be one of the artifact itself: wrappers also end what began with the compilation, and watch what custom ops do with
    their arguments.

    Stands for the chain from ``CompiledArtifact`` to ``CompiledFxGraph.current_callable``. A link that is not known, such as
    one that takes duplicate inputs out, means ``None``, and so does a piece with a custom op, which a wrapper watches.
    """
    from torch._functorch._aot_autograd import runtime_wrappers
    from torch._inductor.output_code import CompiledFxGraph

    call = getattr(artifact, "_compiled_fn", None)
    for _ in range(_MOST_WRAPPERS):
        if not isinstance(call, types.FunctionType) or call in _idle:
            break
        call = _handed_on(call)
    graph = _idle.get(call) if isinstance(call, types.FunctionType) else None
    if graph is not None and type(graph) is getattr(runtime_wrappers, "SerializableCompiledFunction", None):
        graph = graph.compiled_fn
    while isinstance(graph, types.FunctionType) and graph.__code__.co_qualname in _ALWAYS_THERE:
        graph = _closed_over(graph).get("compiled_fn")
    if type(graph) is not CompiledFxGraph or not callable(graph.current_callable):
        return None
    found: Callable[[list[Any]], Any] = graph.current_callable
    return found


_ALWAYS_THERE = {
    "EffectTokensWrapper.post_compile.<locals>.inner_fn",
    "FunctionalizedRngRuntimeWrapper.post_compile.<locals>.wrapper",
}
"""Wrappers that torch before 2.13 makes where there is no effect to put in order and no seed to hand on, too."""


def _handed_on(wrapper: types.FunctionType) -> Any:
    """Return what a function outside of AOTAutograd's wrappers hands its arguments on to; ``None`` where it is not known."""
    inside = getattr(wrapper, "_torchdynamo_orig_callable", None)
    if inside is not None:  # torch._dynamo.disable, which holds for a whole call of a captured graph
        return inside
    if wrapper.__module__ not in ("torch._functorch.aot_autograd", "torch._inductor.standalone_compile"):
        return None
    held = _closed_over(wrapper)
    # Parameters that are no arguments come first, where there are any.
    is_known = held.keys() <= {"compiled_fn", "params_buffers_flat"} and not held.get("params_buffers_flat")
    return held.get("compiled_fn") if is_known else None


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function closes over, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


def generated_code(call: Callable[..., Any]) -> str:
    """Return the code that Inductor generated for an artifact, forward before backward; empty where it is not found.

    Stands for ``source_code`` of what Inductor returns, which lies at the end of a chain of wrappers.
    """
    found: dict[str, None] = {}
    seen: set[int] = set()
    waiting: list[Any] = [call]
    while waiting and len(seen) < _MOST_WRAPPERS:
        item = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        code = getattr(item, "source_code", None)
        if isinstance(code, str):
            found[code] = None
        else:
            waiting += [inner for inner in _wrapped_by(item) if inner is not None]
    return "\n".join(found)


_MOST_WRAPPERS = 200


def _wrapped_by(item: Any) -> list[Any]:
    if isinstance(item, types.FunctionType):
        cells = [cell.cell_contents for cell in item.__closure__ or () if cell != types.CellType()]
        return [*cells, getattr(item, "__wrapped__", None)]
    if isinstance(item, (types.MethodType, types.BuiltinMethodType)):
        return [item.__self__, getattr(item, "__func__", None)]
    if isinstance(item, (torch.Tensor, torch.nn.Module, types.ModuleType)):
        return []
    home = getattr(item, "__module__", None) or ""
    if home.startswith(("torch._inductor", "torch._functorch")):
        return [value for value in getattr(item, "__dict__", {}).values() if callable(value) or hasattr(value, "__dict__")]
    return []
