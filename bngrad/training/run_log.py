"""The log of a training run: a line of JSON for its options, and for each step and each epoch.

The records are also kept, for the loss curve.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from bngrad.errors import InputError
from bngrad.io.writing import check_output, replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from io import FileIO
    from pathlib import Path


_OPTIONS = "options"
"""The key of the first line."""


class Logged(NamedTuple):
    """The content of a log."""

    options: dict[str, str]
    """The options of the run, as text by name; empty if the log does not have them."""
    records: list[dict[str, Any]]
    """The records of steps and epochs."""


class RunLog:
    """Collects the records of a run, and appends each to a file.

    Args:
        path: The file; None for none.
        step: The number of steps before the run resumes. Records of the file up to there are kept, and others
            removed: a run that was killed may have logged steps after its last checkpoint.
        epoch: The number of complete epochs before the run resumes.
        options: The options of the run, as text by name, for the first line of the file; None for no such line.

    Raises:
        InputError: The file cannot be written, or has a line that is not a record.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        step: int = 0,
        epoch: int = 0,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.records: list[dict[str, Any]] = []
        self._path = None if path is None else check_output(path)
        self._file: FileIO | None = None
        if self._path is not None:
            self.records = _kept(self._path, step, epoch)
            head = [] if options is None else [{_OPTIONS: dict(options)}]
            with replacing(self._path) as temporary:
                temporary.write_bytes("".join(map(_line, [*head, *self.records])).encode())

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


def read_log(path: Path) -> Logged:
    """Reads a log; the last line may be cut.

    Raises:
        InputError: A line is not a record of a run, or the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    options: dict[str, str] = {}
    records = []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            if number == 1 and _OPTIONS in content:
                options = {str(name): str(value) for name, value in content[_OPTIONS].items()}
            else:
                records.append(_record(content))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if number < len(lines):
                raise InputError(
                    f"{path}, line {number}: not a record of a training run; choose another file"
                ) from None
    return Logged(options, records)


def _record(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record if its values are numbers, as the plot expects; raises `TypeError` or `KeyError` if not."""
    for value in record.values():
        if value is not None and (not isinstance(value, int | float) or abs(value) > sys.float_info.max):
            raise TypeError
    if record["step"] is None or ("loss" not in record and record["epoch"] is None):
        raise TypeError
    return record


def _kept(path: Path, step: int, epoch: int) -> list[dict[str, Any]]:
    if not step or not path.exists():
        return []
    records = [record for record in read_log(path).records if record["step"] <= step]
    return [record for record in records if "loss" in record or record["epoch"] <= epoch]
