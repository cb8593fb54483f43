"""The one check of files to read: a device or a pipe might never end, and a folder has no content."""

from __future__ import annotations

import os
import stat

from bngrad.errors import InputError


def require_file(path: str | os.PathLike[str], expected: str) -> os.stat_result:
    """Checks that a path names a regular file, directly or by a link, and returns its status.

    Args:
        path: The path.
        expected: The expected kind of file, such as ``an .npz file``.

    Raises:
        InputError: The file does not exist, is a directory, a device or a pipe, or cannot be reached.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - a path that is a text stays as it is in the messages
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected {expected}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a directory; expected {expected}")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is a device or a pipe; expected {expected}, as a regular file")
    return status
