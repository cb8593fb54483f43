"""A crash handler that turns a crash in native code into one line on stderr and exit code 2.

It is for the command line only: a library must not change the signal handlers of its host process.
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


def install(arguments: Sequence[str]) -> None:
    """Installs the crash handler; with ``--debug``, Python's faulthandler instead, which prints a traceback.

    Args:
        arguments: The command line without the program's name.
    """
    if "--debug" in arguments:
        faulthandler.enable()
    if faulthandler.is_enabled():
        return
    command = " ".join(["bngrad", *arguments])
    line = (
        f"bngrad: error: {' '.join(command.split())!r} crashed in native code, often because of a malformed model "
        "or lack of memory; rerun with --debug for a traceback, and report it if the model is valid"
    )
    # Without the library, or with an older one, commands that do not need it still work.
    with contextlib.suppress(LibraryError):
        native_library.call("bngrad_exit_on_fault", os.fsencode(line), 2)
