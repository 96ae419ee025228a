"""Every option of fxbucket, once: its meaning, its default, and what is wrong when it is wrong."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fxbucket.axes import AxisSpec, axis_specs
from fxbucket.passes.boundaries import Boundary, as_boundary
from fxbucket.passes.buckets import Bucket, Range
from fxbucket.passes.errors import OptionError, SizeError, nearest
from fxbucket.passes.pipeline import Pass

Compiler = str | Callable[..., Any]
OnMiss = Literal["dynamic", "eager", "error"]
CompileWhen = Literal["first_call", "lazily", "background"]

ON_MISS: tuple[OnMiss, ...] = ("dynamic", "eager", "error")
COMPILE_WHEN: tuple[CompileWhen, ...] = ("first_call", "lazily", "background")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a model is compiled. All fields are checked at once when the value is made.

    Attributes:
        sizes: pinned sizes, in elements along the axis. ``{axis: [...]}`` crosses the axes, ``[{axis: size, ...}, ...]``
            lists combinations, ``"seen"`` pins every combination at its first call, up to ``max_seen``. Default: none.
        axes: short name → axis expression, or several expressions that are always equal. Default: none.
        splitting_ops: where to cut: op names, functions, or boundaries of ``fxbucket.passes``. Default: nowhere.
        on_miss: what serves a call whose sizes are not pinned: one compilation for all other sizes (``"dynamic"``, the
            default), the captured graph as it is (``"eager"``), or nothing: :class:`MissError` (``"error"``).
        compiler: ``"inductor"`` (the default), ``"aot_eager"``, ``"eager"``, the name of any backend of
            ``torch.compile``, or a callable ``(module, example_inputs) -> callable``.
        compile_when: ``"first_call"`` compiles every pinned size when a graph is captured (the default), ``"lazily"``
            each at its first use, ``"background"`` all of them while calls go on: no call waits, and until a bucket is
            ready its calls run symbolically compiled or as they were captured.
        max_seen: how many combinations ``sizes="seen"`` pins in one captured graph at most. Default: 64.
        passes: extra passes, each run on every program after Split. Default: none.
        inductor_options: Inductor's configuration for these compilations. Default: none.
        cache: where Inductor's artifacts are kept for other processes: a folder of this user's own, ``"default"``:
            ``$FXBUCKET_CACHE_DIR`` or the system's folder for a user's caches, or ``None``: nowhere.
        workers: how many processes compile side by side (0 and 1: this one alone), or an executor with the interface of
            ``concurrent.futures`` that runs tasks in other processes; see docs/caching.md. Default: as many as there are
            cores, where there is enough to compile.
        debug_dir: a folder where each captured graph leaves every step and what its buckets run as texts. Default: what the
            environment variable ``FXBUCKET_DEBUG_DIR`` names, else none.
    """

    sizes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | Literal["seen"] = field(default_factory=dict)
    axes: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    splitting_ops: Sequence[object] = ()
    on_miss: OnMiss = "dynamic"
    compiler: Compiler = "inductor"
    compile_when: CompileWhen = "first_call"
    max_seen: int = 64
    passes: Sequence[Any] = ()
    inductor_options: Mapping[str, Any] = field(default_factory=dict)
    cache: str | os.PathLike[str] | None = "default"
    workers: int | Any | None = None
    debug_dir: str | os.PathLike[str] | None = None

    specs: tuple[AxisSpec, ...] = field(init=False)
    """Every axis that the user named."""
    buckets: tuple[Bucket, ...] = field(init=False)
    """Every pinned combination of sizes, by axis name."""
    boundaries: tuple[Boundary, ...] = field(init=False)
    """``splitting_ops`` as boundaries."""

    def __post_init__(self) -> None:
        _choice("on_miss", self.on_miss, ON_MISS)
        _choice("compile_when", self.compile_when, COMPILE_WHEN)
        if not isinstance(self.compiler, str) and not callable(self.compiler):
            raise OptionError(f"compiler={self.compiler!r}: give a name such as 'inductor', or a callable.")
        if not _is_int(self.max_seen) or self.max_seen < 1:
            raise OptionError(f"max_seen={self.max_seen!r}: give an int of at least 1.")
        if not isinstance(self.axes, Mapping):
            raise OptionError(f"axes={self.axes!r}: give a dict from short names to expressions.")
        if not isinstance(self.inductor_options, Mapping):
            raise OptionError(f"inductor_options={self.inductor_options!r}: give a dict.")
        if self.debug_dir is not None and not isinstance(self.debug_dir, (str, os.PathLike)):
            raise OptionError(f"debug_dir={self.debug_dir!r}: give the path of a folder, or leave the option out.")
        if self.cache is not None and not isinstance(self.cache, (str, os.PathLike)):
            raise OptionError(f"cache={self.cache!r}: give a folder, 'default', or None.")
        is_number = isinstance(self.workers, int) and _is_int(self.workers) and self.workers >= 0
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
        combinations = _combinations(self.sizes)
        named = list(dict.fromkeys(name for sizes in combinations for name in sizes))
        specs, name_of = axis_specs(self.axes, named)
        for sizes in combinations:
            spelled: dict[str, str] = {}
            for name in sizes:
                if spelled.setdefault(name_of(name), name) != name:
                    raise OptionError(f"sizes: {spelled[name_of(name)]!r} and {name!r} are one axis; give its sizes once.")
        buckets = tuple(Bucket.of({name_of(name): size for name, size in sizes.items()}) for sizes in combinations)
        _check_negative(specs, buckets)
        object.__setattr__(self, "specs", specs)
        object.__setattr__(self, "buckets", buckets)

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


def _choice(name: str, value: object, possible: Sequence[str]) -> None:
    if value not in possible:
        raise OptionError(f"{name}={value!r} is not possible; {nearest(str(value), possible)}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _combinations(sizes: object) -> list[dict[str, int]]:
    """Return every pinned combination as ``{axis: size}``."""
    if sizes == "seen":
        return []
    if isinstance(sizes, str):
        raise OptionError(f"sizes={sizes!r} is not possible; {nearest(sizes, ['seen'])}.")
    if isinstance(sizes, Mapping):
        for axis, listed in sizes.items():
            _check_list(axis, listed)
        if not sizes:
            return []
        return [dict(zip(sizes, values, strict=True)) for values in itertools.product(*sizes.values())]
    if isinstance(sizes, Sequence):
        if not sizes:
            raise OptionError("sizes=[] is empty; give at least one combination, or leave the option out.")
        found = []
        for combination in sizes:
            if not isinstance(combination, Mapping) or not combination:
                raise OptionError(f"sizes: {combination!r} is not a combination; give dicts such as {{'x.shape[0]': 8}}.")
            for axis, size in combination.items():
                _check_size(axis, size)
            found.append(dict(combination))
        for index, combination in enumerate(found):
            if combination in found[:index]:
                raise OptionError(f"sizes: the combination {combination} is listed twice; leave one out.")
        return found
    raise OptionError(f"sizes={sizes!r}: give {{axis: [sizes]}}, a list of combinations, or 'seen'.")


def _check_list(axis: object, listed: object) -> None:
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise OptionError(f"sizes of axis {axis!r}: {listed!r} is not a list of ints; write [{listed!r}] for one size.")
    if not listed:
        raise OptionError(f"sizes of axis {axis!r}: the list is empty; give at least one size, or leave the axis out.")
    for size in listed:
        _check_size(axis, size)
    twice = sorted({size for size in listed if list(listed).count(size) > 1})
    if twice:
        raise OptionError(f"sizes of axis {axis!r}: {twice} is listed more than once; leave the duplicates out.")


def _check_size(axis: object, size: object) -> None:
    if not _is_int(size):
        hint = "use ranges for a range" if isinstance(size, (Range, tuple)) else "sizes are ints"
        raise OptionError(f"sizes of axis {axis!r}: {size!r} is {type(size).__name__}; {hint}.")


def _check_negative(specs: Sequence[AxisSpec], buckets: Sequence[Bucket]) -> None:
    of_tensors = {spec.name for spec in specs if any(reading.dim is not None for reading in spec.readings)}
    for bucket in buckets:
        for name, size in bucket.sizes.items():
            if size < 0 and name in of_tensors:
                raise SizeError(f"size {size} of axis {name!r} is negative; a tensor has 0 rows or more.")
