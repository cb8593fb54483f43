"""A progress display on stderr, if it is a terminal: what is done, for how long, and how long it will take."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

_WIDE = 60
"""The least width of a terminal that has room for a bar."""

_AROUND = len("* ") + len(" 10:00, 10:00 left")
"""The columns of the spinner and the times."""

_LEAST_SECONDS, _LEAST_FRACTION = 2.0, 0.02
"""The part of a stage, and its time, from which the rest is estimated."""


class Display:
    """Shows a stage, its completed fraction and the time that is left of it.

    Args:
        display: The display; None to show nothing.
        stage: The first stage.
    """

    def __init__(self, display: Progress | None, stage: str = "starting") -> None:
        self._display = display
        self._start = self._stage_start = time.monotonic()
        self._stage, self._done_before = stage, 0.0
        self._task = None if display is None else display.add_task(stage, total=None, times="")

    def __call__(self, stage: str, fraction: float | None, text: str = "") -> None:
        """Shows a stage.

        Args:
            stage: The name of the stage; a new one starts its clock.
            fraction: The completed fraction; None if it is unknown.
            text: The text to show; the name by default.
        """
        if stage != self._stage:
            self._stage, self._stage_start, self._done_before = stage, time.monotonic(), fraction or 0.0
        if self._display is not None and self._task is not None:
            total = None if fraction is None else 1.0
            self._display.update(self._task, description=text or stage, total=total, completed=fraction or 0.0)

    @property
    def room(self) -> int:
        """The columns for the text of a stage without a bar; 0 if nothing is shown."""
        return 0 if self._display is None else self._display.console.width - _AROUND

    @property
    def encoding(self) -> str:
        """The encoding of the terminal."""
        return "ascii" if self._display is None else self._display.console.encoding

    def times(self, fraction: float | None) -> str:
        """Returns the time since the start and the time that is left of the stage, such as ``0:12, 1:40 left``."""
        now = time.monotonic()
        spent = now - self._stage_start
        done = 0.0 if fraction is None else fraction - self._done_before
        if fraction is None or done < _LEAST_FRACTION or spent < _LEAST_SECONDS:
            return clock(now - self._start)
        return f"{clock(now - self._start)}, {clock(spent * (1 - fraction) / done)} left"

    def position(self) -> str:
        """Returns where the work is, in a few words."""
        return f"at {self._stage!r}, after {clock(time.monotonic() - self._start)}"

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Takes the display away, so that lines can be printed on the same terminal."""
        if self._display is None:
            yield
            return
        self._display.stop()
        yield
        self._display.start()


def clock(seconds: float) -> str:
    """Returns a time as minutes and seconds, with hours if there are any."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


@contextlib.contextmanager
def progress(stage: str = "starting", *, bar: bool = True) -> Iterator[Display]:
    """Yields the display. An interrupt gets a note on where the work was.

    Args:
        stage: The first stage.
        bar: Whether to draw a bar where there is room.
    """
    with _display(stage, bar=bar) as show:
        try:
            yield show
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(show.position())
            raise


@contextlib.contextmanager
def _display(stage: str, *, bar: bool) -> Iterator[Display]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    console = Console(stderr=True)
    # FORCE_COLOR makes rich take a pipe for a terminal.
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield Display(None, stage)
        return

    class Times(ProgressColumn):
        """The times, which go on between two calls."""

        def render(self, task: Task) -> Text:
            return Text(show.times(None if task.total is None else task.completed), style="progress.elapsed")

    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        Times(table_column=Column(no_wrap=True)),
    ]
    if bar and console.width >= _WIDE:
        columns.insert(2, BarColumn(bar_width=12))
    # Lines on stdout stay there: `Display.hidden` makes room for them.
    display = Progress(*columns, console=console, transient=True, redirect_stdout=False, expand=True)
    show = Display(display, stage)
    with display:
        yield show
