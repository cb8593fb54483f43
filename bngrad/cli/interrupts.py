"""Ctrl-C as a request to end at the next good moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupts(*, terminated: bool = False) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed; pressed again, it interrupts at once as usual.

    Args:
        terminated: Whether SIGTERM counts, too: some launchers send it on Ctrl-C, and at a time limit.
    """
    pressed = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM) if terminated else (signal.SIGINT,)
    # A background job ignores the signal, and only the main thread may set a handler.
    before = {number: signal.getsignal(number) for number in signals}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread():
        before = {}

    def note(number: int, _frame: object) -> None:
        pressed.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, note)
    try:
        yield pressed.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
