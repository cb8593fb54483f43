"""A progress display on stderr, if it is a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress


class Display:
    """Shows a stage and its completed fraction.

    Args:
        display: The display; None to show nothing.
    """

    def __init__(self, display: Progress | None) -> None:
        self._display = display
        self._task = None if display is None else display.add_task("", total=None)

    def __call__(self, stage: str, fraction: float | None) -> None:
        """Shows a stage; its fraction is None if it is unknown."""
        if self._display is not None and self._task is not None:
            total = None if fraction is None else 1.0
            self._display.update(self._task, description=stage, total=total, completed=fraction or 0.0)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Takes the display away, so that lines can be printed on the same terminal."""
        if self._display is None:
            yield
            return
        self._display.stop()
        yield
        self._display.start()


@contextlib.contextmanager
def progress() -> Iterator[Display]:
    """Yields the display."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    # FORCE_COLOR makes rich take a pipe for a terminal.
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield Display(None)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Lines on stdout stay there: `Display.hidden` makes room for them.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as display:
        yield Display(display)
