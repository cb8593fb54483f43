"""A progress display on stderr, if it is a terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, float | None], None]]:
    """Yields a function that shows a stage and its completed fraction (None if unknown)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _stage, _fraction: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=None)

        def show(stage: str, fraction: float | None) -> None:
            total = None if fraction is None else 1.0
            display.update(task, description=stage, total=total, completed=fraction or 0.0)

        yield show
