"""The clock of a training run, which stands still while the run is shown and saved."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunClock:
    """Measures the time of the steps and the validations of a run.

    Args:
        seconds: The time that the run has taken before, if it is resumed.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._start = time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        """The time of the run in seconds, to the millisecond."""
        return round(time.monotonic() - self._start, 3)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time of a block."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._start += time.monotonic() - begin
