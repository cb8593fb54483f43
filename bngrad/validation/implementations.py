"""The implementations of the ops that can be checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bngrad.errors import InputError, LibraryError
from bngrad.runtime import native_library
from bngrad.runtime.device import CPU, WEBGPU, Device
from bngrad.runtime.session import IMPLEMENTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.options import Implementation


def available_implementations(
    implementation: Implementation | Literal["all"],
    device: str = CPU,
) -> tuple[Sequence[Implementation], list[str]]:
    """Returns the chosen implementations without those that are not installed, and a note on these.

    Raises:
        InputError: The device has only the functions, and another one is chosen.
        LibraryError: The native implementation is chosen, and not installed.
    """
    if Device.of(device).kind == WEBGPU:
        if implementation in ("native", "python"):
            raise InputError(f"the {implementation} implementation has no kernels for {device!r}; use function")
        return ("function",), []
    if implementation == "all":
        try:
            native_library.library_path()
        except LibraryError as error:
            return ("python", "function"), [f"the native implementation was not checked: {error}"]
        return IMPLEMENTATIONS, []
    if implementation == "native":
        native_library.library_path()
    return (implementation,), []
