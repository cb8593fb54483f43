"""The one way in which outputs are written: atomically, over regular files only, and never over a link.

A symbolic link is followed: the file that it names is replaced, in its own folder. Devices, pipes, and links to
them or to an open file, such as /dev/stdout, are refused: a file in their place would take them from all programs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from bngrad.errors import InputError
from bngrad.io.external_files import external_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

_SYSTEM_FOLDERS = (("/", "dev"), ("/", "proc"), ("/", "sys"))
_MEMORY_DISK = ("/", "dev", "shm")
"""A file system for the files of users."""

_IN_USE = (5, 32)
"""Errors of Windows (ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION) where a file to be replaced is open."""


def destination(path: Path) -> Path:
    """Returns the regular file to replace for an output: the path itself, or what its symbolic links name.

    Raises:
        InputError: The path is a directory, a device, a pipe, a link to one of them or to an open file, or is in a
            folder of these.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = stat.S_IFREG  # it is to be made
    except OSError as error:
        raise InputError(f"output {path} cannot be written: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"output {path} is a directory; expected a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"output {path} is a device or a pipe; expected a regular file")
    target = path
    while True:
        folder = os.path.realpath(target.parent)
        if _is_of_the_system(folder):
            what = f"is in {folder}" if target == path else f"is a link to {target}"
            raise InputError(f"output {path} {what}: a device or an open file; expected a regular file")
        if not target.is_symlink():
            return target
        target = Path(folder, target.readlink())


def _is_of_the_system(folder: str) -> bool:
    """Tests whether a folder has devices, or links to files that processes have open, as /dev/stdout is one."""
    parts = Path(folder).parts
    return parts[:2] in _SYSTEM_FOLDERS and parts[:3] != _MEMORY_DISK


def check_output(
    output: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    model: ir.Model | None = None,
) -> Path:
    """Checks an output path before any work is done, and returns it.

    Args:
        output: The file to write.
        source: The input file, which must not be overwritten.
        model: The model of the input file, whose external data must not be overwritten.

    Raises:
        InputError: The path is not as `destination` expects, its folder does not exist or is not writable, or it
            is the input or its external data.
    """
    path = Path(output)
    target = destination(path)
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise InputError(f"output {path} is the input; choose another file")
    if model is not None and path.exists():
        for data in {Path(tensor.path) for tensor in external_tensors(model)}:
            if data.exists() and path.samefile(data):
                raise InputError(f"output {path} is the external data of the input; choose another file")
    if not target.parent.is_dir():
        raise InputError(f"output folder {target.parent} does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"output folder {target.parent} is not writable")
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file to write to, and renames it to `destination` unless an exception is raised.

    A process that is killed leaves the temporary file ``.<name>.<8 hex digits>.tmp`` behind; it can be deleted.

    Raises:
        InputError: The file cannot be written.
    """
    target = destination(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        in_use = "; if a program has it open, close it" if getattr(error, "winerror", 0) in _IN_USE else ""
        raise InputError(f"{path} cannot be written: {error.strerror or error}{in_use}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Writes a text atomically, as UTF-8 with LF; surrogates, as of file names that are not UTF-8, become escapes.

    Raises:
        InputError: The file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="backslashreplace"))
