"""Pauses the garbage collector: building a graph allocates hundreds of thousands of live objects."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_collections() -> Iterator[None]:
    """Runs a function, or a block, without garbage collection, which takes half of the time for large graphs.

    A collector that is off stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
