"""Batches that are fetched and copied to the device one ahead, while the step before them runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bngrad.runtime.device import CPU
from bngrad.runtime.device_arrays import send as send_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bngrad.runtime.device import Device

T = TypeVar("T")

_END: Any = object()


def sent_ahead(
    device: Device, batches: Iterable[tuple[T, Mapping[str, Any]]], *, send: bool = True
) -> Iterator[tuple[T, Mapping[str, Any]]]:
    """Yields batches with their arrays on a device; on the CPU, as they are and when they are asked for.

    Args:
        device: The device.
        batches: Batches, with something that belongs to each. A thread of its own iterates over them.
        send: Whether to copy the arrays; else they are only fetched.
    """
    if device.kind == CPU:  # where a second thread would take a core from the step
        yield from batches
        return
    yield from one_ahead((extra, _send(batch, device) if send else batch) for extra, batch in batches)


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yields items, each of which a thread fetches while the one before is in use."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, items, _END)
        while (item := following.result()) is not _END:
            following = thread.submit(next, items, _END)
            yield item


def _send(batch: Mapping[str, Any], device: Device) -> dict[str, Any]:
    return {
        name: send_array(array, device) if isinstance(array, np.ndarray) else array
        for name, array in batch.items()
    }
