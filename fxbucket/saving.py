"""A compiled model → a file, and a file → a compiled model that captures and compiles nothing.

A file holds each captured graph as plain data, Dynamo's guards and bytecode for it, its buckets, and their artifacts. The
model's parameters are not in it: they are those of the model that it is loaded for.
"""

from __future__ import annotations

import builtins
import importlib
import io
import marshal
import os
import pickle
import re
import types
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from fxbucket.build import Builder
from fxbucket.compiled import CompiledFunction, CompiledModule, compile
from fxbucket.dispatch import Dispatcher
from fxbucket.entry import SavedEntry
from fxbucket.environment import Environment, environment
from fxbucket.frame import CallFrame
from fxbucket.hooks import is_of_no_hooks
from fxbucket.inlined import Inlined, missing_here
from fxbucket.model_file import ModelFile, read_model, write_model
from fxbucket.options import Options
from fxbucket.passes.errors import OptionError, StoreError, nearest
from fxbucket.passes.program import Program
from fxbucket.portable import PortableCapture, capture_from, cut_text, portable
from fxbucket.recording import Record
from fxbucket.serialization_compat import (
    GuardText,
    backend_function,
    compiled_entries,
    guard_texts,
    guards_from_bytes,
    install_entry,
    reserve_names,
    without_capture,
)
from fxbucket.store import Stored
from fxbucket.stored import compile_to_store
from fxbucket.torch_compat import no_other_compilation

Scope = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class SavedCapture:
    """One captured graph of a saved model.

    Attributes:
        capture: the graph and what is known of its arguments.
        cut: how it is cut; see :func:`fxbucket.portable.cut_text`.
        entries: its buckets.
        guards: what must hold of a call.
        checks: the same as texts, without what differs between processes.
        inlined: the functions that the capture ran through.
        bytecode: what Dynamo made of the captured function, as ``marshal`` writes it.
        scope: the names that guards and bytecode look up: each with what it is, and the name by which that is found.
    """

    capture: PortableCapture
    cut: str
    entries: tuple[SavedEntry, ...]
    guards: bytes
    checks: Counter[GuardText]
    inlined: tuple[Inlined, ...]
    bytecode: bytes
    scope: Scope


def save(path: str | os.PathLike[str], compiled: CompiledModule | CompiledFunction) -> None:
    """Write a compiled model to a file; see :meth:`fxbucket.compiled.CompiledModule.save`."""
    engine = compiled._engine
    options, backend = engine.options, engine.backend
    if engine.is_sharded:
        raise StoreError("a model sharded by fully_shard cannot be saved; its artifacts are in the store (cache=).")
    if options.compiler not in ("inductor", "eager"):
        raise StoreError(
            f"compiler={options.compiler!r}: what it makes cannot be saved; compile with compiler='inductor' or 'eager'."
        )
    backend.wait()
    if not backend.dispatchers:
        raise StoreError("nothing was captured yet, so there is nothing to save; call the model or its warmup() first.")
    model = engine.frame.model
    captures: list[SavedCapture] = []
    for number, (dispatcher, record) in enumerate(zip(backend.dispatchers, backend.records, strict=True)):
        program = dispatcher.program
        if program.capture.is_fragment or program.capture.is_continuation:
            raise StoreError("the model breaks into several graphs a call, which cannot be saved; see docs/saving.md.")
        if record.reason:
            raise StoreError(f"captured graph {number} cannot be saved: {record.reason}.")
        found = _in_use(engine.frame, dispatcher, record)
        if found is None:
            continue  # torch dropped this capture, so no call reaches it any more
        guards, bytecode, scope = found
        assert record.guards is not None  # a record without a reason is complete
        made = [entry for entry in (*dispatcher.entries, *dispatcher.dynamic) if entry.program is not None]
        entries = tuple(SavedEntry(e.bucket, e.binding, e.hints, e in dispatcher.dynamic) for e in made)
        carried = portable(program.capture)
        is_first = number == 0
        cut = cut_text(program)
        if cut_text(backend.prepared(Program(capture_from(carried)), is_first)) != cut:
            raise StoreError(f"captured graph {number} cannot be saved: made again from plain data, it is cut otherwise.")
        captures.append(
            SavedCapture(
                carried, cut, entries, record.guards, _checks(guards), record.inlined, marshal.dumps(bytecode), scope
            )
        )
    artifacts = _artifacts(backend.builder, options)
    if not captures:
        raise StoreError("torch holds no capture of the model any more; call the model again before it is saved.")
    kept = {item.name: getattr(options, item.name) for item in fields(Options) if item.init and item.name not in _OF_PROCESS}
    about = {
        "compiler": options.compiler,
        "environment": dict(_environment(options.compiler).facts),
        "model": _description(model),
        "captures": len(captures),
        "artifacts": len(artifacts),
    }
    write_model(Path(path), ModelFile(about, _pickled((kept, tuple(captures), artifacts))))


_OF_PROCESS = ("cache", "workers", "debug_dir", "agree_group")
"""Options that belong to a process and not to a model."""


def load(path: str | os.PathLike[str], model: Callable[..., Any], **options: Any) -> Any:
    """Return a compiled model from a file that ``compiled.save(path)`` wrote, without capturing or compiling anything.

    The result is what ``fxbucket.compile(model, ...)`` with the saved options gives after the calls that were made of it.
    A call that no saved capture serves is captured and compiled as usual, with one warning.

    Loading runs code from the file: load only what you, or somebody whom you trust with this account, saved. A file that
    other users may write to is refused.

    Args:
        path: the file.
        model: the model that was compiled: the same class and structure, with parameters and buffers of the same shapes,
            dtypes and devices; their values are this model's own.
        **options: ``cache``, ``workers`` and ``debug_dir`` of :func:`fxbucket.compile`, which are not saved.

    Raises:
        StoreError: the file is missing, damaged or open to others; or the environment, the model, the code that it runs
            or an op differs from what was saved; says what.
        OptionError: another option is given.
    """
    held = read_model(Path(path))
    wrong = sorted(options.keys() - set(_OF_PROCESS))
    if wrong:
        raise OptionError(f"load() takes no option {wrong[0]!r}, it is in the file; {nearest(wrong[0], _OF_PROCESS)}.")
    differences = Environment(held.about["environment"]).differences(_environment(held.about["compiler"]))
    _refuse(path, "the environment", differences)
    _refuse(path, "the model", _differences(held.about["model"], _description(model)))
    try:
        kept, captures, artifacts = pickle.loads(held.content)
    except Exception as error:  # whatever a class that is missing or has changed may raise
        raise StoreError(f"{path} needs something that this process does not have: {error}; import it first.") from error
    compiled = compile(model, **kept, **options)
    engine = compiled._engine
    for saved in captures:
        _refuse(path, "the code", [f"{name} is not what it was" for name in missing_here(saved.inlined)])
        record = Record(saved.guards, saved.inlined, marshal.loads(saved.bytecode), saved.scope, "")
        try:
            program = Program(capture_from(saved.capture))
            dispatcher = engine.backend.load(program, record, saved.entries, artifacts)
        except StoreError as error:
            raise StoreError(f"{path} does not fit: {error}") from error
        except (AttributeError, ImportError) as error:
            text = f"{path} needs an op or function that is not there: {error}; import what defines it before load()."
            raise StoreError(text) from error
        except Exception as error:  # a function of torch that was replaced makes any pass fail
            raise StoreError(f"{path} does not fit: a captured graph differs, {type(error).__name__}: {error}") from error
        if cut_text(dispatcher.program) != saved.cut:
            raise StoreError(f"{path}: a captured graph is cut otherwise here; are its boundaries and passes the same?")
        assert record.bytecode is not None  # it was just read
        function = engine.frame.function
        reserve_names(name for name, _ in saved.scope)
        _fill(function.__globals__, saved.scope, without_capture(dispatcher.function))
        try:
            guards = guards_from_bytes(saved.guards, function.__code__, function.__globals__)
        except Exception as error:  # torch and pickle say in many ways that something is missing
            raise StoreError(f"{path}: its guards cannot be made here: {type(error).__name__}: {error}") from error
        _refuse(path, "a guard", _guard_differences(saved.checks, _checks(guards)))
        install_entry(function.__code__, guards, record.bytecode)
    return compiled


def _refuse(path: object, what: str, differences: list[str]) -> None:
    if differences:
        more = f" and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise StoreError(f"{path} does not fit: {what} differs (saved, here): {'; '.join(differences[:5])}{more}.")


def _environment(compiler: str) -> Environment:
    """Return the facts that a saved model depends on; what is not compiled depends on few."""
    facts = environment({}).facts
    return Environment(facts if compiler == "inductor" else {name: facts[name] for name in _ALWAYS})


_ALWAYS = ("fxbucket format", "torch", "python")


def _artifacts(builder: Builder, options: Options) -> dict[str, Stored]:
    """Return every artifact of a model, by key, as bytes; none where nothing is compiled."""
    found: dict[str, Stored] = {}
    now: dict[int, Environment] = {}
    for made in builder.made if options.compiler == "inductor" else ():
        job = made.job
        if job.local_reason or job.form is None:
            raise StoreError(f"{job.title} cannot be saved: it {job.local_reason}.")
        settings = now.setdefault(id(job.options), environment(job.options))
        if settings.key_of(job.form.digest) != job.key:
            raise StoreError(f"{job.title} was compiled under other settings of torch than those of now; set them again.")
        stored, note = builder.stored(job.key) or (builder.stored(job.untuned_key) if job.untuned_key else None), ""
        if stored is None:
            # What was compiled without a store lies in no folder of its own, so what belongs to it is not known.
            with no_other_compilation():
                _, stored, note = compile_to_store(job.form, job.options, job.title)
        if stored is None:
            raise StoreError(f"{job.title} cannot be saved: {note}.")
        found[job.key] = stored
    return found


def _description(model: Callable[..., Any]) -> dict[str, str]:
    """Return what must be the same of a model: its modules' classes, and the metadata of its tensors."""
    if not isinstance(model, torch.nn.Module):
        home = getattr(model, "__module__", type(model).__module__)
        return {"function": f"{home}.{getattr(model, '__qualname__', type(model).__qualname__)}"}
    found = {f"module {name!r}": f"{type(m).__module__}.{type(m).__qualname__}" for name, m in model.named_modules()}
    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return found | {name: f"{type(t).__name__} {tuple(t.shape)} {t.dtype} {t.device}" for name, t in tensors.items()}


def _differences(saved: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    return Environment(saved).differences(Environment(here))


def _checks(guards: Any) -> Counter[GuardText]:
    """Return guards as texts that are the same in every process: identities are numbers of this one."""
    found: Counter[GuardText] = Counter()
    for (source, kind, parts), count in guard_texts(guards).items():
        found[source, kind, tuple(_IDENTITY.sub("#", part) for part in parts)] += count
    return found


_IDENTITY = re.compile(r"\b0x[0-9a-f]{6,}\b|\b\d{11,}\b")


def _guard_differences(saved: Counter[GuardText], here: Counter[GuardText]) -> list[str]:
    missing = [f"{' and '.join(parts)}, nothing" for _, _, parts in saved - here]
    return missing + [f"nothing, {' and '.join(parts)}" for _, _, parts in here - saved]


def _in_use(frame: CallFrame, dispatcher: Dispatcher, record: Record) -> tuple[Any, types.CodeType, Scope] | None:
    """Return guards, bytecode and scope of a capture as torch has them; ``None`` where torch dropped it.

    Raises:
        StoreError: what can be written is not all that is checked before each call.
    """
    code, scope = frame.function.__code__, frame.function.__globals__
    assert record.guards is not None
    if record.bytecode is not None:
        return guards_from_bytes(record.guards, code, scope), record.bytecode, record.scope
    for guards, bytecode in compiled_entries(code):
        names = [name for name in _names_in(bytecode) if name.startswith("__compiled_fn")]
        if not any(backend_function(scope.get(name)) is dispatcher.emitted.function for name in names):
            continue
        if len(names) != 1 or any(name.startswith("__resume") for name in _names_in(bytecode)):
            raise StoreError("the model breaks into several graphs a call, which cannot be saved; see docs/saving.md.")
        try:
            again = guards_from_bytes(record.guards, code, scope)
        except Exception as error:  # seen with torch 2.11, which writes some guards that it cannot read
            raise StoreError(f"the model cannot be saved: its guards cannot be read back: {error}.") from error
        checked, carried = guard_texts(guards), guard_texts(again)
        # A loaded model has these guards, which a check of this process's own stands for here.
        own = Counter({text: count for text, count in (carried - checked).items() if is_of_no_hooks(text[2])})
        lost = _guard_differences(checked, carried - own)
        if lost:
            raise StoreError(
                f"the model cannot be saved: of what torch checks before a call, {len(lost)} cannot be carried to another "
                f"process (checked, carried): {'; '.join(lost[:3])}."
            )
        return again, bytecode, _scope(frame.function, frame.model, bytecode, names[0])
    return None


def _names_in(code: types.CodeType) -> list[str]:
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names_in(constant)]
    return [*code.co_names, *inner]


def _scope(function: Callable[..., Any], model: object, bytecode: types.CodeType, compiled: str) -> Scope:
    """Return how each name that Dynamo put among the globals is found in another process."""
    used = set(_names_in(bytecode))
    found: list[tuple[str, Any]] = [(compiled, ("compiled", ""))]
    for name, value in function.__globals__.items():
        if isinstance(value, types.ModuleType):
            found.append((name, ("module", value.__name__)))
        elif name.startswith("__builtins_dict__"):
            found.append((name, ("builtins", "")))
        elif name in used and name != compiled and value is not model and not name.startswith("_fxbucket_default"):
            try:
                found.append((name, ("object", pickle.dumps(value))))
            except Exception as error:  # pickle says in many ways that it cannot
                raise StoreError(f"the model cannot be saved: each call uses {value!r}, and {error}.") from error
    return tuple(found)


def _fill(scope: dict[str, Any], names: Scope, compiled: Callable[..., Any]) -> None:
    for name, (kind, what) in names:
        if kind == "compiled":
            scope[name] = compiled
        elif kind == "module":
            scope[name] = importlib.import_module(what)
        elif kind == "builtins":
            scope[name] = scope["__builtins__"] if isinstance(scope["__builtins__"], dict) else vars(builtins)
        else:
            scope[name] = pickle.loads(what)


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        pickle.Pickler(buffer).dump(value)
    except Exception as error:  # pickle says in many ways that it cannot
        raise StoreError(
            f"the model cannot be saved: an option or a graph holds what cannot be written: {error}."
        ) from error
    return buffer.getvalue()
