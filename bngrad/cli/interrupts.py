"""Ctrl-C as a request to end at the next good moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed; pressed again, it interrupts at once as usual."""
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    # A background job ignores the signal, and only the main thread may set a handler.
    if before is signal.SIG_IGN or before is None or threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def note(_number: int, _frame: object) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
