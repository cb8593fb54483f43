"""The native library: its path, and its C ABI (``ops/bngrad.h``) through ctypes."""

from __future__ import annotations

import ctypes
import importlib.resources
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

from bngrad.errors import InputError, LibraryError

LIBRARY_VARIABLE = "BNGRAD_LIBRARY"
"""Environment variable: path of a library to use instead of the installed one."""

ISA_VARIABLE = "BNGRAD_ISA"
"""Environment variable: instruction set to use. The library reads it once, on first use."""

_FILE_NAMES = {"win32": "bngrad.dll", "darwin": "libbngrad.dylib"}
_OK, _INVALID_ARGUMENT = 0, 1
_MESSAGE_SIZE = 1024


class Layout(ctypes.Structure):
    """``bngrad_layout``: the shape and types of X, and the reduction axes."""

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
    """Returns the path of the native library: ``BNGRAD_LIBRARY`` if it is set, else the installed file.

    Raises:
        LibraryError: The file does not exist.
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
    # Not Path(__file__): an editable install keeps the library outside of the source tree.
    installed = importlib.resources.files("bngrad").joinpath("lib", name)
    if not installed.is_file():
        checkout = Path(__file__).parents[2]
        reason = (
            f"bngrad is imported from {checkout}, where `pip install -e .` has not run: run it, or start Python "
            "in another folder to import an installed bngrad,"
            if (checkout / "ops" / "CMakeLists.txt").is_file()
            else "reinstall bngrad with a C++ compiler available,"
        )
        raise LibraryError(
            f"the native library {name} is not installed: {reason} or set {LIBRARY_VARIABLE} to a library built "
            "by `cmake -S ops`"
        )
    return Path(str(installed))


def version() -> str:
    """Returns the library's version as "major.minor.patch".

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    return str(loaded().bngrad_version().decode())


def isas() -> dict[str, bool]:
    """Returns the library's instruction sets, best first, and whether the CPU supports each.

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    library = loaded()
    return {
        library.bngrad_isa_name(i).decode(): bool(library.bngrad_isa_supported(i))
        for i in range(library.bngrad_isa_count())
    }


def active_isa() -> str:
    """Returns the instruction set in use: ``BNGRAD_ISA`` if it is set, else the best that the CPU supports.

    Raises:
        LibraryError: ``BNGRAD_ISA`` is unknown or not supported by the CPU, or the library is missing.
    """
    name = ctypes.c_char_p()
    try:
        call("bngrad_active_isa", ctypes.byref(name))
    except InputError as error:  # the environment is invalid, not an argument
        raise LibraryError(str(error)) from None
    return cast("bytes", name.value).decode()


def has_cuda() -> bool:
    """Returns whether the library has kernels for CUDA devices; older libraries have none.

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    function = getattr(loaded(), "bngrad_has_cuda", None)
    return function is not None and bool(function())


def function_of(name: str) -> Any:  # noqa: ANN401 - a function of ctypes
    """Returns a function of the library.

    Raises:
        LibraryError: The library is missing, cannot be loaded, or is older than the package.
    """
    library = loaded()
    try:
        return getattr(library, name)
    except AttributeError:
        raise LibraryError(
            f"{library_path()} has no {name}: it is older than this package; build it again"
        ) from None


def call(function: str, *arguments: object) -> None:
    """Calls a function whose last parameters are an error buffer and its size, and raises the error it reports.

    Raises:
        InputError: The function rejects an argument.
        LibraryError: The function failed, or the library is missing or older than the package.
    """
    called = function_of(function)
    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    size = ctypes.c_size_t(_MESSAGE_SIZE)
    status = called(*arguments, message, size)
    if status == _OK:
        return
    text = message.value.decode(errors="replace")
    raise InputError(text) if status == _INVALID_ARGUMENT else LibraryError(f"{function}: {text}")


def loaded() -> ctypes.CDLL:
    """Returns the library, loaded on first use.

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    return _load(os.environ.get(LIBRARY_VARIABLE))


@cache  # for each value of the variable: looking for the file takes longer than a small op
def _load(forced: str | None) -> ctypes.CDLL:
    path = _path(forced)
    try:
        library = ctypes.CDLL(str(path))
        library.bngrad_version.restype = ctypes.c_char_p
        library.bngrad_isa_name.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path} cannot be loaded as bngrad's native library: {error}") from error
    return library
