"""Processes of an installation, none of which outlives what it was started for, whenever Ctrl-C comes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import FrameType


@contextlib.contextmanager
def started(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:  # noqa: ANN401 - as Popen
    """A process that reads nothing; waited for at the end of the block, and killed if that ends by an error.

    Args:
        command: with its arguments.
        options: those of `subprocess.Popen`; its pipes have to be of text.

    Raises:
        OSError: it cannot be started.
    """
    process = None
    try:
        with _interrupts_held():
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
        yield process
    except BaseException:
        if process is not None:
            process.kill()
        raise
    finally:
        if process is not None:
            with process:
                pass  # waits, and closes the pipes


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401 - as Popen
    """What a process printed, and its exit code; arguments and errors as for `started`."""
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C comes at the end of the block: within `subprocess.Popen` it leaves a child that nobody knows of."""
    handler = signal.getsignal(signal.SIGINT)
    # Elsewhere than in the main thread it does not come anyway, and who ignores it goes on doing so.
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *interrupt: held.append(interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])
