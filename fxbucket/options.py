"""Every option of fxbucket, once: its meaning, its default, and what is wrong when it is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch

from fxbucket.axes import AxisSpec, axis_specs
from fxbucket.bucket_options import check_negative, named_buckets, pinned_combinations, range_combinations
from fxbucket.passes.boundaries import Boundary, as_boundary
from fxbucket.passes.buckets import Bucket, is_int
from fxbucket.passes.errors import OptionError, nearest
from fxbucket.passes.pipeline import Pass

Compiler = str | Callable[..., Any]
OnMiss = Literal["dynamic", "eager", "error", "pad"]
CompileWhen = Literal["first_call", "lazily", "background"]

Padding = Literal["proved", "tested"]

CudaGraphs = Literal["off", "piecewise", "full", "auto"]
CUDAGRAPHS: tuple[CudaGraphs, ...] = ("off", "piecewise", "full", "auto")

Agree = Literal["max", "check", "off"]
AGREE: tuple[Agree, ...] = ("max", "check", "off")

ON_MISS: tuple[OnMiss, ...] = ("dynamic", "eager", "error", "pad")
COMPILE_WHEN: tuple[CompileWhen, ...] = ("first_call", "lazily", "background")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a model is compiled. All fields are checked at once when the value is made.

    Attributes:
        sizes: pinned sizes, in elements along the axis. ``{axis: [...]}`` crosses the axes, ``[{axis: size, ...}, ...]``
            lists combinations, ``"seen"`` pins every combination at its first call, up to ``max_seen``. Default: none.
        ranges: inclusive ranges of sizes, one symbolic compilation each, which knows its bounds. ``{axis: [(1, 255),
            Range(256, 4096, multiple_of=64)]}`` crosses the axes, ``[{axis: range, ...}, ...]`` lists rectangles, in which
            an axis may have one size too. Pinned sizes come first, then the first rectangle that holds a call's sizes.
            Default: none.
        axes: short name → axis expression, or several expressions that are always equal. Default: none.
        splitting_ops: where to cut: op names, functions, or boundaries of ``fxbucket.passes``. Default: nowhere.
        on_miss: what serves a call whose sizes are not pinned: one compilation for all other sizes (``"dynamic"``, the
            default), the captured graph as it is (``"eager"``), nothing: :class:`MissError` (``"error"``), or the next
            larger pinned size (``"pad"``), where padding is proved harmless; see docs/padding.md. A function gets a call's
            sizes by the axes' names and returns one of these words.
        padding: what ``"pad"`` relies on: ``"proved"`` (the default): a proof that padding reaches no row of the call;
            ``"tested"``: where there is none, a trial at the first call of each bucket.
        pad_values: what the padding of an argument holds, by its Python expression: ``{"labels": -100}``. A proof relies on
            what is said here. Default: 0 for each, on which no proof relies.
        row_safe_ops: ops by name, overload or function of which you promise that padded rows reach no other row. Default:
            none.
        compiler: ``"inductor"`` (the default), ``"aot_eager"``, ``"eager"``, the name of any backend of
            ``torch.compile``, or a callable ``(module, example_inputs) -> callable``.
        compile_when: ``"first_call"`` compiles every pinned size when a graph is captured (the default), ``"lazily"``
            each at its first use, ``"background"`` all of them while calls go on: no call waits, and until a bucket is
            ready its calls run symbolically compiled or as they were captured.
        cudagraphs: how pinned sizes are recorded as CUDA graphs on a GPU, and replayed: ``"full"``: a whole bucket as one,
            boundaries too; ``"piecewise"``: what lies between boundaries, which run at each call; ``"auto"``: whole where
            that can be, else piecewise. What cannot be recorded runs as ever, and ``explain()`` says why. ``"off"`` (the
            default) records nothing. See docs/cudagraphs.md.
        cudagraph_outputs: ``"copy"`` (the default) gives results of the caller's own, ``"static"`` memory of the recording,
            which the next call of any bucket writes over.
        cudagraph_max_buckets: how many buckets are recorded at once; the least recently used goes first. Default: all.
        max_seen: how many combinations ``sizes="seen"`` pins in one captured graph at most. Default: 64.
        passes: extra passes, each run on every program after Split. Default: none.
        inductor_options: Inductor's configuration for these compilations. Default: none.
        pinned_inductor_options: more of it, for what is compiled for pinned sizes alone, where it pays to look long for the
            best kernels: ``{"max_autotune": True, "coordinate_descent_tuning": True}``. Default: none.
        tuning_seconds: seconds of compilation with ``pinned_inductor_options`` after which further pieces are compiled
            without. What the store holds is found whatever is spent. Default: no end.
        cache: where Inductor's artifacts are kept for other processes: a folder of this user's own, ``"default"``:
            ``$FXBUCKET_CACHE_DIR`` or the system's folder for a user's caches, or ``None``: nowhere.
        workers: how many processes compile side by side (0 and 1: this one alone), or an executor with the interface of
            ``concurrent.futures`` that runs tasks in other processes; see docs/caching.md. Default: as many as there are
            cores, where there is enough to compile.
        guards: ``"drop"`` (the default): ``fxbucket.compile`` leaves out guards of Dynamo where a cheaper check of its own
            sees the same: those on the hooks of the model's modules. ``"keep"``: all are kept. See docs/performance.md.
        agree: what ranks of ``torch.distributed`` do before a call, so that all of them run the same bucket: ``"max"``: they
            run the largest of their sizes, and smaller calls are padded up to it where that is proved to be harmless;
            ``"check"``: sizes that differ are a :class:`RankMismatchError` on every rank; ``"off"`` (the default): nothing.
            See docs/ranks.md.
        agree_group: the process group of these ranks. Default: all ranks.
        agree_timeout: seconds for which a rank waits for the others, more than any of them compiles at once. Default: 300.
        debug_dir: a folder where each captured graph leaves every step and what its buckets run as texts. Default: what the
            environment variable ``FXBUCKET_DEBUG_DIR`` names, else none.
        debug: whether calls keep what they could do without, so that a fault shows where it is: every wrapper that the
            compiler put around an artifact, and its checks of sizes and strides. A result of
            ``cudagraph_outputs="static"`` that is read after its time raises :class:`StaleResultError`. Default: no.
    """

    sizes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | Literal["seen"] = field(default_factory=dict)
    axes: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] = field(default_factory=dict)
    splitting_ops: Sequence[object] = ()
    on_miss: OnMiss | Callable[[Mapping[str, int]], str] = "dynamic"
    padding: Padding = "proved"
    pad_values: Mapping[str, int | float | bool] = field(default_factory=dict)
    row_safe_ops: Sequence[Any] = ()
    compiler: Compiler = "inductor"
    compile_when: CompileWhen = "first_call"
    cudagraphs: CudaGraphs = "off"
    cudagraph_outputs: Literal["copy", "static"] = "copy"
    cudagraph_max_buckets: int | None = None
    max_seen: int = 64
    passes: Sequence[Any] = ()
    inductor_options: Mapping[str, Any] = field(default_factory=dict)
    pinned_inductor_options: Mapping[str, Any] = field(default_factory=dict)
    tuning_seconds: float | None = None
    cache: str | os.PathLike[str] | None = "default"
    workers: int | Any | None = None
    guards: Literal["drop", "keep"] = "drop"
    agree: Agree = "off"
    agree_group: Any | None = None
    agree_timeout: float = 300.0
    debug_dir: str | os.PathLike[str] | None = None
    debug: bool = False

    specs: tuple[AxisSpec, ...] = field(init=False)
    """Every axis that the user named."""
    buckets: tuple[Bucket, ...] = field(init=False)
    """Every pinned combination of sizes, then every rectangle of ranges, by axis name."""
    boundaries: tuple[Boundary, ...] = field(init=False)
    """``splitting_ops`` as boundaries."""

    def __post_init__(self) -> None:
        if not callable(self.on_miss):
            check_choice("on_miss", self.on_miss, ON_MISS)
        check_choice("compile_when", self.compile_when, COMPILE_WHEN)
        check_choice("cudagraphs", self.cudagraphs, CUDAGRAPHS)
        check_choice("cudagraph_outputs", self.cudagraph_outputs, ("copy", "static"))
        most = self.cudagraph_max_buckets
        if most is not None and (not is_int(most) or most < 1):
            raise OptionError(f"cudagraph_max_buckets={most!r}: give an int of at least 1, or None for all.")
        check_choice("guards", self.guards, ("drop", "keep"))
        check_agreement(self.agree, self.agree_group, self.agree_timeout, self.compile_when)
        check_choice("padding", self.padding, ("proved", "tested"))
        if not isinstance(self.pad_values, Mapping) or not all(
            isinstance(name, str) and isinstance(fill, (int, float)) for name, fill in self.pad_values.items()
        ):
            raise OptionError(f"pad_values={self.pad_values!r}: give a dict from arguments to numbers: {{'labels': -100}}.")
        if not isinstance(self.row_safe_ops, Sequence) or isinstance(self.row_safe_ops, str):
            raise OptionError(f"row_safe_ops={self.row_safe_ops!r}: give a list of op names, overloads or functions.")
        if not isinstance(self.compiler, str) and not callable(self.compiler):
            raise OptionError(f"compiler={self.compiler!r}: give a name such as 'inductor', or a callable.")
        if not is_int(self.max_seen) or self.max_seen < 1:
            raise OptionError(f"max_seen={self.max_seen!r}: give an int of at least 1.")
        if not isinstance(self.axes, Mapping):
            raise OptionError(f"axes={self.axes!r}: give a dict from short names to expressions.")
        if not isinstance(self.inductor_options, Mapping):
            raise OptionError(f"inductor_options={self.inductor_options!r}: give a dict.")
        if not isinstance(self.pinned_inductor_options, Mapping):
            raise OptionError(f"pinned_inductor_options={self.pinned_inductor_options!r}: give a dict.")
        seconds = self.tuning_seconds
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds < 0):
            raise OptionError(f"tuning_seconds={seconds!r}: give seconds, 0 or more, or None for no end.")
        if not isinstance(self.debug, bool):
            raise OptionError(f"debug={self.debug!r}: give True or False.")
        if self.debug_dir is not None and not isinstance(self.debug_dir, (str, os.PathLike)):
            raise OptionError(f"debug_dir={self.debug_dir!r}: give the path of a folder, or leave the option out.")
        if self.cache is not None and not isinstance(self.cache, (str, os.PathLike)):
            raise OptionError(f"cache={self.cache!r}: give a folder, 'default', or None.")
        is_number = isinstance(self.workers, int) and is_int(self.workers) and self.workers >= 0
        if self.workers is not None and not is_number and not callable(getattr(self.workers, "submit", None)):
            raise OptionError(f"workers={self.workers!r}: give an int of at least 0, an executor, or None.")
        if isinstance(self.workers, ThreadPoolExecutor):
            # Settings of torch's compilers belong to the process, so that threads cannot compile side by side.
            raise OptionError(
                "workers is a pool of threads; give one of processes, such as ProcessPoolExecutor, or a number."
            )
        given = self.splitting_ops
        if isinstance(given, (str, Boundary)) or callable(given):
            given = (given,)
        if not isinstance(given, Sequence):
            raise OptionError(f"splitting_ops={given!r}: give a list of op names, functions or boundaries.")
        object.__setattr__(self, "boundaries", tuple(as_boundary(item) for item in given))
        if not isinstance(self.passes, Sequence):
            raise OptionError(f"passes={self.passes!r}: give a list of passes.")
        for extra in self.passes:
            if not isinstance(extra, Pass) or isinstance(extra, type):
                raise OptionError(f"passes: {extra!r} is not a pass: it needs a `name` and `run(program) -> Program`.")
        combinations = [*pinned_combinations(self.sizes), *range_combinations(self.ranges)]
        named = list(dict.fromkeys(name for extents in combinations for name in extents))
        specs, name_of = axis_specs(self.axes, named)
        # Pinned ones before ranges: the order in which a call tries them.
        buckets = named_buckets(combinations, name_of)
        check_negative(specs, buckets)
        object.__setattr__(self, "specs", specs)
        object.__setattr__(self, "buckets", buckets)

    @property
    def may_pad(self) -> bool:
        """Whether some call may be padded."""
        return self.agree == "max" or self.on_miss == "pad" or callable(self.on_miss)

    @property
    def pins_seen(self) -> bool:
        """Whether every combination of sizes is pinned at its first call."""
        return self.sizes == "seen"

    @staticmethod
    def of(given: Mapping[str, Any]) -> Options:
        """Return the options for keyword arguments.

        Raises:
            OptionError: an option is unknown; the message gives the nearest name.
        """
        known = {item.name for item in fields(Options) if item.init}
        for name in given:
            if name not in known:
                raise OptionError(f"unknown option {name!r}; {nearest(name, known)}.")
        return Options(**given)


def check_agreement(agree: str, group: object, seconds: object, compile_when: str) -> None:
    """Raise :class:`OptionError` where ranks could not agree in this way."""
    check_choice("agree", agree, AGREE)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise OptionError(f"agree_timeout={seconds!r}: give seconds, more than 0.")
    if group is not None and not isinstance(group, getattr(torch.distributed, "ProcessGroup", ())):
        raise OptionError(f"agree_group={group!r}: give a process group of torch.distributed, or None for all ranks.")
    if agree != "off" and compile_when == "background":
        raise OptionError(
            f"agree={agree!r} with compile_when='background': a bucket would be ready on one rank before it is on another; "
            f"choose compile_when='first_call' or 'lazily'."
        )


def check_choice(name: str, value: object, possible: Sequence[str]) -> None:
    """Raise :class:`OptionError` where a value is not one of the possible words."""
    if value not in possible:
        raise OptionError(f"{name}={value!r} is not possible; {nearest(str(value), possible)}.")
