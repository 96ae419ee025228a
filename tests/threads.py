"""Calls in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def in_threads(call: Callable[[Any], object], given: Iterable[Any]) -> None:
    """Run a function once for each item, each time in a thread of its own, and wait for all of them."""
    threads = [threading.Thread(target=call, args=(item,)) for item in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
