"""The log of a training run: a line of JSON for each step and each epoch, also kept for the loss curve."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from bngrad.errors import InputError
from bngrad.io.writing import check_output, replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path


class RunLog:
    """Collects the records of a run, and appends each to a file.

    Args:
        path: The file; None for none.
        step: The number of steps before the run resumes. Records of the file up to there are kept, and others
            removed: a run that was killed may have logged steps after its last checkpoint.
        epoch: The number of complete epochs before the run resumes.

    Raises:
        InputError: The file cannot be written, or has a line that is not a record.
    """

    def __init__(self, path: str | os.PathLike[str] | None, step: int = 0, epoch: int = 0) -> None:
        self.records: list[dict[str, Any]] = []
        self._path = None if path is None else check_output(path)
        self._file: FileIO | None = None
        if self._path is not None:
            self.records = _kept(self._path, step, epoch)
            with replacing(self._path) as temporary:
                temporary.write_bytes("".join(map(_line, self.records)).encode())

    @property
    def seconds(self) -> float:
        """The time of the run up to the last record."""
        return max((record.get("seconds") or 0.0 for record in self.records), default=0.0)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Opens the file for the time of a run."""
        if self._path is None:
            yield
            return
        with self._path.open("ab", buffering=0) as self._file:
            yield
        self._file = None

    def add(self, **record: Any) -> None:  # noqa: ANN401 - anything that JSON has
        """Adds a record; numbers that are not finite become null.

        Raises:
            InputError: The file cannot be written.
        """
        record = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        self.records.append(record)
        if self._file is not None:
            line = _line(record).encode()
            try:
                written = self._file.write(line)
            except OSError as error:
                raise InputError(f"{self._path} cannot be written: {error.strerror or error}") from None
            if written != len(line):
                raise InputError(f"{self._path} cannot be written: the disk is full")


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _record(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record if its values are numbers, as the plot expects; raises `TypeError` if not."""
    for value in record.values():
        if value is not None and (not isinstance(value, int | float) or abs(value) > sys.float_info.max):
            raise TypeError
    return record


def _kept(path: Path, step: int, epoch: int) -> list[dict[str, Any]]:
    if not step or not path.exists():
        return []
    records = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = _record(json.loads(line))
            if record["step"] <= step and ("loss" in record or record["epoch"] <= epoch):
                records.append(record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if number < len(lines):  # the last line may be cut
                raise InputError(
                    f"{path}, line {number}: not a record of a training run; choose another file"
                ) from None
    return records
