"""Calls in several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_threads(call: Callable[[Any], object], given: Iterable[Any]) -> None:
    """Run a function once for each item, each time in a thread of its own, and wait for all; raises what one of them did."""
    items = list(given)
    with ThreadPoolExecutor(len(items)) as threads:
        list(threads.map(call, items))
