"""The function that moves bytes for the native library (``bngrad_collective`` in ``ops/bngrad.h``)."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import TYPE_CHECKING, Any

from bngrad.errors import DistributedError, LibraryError
from bngrad.runtime import native_library
from bngrad.runtime.native_synchronized import collective_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.distributed.transport import Transport

Function = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_size_t,
)
"""``bngrad_collective``, for ctypes."""

_DONE, _FAILED = 0, 1
_attached: dict[Transport, tuple[Any, Any]] = {}
"""The transport that the library uses, with its function, in Python and in C; they must live as long."""


def attach(transport: Transport) -> None:
    """Makes the native library of this process use a transport. Does nothing if it does so already.

    Raises:
        DistributedError: The library uses another transport.
        LibraryError: The library is missing or too old.
    """
    if transport in _attached:
        return
    if _attached:
        raise DistributedError("another communicator is attached to the op library; detach it first")
    function = _function_of(transport)
    # A single rank exchanges nothing, which the library does without calls of Python.
    callback = None if transport.size == 1 else Function(function)
    native_library.call("bngrad_set_collective", callback, None, transport.rank, transport.size)
    _attached[transport] = function, callback


def detach(transport: Transport) -> None:
    """Sets the native library of this process back to a single rank, if it uses the transport."""
    if transport in _attached:
        native_library.call("bngrad_set_collective", None, None, 0, 1)
        del _attached[transport]


@contextlib.contextmanager
def interrupts(transport: Transport) -> Iterator[None]:
    """A block in which a signal that arrives before the function begins ends the transport's operation.

    Python runs signal handlers when a function begins, before its ``try``; ctypes can only print their exceptions.
    """
    function, _ = _attached.get(transport, (None, None))
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if function is not None and unraisable.object is function and unraisable.exc_value is not None:
            transport.give_up(unraisable.exc_value)
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def is_foreign() -> bool:
    """Tests whether the library exchanges values through a function that no communicator of this process set."""
    try:
        return not _attached and collective_ranks() > 1
    except LibraryError:
        return False


def _function_of(transport: Transport) -> Any:  # noqa: ANN401 - a function of ctypes
    def function(
        _context: None, operation: int, send: int, receive: int, size: int, error: int, error_size: int
    ) -> int:
        try:
            transport.move(operation, send, receive, size)
        except BaseException as reason:  # noqa: BLE001 - no exception can pass the library
            text = str(reason) or type(reason).__name__
            message = text.encode()[: error_size - 1].decode(errors="ignore").encode()
            ctypes.memmove(error, message + b"\0", len(message) + 1)
            return _FAILED
        # An exception outside of the block above returns a random number, but leaves the text.
        ctypes.memset(error, 0, 1)
        return _DONE

    return function
