"""The errors that a user can cause, and the warning; everything else is a bug.

Each message is one line: what, where, what was expected, what to do. The command line prints it and exits
with 2; nothing was written. A warning is one line, too, and changes nothing in the result.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CALLER_OF_A_PUBLIC_FUNCTION = 3


class BngradError(Exception):
    """Base of every error that bad input, or a missing piece of the system, causes."""


class ModelError(BngradError):
    """A model file or a graph is not what a command can work on."""


class UnsupportedNodeError(ModelError):
    """A node is one that a pass must rewrite, and cannot."""


class InputError(BngradError):
    """An argument other than the model is wrong: an option, an input array, an output path."""


class LibraryError(BngradError):
    """The native custom-op library is missing, unloadable, or too new for the ONNX Runtime at hand."""


class VersionError(BngradError):
    """A package that bngrad builds on is missing, too old, or does not run together with another one."""


class OracleError(BngradError):
    """The oracle's environment cannot be made, or ORT's gradient builder refused the model."""


class BngradWarning(UserWarning):
    """A model that is probably not what the user means to train: what, where, the likely cause and the remedy."""


def warn(messages: Iterable[str]) -> None:
    """Warns of each, at the line that called the public function which calls this."""
    for message in messages:
        warnings.warn(message, BngradWarning, stacklevel=_CALLER_OF_A_PUBLIC_FUNCTION)
