"""The native library's file, and its C ABI (``ops/bngrad.h``) through ctypes."""

from __future__ import annotations

import ctypes
import importlib.resources
import os
import sys
from functools import cache
from pathlib import Path
from typing import cast

from bngrad.errors import InputError, LibraryError

LIBRARY_VARIABLE = "BNGRAD_LIBRARY"
"""Environment variable with the path of a library to use instead of the installed one."""

ISA_VARIABLE = "BNGRAD_ISA"
"""Environment variable that forces an instruction set. The library reads it once, when it is first needed."""

_FILE_NAMES = {"win32": "bngrad.dll", "darwin": "libbngrad.dylib"}
_OK, _INVALID_ARGUMENT = 0, 1
_MESSAGE_SIZE = 1024


class Layout(ctypes.Structure):
    """``bngrad_layout``: X, and what makes a channel of it."""

    _fields_ = (
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("axes", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("axes_count", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("scale_type", ctypes.c_int32),
        ("stat_type", ctypes.c_int32),
    )


def library_path() -> Path:
    """Returns the path of the native library.

    That is ``BNGRAD_LIBRARY`` if the environment sets it, else the file that was installed with the package.

    Raises:
        LibraryError: There is no such file.
    """
    return _path(os.environ.get(LIBRARY_VARIABLE))


def _path(forced: str | None) -> Path:
    if forced:
        path = Path(forced)
        if not path.is_file():
            raise LibraryError(
                f"{LIBRARY_VARIABLE}={forced} is not a file; expected the path of the native library"
            )
        return path
    name = _FILE_NAMES.get(sys.platform, "libbngrad.so")
    # Not Path(__file__): an editable install keeps what it built away from the sources.
    installed = importlib.resources.files("bngrad").joinpath("lib", name)
    if not installed.is_file():
        raise LibraryError(
            f"the native library {name} was not built with this bngrad: install it with a C++ compiler at hand, "
            f"or set {LIBRARY_VARIABLE} to a library built by `cmake -S ops`"
        )
    return Path(str(installed))


def version() -> str:
    """Returns the library's version, "major.minor.patch".

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    return str(loaded().bngrad_version().decode())


def isas() -> dict[str, bool]:
    """Returns the instruction sets that there are kernels for, best first, and whether this machine has each.

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    library = loaded()
    return {
        library.bngrad_isa_name(i).decode(): bool(library.bngrad_isa_supported(i))
        for i in range(library.bngrad_isa_count())
    }


def active_isa() -> str:
    """Returns the instruction set in use: the best one here, or what ``BNGRAD_ISA`` names.

    Raises:
        LibraryError: ``BNGRAD_ISA`` names none, or one that this machine does not have; or there is no library.
    """
    name = ctypes.c_char_p()
    try:
        call("bngrad_active_isa", ctypes.byref(name))
    except InputError as error:  # of the environment, not of an argument
        raise LibraryError(str(error)) from None
    return cast("bytes", name.value).decode()


def call(function: str, *arguments: object) -> None:
    """Calls a function that ends with an error buffer and its size, and raises what it reports.

    Raises:
        InputError: The function refuses an argument.
        LibraryError: It failed, or there is no library.
    """
    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    size = ctypes.c_size_t(_MESSAGE_SIZE)
    status = getattr(loaded(), function)(*arguments, message, size)
    if status == _OK:
        return
    text = message.value.decode(errors="replace")
    raise InputError(text) if status == _INVALID_ARGUMENT else LibraryError(f"{function}: {text}")


def loaded() -> ctypes.CDLL:
    """Returns the library.

    Raises:
        LibraryError: It is missing or cannot be loaded.
    """
    return _load(os.environ.get(LIBRARY_VARIABLE))


# The file is looked for once for all that the environment says: that takes as long as a hundred small ops.
@cache
def _load(forced: str | None) -> ctypes.CDLL:
    path = _path(forced)
    try:
        library = ctypes.CDLL(str(path))
        library.bngrad_version.restype = ctypes.c_char_p
        library.bngrad_isa_name.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path} cannot be loaded as bngrad's native library: {error}") from error
    return library
