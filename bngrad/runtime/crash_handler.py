"""One line and exit code 2 where native code would end the process, as onnx's does at some broken models.

That is for a process which is a command and nothing else: a library leaves its host's signals alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import TYPE_CHECKING

from bngrad.errors import LibraryError
from bngrad.runtime import native_library

if TYPE_CHECKING:
    from collections.abc import Sequence


def prepare(arguments: Sequence[str]) -> None:
    """Has a fault end the process with the command's words; with ``--debug`` with a traceback, as Python's own.

    Args:
        arguments: The command line without the program's name.
    """
    if "--debug" in arguments:
        faulthandler.enable()
    if faulthandler.is_enabled():
        return
    command = " ".join(["bngrad", *arguments])
    line = (
        f"bngrad: error: native code ended {' '.join(command.split())!r}, as onnx's does at some broken models "
        "and where memory ends; look with --debug for where, and report it if the model is valid"
    )
    # Without the library, or with an older one, the commands that need none work as ever.
    with contextlib.suppress(LibraryError, AttributeError):
        native_library.call("bngrad_exit_on_fault", os.fsencode(line), 2)
