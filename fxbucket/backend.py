"""The torch.compile backend: runs the pipeline on each captured graph, compiles, and returns the look-up."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fxbucket.axes import AxisSpec
from fxbucket.background import Background
from fxbucket.build import Builder
from fxbucket.capture import program_of
from fxbucket.data_parallel_compat import is_split_by_ddp
from fxbucket.dispatch import Dispatcher
from fxbucket.entry import SavedEntry
from fxbucket.explain import Explanation, explain
from fxbucket.frame import current_call
from fxbucket.gradients import check_backward
from fxbucket.graph_pool import GraphPool
from fxbucket.journal import Journal
from fxbucket.local_tensors import holds_distributed_tensors, on_local_tensors
from fxbucket.options import Options
from fxbucket.passes.admit import Admit
from fxbucket.passes.captured import Capture, python_spelling, value_of
from fxbucket.passes.deduplicate import Deduplicate
from fxbucket.passes.discover import Discover
from fxbucket.passes.errors import AxisError, CaptureError, FxbucketWarning, OptionError, nearest
from fxbucket.passes.pipeline import Pipeline
from fxbucket.passes.program import Program, Step
from fxbucket.passes.split import Split
from fxbucket.passes.symbolic import SYMBOLIC_TYPES
from fxbucket.passes.torch_version import check_torch_version
from fxbucket.profile import Profile, Recorder
from fxbucket.ranks import AgreedCalls, Ranks
from fxbucket.recording import Record, record_capture
from fxbucket.serialization_compat import capture_in_progress
from fxbucket.store import Stored
from fxbucket.torch_compat import (
    current_frame,
    tell_tracing_threads_apart,
    tracing_shape_env,
    without_saved_tensor_hooks,
)


def default_pipeline(options: Options, missing: Any = "error") -> Pipeline:
    """Return the passes that every captured graph goes through before its buckets are compiled one by one."""
    return Pipeline(
        (
            Split(options.boundaries, missing=missing),  # boundaries → pieces
            *options.passes,  # the user's own
            Discover(),  # where the arguments carry which symbol
            Admit(options.buckets),  # which buckets the capture's guards allow
            Deduplicate(),  # which pieces are equal and share artifacts
        )
    )


class Backend:
    """A ``torch.compile`` backend with its options; one value serves one model.

    Attributes:
        options: as they were given, checked.
        builder: makes the artifacts of all graphs.
        dispatchers: one for each graph that was captured, in order.
        records: what else is kept of each of them, so that it can be saved.
        is_loaded: whether some of them come from a saved model.
    """

    def __init__(self, options: Options) -> None:
        check_torch_version()
        tell_tracing_threads_apart()
        self.options = options
        self.dispatchers: list[Dispatcher] = []
        self.records: list[Record] = []
        self.is_loaded = False
        self._background = Background() if options.compile_when == "background" else None
        background = self._background
        self.builder = Builder(options, (lambda: background.stopped) if background is not None else lambda: False)
        self._recordings = GraphPool(options.cudagraph_max_buckets) if options.cudagraphs != "off" else None
        self._ranks = Ranks(options) if options.agree != "off" else None
        self._warned: set[str] = set()
        self._recorder: Recorder | None = None
        self._profile: Profile | None = None
        self.__name__ = "fxbucket"

    @without_saved_tensor_hooks()
    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Take a graph from Dynamo and return what runs it."""
        if holds_distributed_tensors(module):
            return on_local_tensors(module, example_inputs, functools.partial(self._take_local, module))
        if is_split_by_ddp(module):
            raise CaptureError(
                "torch splits this graph at DistributedDataParallel's buckets of gradients, before fxbucket cuts it; use "
                "DistributedDataParallel(fxbucket.compile(model, ...)), or set torch._dynamo.config.optimize_ddp = False."
            )
        call = current_call()
        if call is not None and call.specs is self.options.specs:
            program = program_of(module, tracing_shape_env(), call.located, call.arguments)
        else:
            program = program_of(module, tracing_shape_env(), self.options.specs, None)
            self._check_axes(program.capture)
        self._warn_of_unnamed(program.capture)
        if self.is_loaded and "capture" not in self._warned:
            self._warned.add("capture")
            text = "no saved capture of the loaded model serves this call, so the model is captured and compiled for it."
            warnings.warn(text, FxbucketWarning, stacklevel=2)
        record = record_capture(capture_in_progress(), call is not None)
        return self._serve(program, record).function

    @without_saved_tensor_hooks()
    def _take_local(self, whole: fx.GraphModule, module: fx.GraphModule, unrecordable: str) -> Callable[..., Any]:
        """Take a graph of this rank's own tensors, made from one of distributed tensors, and return what runs it."""
        program = program_of(module, tracing_shape_env(), self.options.specs, None)
        program = Program(replace(program.capture, unrecordable=unrecordable))
        return self._serve(program, Record(reason="it holds distributed tensors"), whole=whole).function

    def _serve(
        self,
        program: Program,
        record: Record,
        saved: Sequence[SavedEntry] | None = None,
        whole: fx.GraphModule | None = None,
    ) -> Dispatcher:
        """Take a captured program and make what serves its calls: all buckets, or those that a saved model had.

        Args:
            program: captured, not cut.
            record: what is kept of its capture.
            saved: the buckets that a saved model had.
            whole: the graph of distributed tensors that it was made from, which all ranks have in common.
        """
        journal = Journal(len(self.dispatchers), self.options.debug_dir)
        journal.captured(program)
        prepared = self.prepared(program, not self.dispatchers, (journal.step,))
        check_backward(prepared)
        self._warn_of_fixed(prepared)
        number = len(self.dispatchers)
        if self._ranks is not None:
            self._ranks.captured(number, prepared, whole or prepared.capture.module)
        dispatcher = Dispatcher(prepared, self.options, self.builder, journal, self._background, self._recordings)
        journal.prepared(prepared, dispatcher.emitted.source)
        with contextlib.nullcontext() if self._ranks is None else self._ranks.compiling(number):
            if saved is not None:
                dispatcher.restore(saved)
            elif self.options.compile_when != "lazily":
                dispatcher.compile_all()
        if self._ranks is not None:
            dispatcher.function = AgreedCalls(self._ranks, number, dispatcher, self.options)
        if self._recorder is not None:
            dispatcher.profile(self._recorder, len(self.dispatchers))
        journal.explained(lambda: explain([dispatcher]).data()["graphs"][0])
        self.dispatchers.append(dispatcher)
        self.records.append(record)
        return dispatcher

    def prepared(self, program: Program, is_first: bool, observers: Sequence[Callable[[Step], None]] = ()) -> Program:
        """Return a captured program, cut and with its decisions."""
        if program.capture.refusal:
            return program
        # A boundary may be in one graph of a model and not in the next; the first graph must hold it.
        partial = program.capture.is_fragment or program.capture.is_continuation
        passes = default_pipeline(self.options, "error" if is_first and not partial else "ignore")
        return Pipeline((passes,), observers=tuple(observers))(program)

    def load(
        self, program: Program, record: Record, saved: Sequence[SavedEntry], artifacts: Mapping[str, Stored]
    ) -> Dispatcher:
        """Take a program that was captured by another process, with the entries and artifacts that it had.

        Raises:
            StoreError: an artifact is not among those that were saved.
        """
        self.is_loaded = True
        with self.builder.only(artifacts):
            return self._serve(program, record, saved)

    @property
    def programs(self) -> tuple[Program, ...]:
        """One program for each captured graph, cut and with its decisions; symbolic."""
        return tuple(dispatcher.program for dispatcher in self.dispatchers)

    def explain(self) -> Explanation:
        """Return what was captured, cut, compiled and served so far."""
        recorder = self._recorder
        pool_bytes = 0 if self._recordings is None else self._recordings.num_bytes
        return explain(self.dispatchers, recorder.profile() if recorder is not None else self._profile, pool_bytes)

    @contextlib.contextmanager
    def recording_all(self) -> Iterator[None]:
        """After the calls made while the context is open, record every bucket that is to be recorded."""
        recordings = self._recordings
        if recordings is None:
            yield
            return
        recordings.is_warming = True
        try:
            yield
        finally:
            recordings.is_warming = False
        recordings.waits = True
        try:
            for dispatcher in self.dispatchers:
                if dispatcher.graphs is not None:
                    dispatcher.graphs.record_all()
        finally:
            recordings.waits = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is compiled in the background, at most ``timeout`` seconds; returns whether that is so."""
        return self._background is None or self._background.wait(timeout)

    @contextlib.contextmanager
    def profile(self) -> Iterator[Recorder]:
        """Record each call while the context is open: what served it, and the seconds of each piece.

        Raises:
            OptionError: a profile is being taken already.
        """
        if self._recorder is not None:
            raise OptionError("a profile of this model is being taken already; end it before another begins.")
        self._recorder = Recorder()
        self._record(self._recorder)
        try:
            yield self._recorder
        finally:
            self._profile, self._recorder = self._recorder.profile(), None
            self._record(None)

    def _record(self, recorder: Recorder | None) -> None:
        for number, dispatcher in enumerate(self.dispatchers):
            dispatcher.profile(recorder, number)

    def _check_axes(self, capture: Capture) -> None:
        """Raise :class:`AxisError` where the first graph holds none of an axis's expressions."""
        if self.dispatchers or capture.is_fragment or capture.is_continuation:
            return
        names = {axis.name for axis in capture.axes}
        for spec in self.options.specs:
            if spec.name in names or all(reading.dim is None for reading in spec.readings):
                continue
            possible = [place for axis in capture.axes for place in axis.expressions]
            possible += [python_spelling(held.source) for held in capture.placeholders if held.role == "input"]
            expressions = ", ".join(repr(reading.expression) for reading in spec.readings)
            raise AxisError(f"axis {expressions} names no argument of the captured graph; {nearest(spec.name, possible)}.")

    def _warn_of_fixed(self, program: Program) -> None:
        """Warn once of an axis that the capture fixed at one size, so that its buckets are not compiled."""
        named = {name for bucket in self.options.buckets for name, _ in bucket}
        for axis in program.axes:
            # Sizes 0 and 1 are captured on their own, and the next capture is for all others.
            if not axis.is_fixed or axis.hint < 2 or axis.name not in named or axis.name in self._warned:
                continue
            served = [decision for decision in program.decisions if decision.admitted]
            if not served:
                self._warned.add(axis.name)
                text = (
                    f"axis {axis.name!r} is fixed at {axis.hint} in this capture, so no bucket serves it: something in the "
                    f"model depends on that very size, such as another argument's size that is not named as the same axis."
                )
                warnings.warn(text, FxbucketWarning, stacklevel=2)

    def _warn_of_unnamed(self, capture: Capture) -> None:
        """Warn once of a dim that was not named and changed since an earlier capture."""
        named = {expression for axis in capture.axes for expression in axis.expressions}
        now = _fixed_sizes(capture, self.options.specs)
        for dispatcher in self.dispatchers:
            for place, size in _fixed_sizes(dispatcher.program.capture, self.options.specs).items():
                if place not in now or place in named or place in self._warned or now[place] == size:
                    continue
                # Sizes 0 and 1 are captured on their own, named or not.
                if min(size, now[place]) >= 2:
                    self._warned.add(place)
                    warnings.warn(
                        f"{place} changed from {size} to {now[place]} and was not named as an axis, so the model was "
                        f"captured again; name it to capture once: axes={{{_short(place)!r}: {place!r}}}.",
                        FxbucketWarning,
                        stacklevel=2,
                    )


def _short(place: str) -> str:
    return "".join(part if part.isalnum() else "_" for part in place).strip("_").replace("__", "_")


def _fixed_sizes(capture: Capture, specs: Sequence[AxisSpec]) -> dict[str, int]:
    """Return the sizes of a capture's tensor arguments that are plain numbers and no axis, by their Python expression."""
    nodes = [node for node in capture.module.graph.nodes if node.op == "placeholder"]
    found: dict[str, int] = {}
    for placeholder, node in zip(capture.placeholders, nodes, strict=True):
        value = value_of(node)
        spelling = python_spelling(placeholder.source)
        if placeholder.role == "input" and isinstance(value, torch.Tensor) and not spelling.startswith("___"):
            sources = [place for spec in specs for reading in spec.readings for place in reading.sources(value.dim())]
            named = {python_spelling(place) for place in sources}
            places = {f"{spelling}.shape[{dim}]": size for dim, size in enumerate(value.shape)}
            found |= {
                place: int(size)
                for place, size in places.items()
                if not isinstance(size, SYMBOLIC_TYPES) and place not in named
            }
    return found


def backend(**options: Any) -> Backend:
    """Return a backend for ``torch.compile(model, backend=...)``.

    Args:
        **options: the fields of :class:`fxbucket.options.Options`, by name.

    Raises:
        OptionError, AxisError, SizeError: an option is wrong; nothing is made.
    """
    return Backend(Options.of(options))


_named_backends: OrderedDict[tuple[int, int | None], tuple[Mapping[str, Any], Backend]] = OrderedDict()
_MAX_NAMED = 64


def dynamo_backend(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """Serve ``torch.compile(model, backend="fxbucket", options={...})``.

    Captures of one function share one backend value, so that a later one may lack a boundary that the first one held. For
    ``explain()``, give ``backend=fxbucket.backend(...)``.
    """
    given = options if options is not None else {}
    key = (id(given), current_frame())
    held = _named_backends.pop(key, None)
    serving = held[1] if held is not None and held[0] is given else backend(**given)
    _named_backends[key] = (given, serving)
    if len(_named_backends) > _MAX_NAMED:
        _named_backends.popitem(last=False)
    return serving(module, example_inputs)
