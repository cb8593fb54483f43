"""Reads the files that `compare` compares, and refuses those that do not belong together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from bngrad.errors import InputError
from bngrad.training.run_log import Logged, read_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bngrad.reports.compare.comparison import Kind

MOST_RUNS = 8
"""The most runs of a comparison: as many as there are colors."""

_NAMES = {"train": "a log of train", "validate": "a report of validate", "bench": "a report of bench"}


class Files(NamedTuple):
    """Files of one kind; one of the lists is empty."""

    kind: Kind
    logs: list[Logged]
    documents: list[dict[str, Any]]


def read(paths: Sequence[Path]) -> Files:
    """Reads logs of `train`, or two reports of `validate` or `bench`.

    Raises:
        InputError: A file cannot be read or is something else, the files are of different kinds or named twice, or
            there are too few or too many.
    """
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise InputError(f"{path} is named twice; expected different files")
    contents = [_content(path) for path in paths]
    if len(paths) < 2:
        raise InputError(f"there is one file, {paths[0]}; expected two or more")
    kinds = [_kind(content) for content in contents]
    for path, kind in zip(paths, kinds, strict=True):
        if kind != kinds[0]:
            raise InputError(
                f"{paths[0]} is {_NAMES[kinds[0]]}, and {path} is {_NAMES[kind]}; expected files of one kind"
            )
    if kinds[0] == "train" and len(paths) > MOST_RUNS:
        raise InputError(f"there are {len(paths)} logs; expected at most {MOST_RUNS}")
    if kinds[0] != "train" and len(paths) > 2:
        raise InputError(f"there are {len(paths)} reports of {kinds[0]}; expected two: before and after")
    logs = [content for content in contents if isinstance(content, Logged)]
    return Files(kinds[0], logs, [content for content in contents if isinstance(content, dict)])


def _kind(content: Logged | dict[str, Any]) -> Kind:
    if isinstance(content, Logged):
        return "train"
    return "validate" if "checks" in content else "bench"


def _content(path: Path) -> Logged | dict[str, Any]:
    """Returns a log, or the document of a report.

    Raises:
        InputError: It is neither, or cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # lines of JSON are not one document
        document = None
    if isinstance(document, dict) and "checks" in document:
        if document.get("error"):
            raise InputError(f"{path} has no comparison, because the model could not be validated")
        return document
    if isinstance(document, dict) and "rows" in document:
        return document
    try:
        log = read_log(path)
    except InputError:
        log = Logged({}, [])
    if not log.records:
        raise InputError(
            f"{path} is neither a log of train --log, nor a report of validate --json or bench --json"
        )
    return log
