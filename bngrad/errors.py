"""Errors caused by user input or the environment, and the package's warning. Any other exception is a bug.

Each message is one line: the fault, its place, what was expected, and what to do. The command line prints it and
exits with code 2 without writing any output. A warning is also one line; it does not affect the result.
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class BngradError(Exception):
    """Base class of all errors caused by user input or the environment."""

    on_all_ranks = False
    """True if all ranks of a distributed run raise this error, with this message."""


class ModelError(BngradError):
    """The model is invalid or unsuitable for the command."""


class UnsupportedNodeError(ModelError):
    """A node that has to be rewritten or differentiated is not supported."""

    lines: Sequence[str] = ()
    """The message of each such node, where several were found."""
    ops: Sequence[str] = ()
    """The op of each such node, where they have no gradient."""


class InputError(BngradError):
    """An argument is invalid: an option, an input array, or a path."""


class LibraryError(BngradError):
    """The native custom-op library is missing, cannot be loaded, or is too new for the installed ONNX Runtime."""


class VersionError(BngradError):
    """A required package is missing, too old, or incompatible with another package."""


class DeviceError(BngradError):
    """A device, its driver or its libraries are missing or too old; or the device failed or has no memory left."""


class TrainingError(BngradError):
    """Training cannot continue: the loss or the state is not finite."""


class DistributedError(BngradError):
    """The ranks of a distributed run do not match, one failed, or one did not answer in time."""


class OracleError(BngradError):
    """The oracle's environment cannot be created, or ORT's gradient builder rejected the model."""


class BngradWarning(UserWarning):
    """The model is probably not suitable for training; the message names the likely cause and the remedy."""


def warn(messages: Iterable[str], category: type[Warning] = BngradWarning) -> None:
    """Issues each message as a warning, attributed to the line outside of the package that called it."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "bngrad":
        frame, level = frame.f_back, level + 1
    for message in messages:
        warnings.warn(message, category, stacklevel=level)
