"""Child processes of an installation; none is left running, even by Ctrl-C."""

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
    """Starts a process without standard input; waits for it at the end of the block, and kills it on an error.

    Args:
        command: The command with its arguments.
        options: Those of `subprocess.Popen`; its pipes must be text.

    Raises:
        OSError: It cannot be started.
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
    """Runs a process to its end; arguments and errors as for `started`."""
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block: within `subprocess.Popen` it would lose track of the child."""
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread gets it; a process that ignores it keeps doing so.
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
