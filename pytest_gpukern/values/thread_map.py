"""One function over many pieces, in threads: NumPy lets go of the interpreter while it works on an array."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Made = TypeVar("Made")


def map_in_threads(function: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """`function` of each item, in the items' order, by as many threads as there are processors.

    A single item is done without a thread.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as pool:
        return list(pool.map(function, items))
