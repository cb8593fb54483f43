"""The files of ``bngrad train`` that show a run while it goes on: the web page, and TensorBoard's events."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from bngrad.cli.options import option_name
from bngrad.inspection.identity import identity
from bngrad.io.files import as_ir
from bngrad.reports.html.training import RunFacts, RunPage
from bngrad.reports.tensorboard import EventFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from bngrad.cli.train_setup import Run


class RunFiles:
    """Writes what the options name; nothing on ranks other than the first.

    Args:
        step: The training step.
        run: The run; None to write nothing.
        options: The options of the command.

    Raises:
        InputError: A file cannot be written.
    """

    def __init__(self, step: Path, run: Run | None, options: Mapping[str, Any]) -> None:
        page = options["html"] if run is not None else None
        self._page = None if page is None or run is None else RunPage(page, _facts(step, run, options))
        folder = options["tensorboard"] if run is not None else None
        self._events = None if folder is None else EventFile(folder)

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Writes the last of the records of a run, and the page if it is old.

        Raises:
            InputError: A file cannot be written.
        """
        if self._events is not None:
            self._events.add(records[-1])
        if self._page is not None:
            self._page.update(records)

    def end(self, records: Sequence[Mapping[str, Any]], status: str) -> None:
        """Writes the page of a run that has ended.

        Raises:
            InputError: The file cannot be written.
        """
        if self._page is not None:
            self._page.write(records, status)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Closes the event file at the end."""
        try:
            yield
        finally:
            if self._events is not None:
                self._events.close()


def options_text(options: Mapping[str, Any], left_out: Collection[str]) -> dict[str, str]:
    """Returns the options of a run that have an effect, as text by name.

    Args:
        options: The options of the command.
        left_out: Those to leave out.
    """
    shown = {name: value for name, value in options.items() if value not in (None, False, ())}
    return {
        option_name(name).removeprefix("--"): _text(value) for name, value in shown.items() if name not in left_out
    }


def _facts(step: Path, run: Run, options: Mapping[str, Any]) -> RunFacts:
    return RunFacts(
        title=str(step),
        options=options_text(options, ("html",)),
        summary=run.header,
        epochs=run.epochs,
        identity=identity(as_ir(step), step),
        device=options["device"],
    )


def _text(value: object) -> str:
    return (
        ", ".join(map(str, value)) if isinstance(value, tuple | list) else "yes" if value is True else str(value)
    )
