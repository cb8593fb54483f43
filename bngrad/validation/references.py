"""References of `validate` that packages above this one provide, and loaded when they are first used.

Such a package may be optional, as PyTorch is, so nothing is imported when a reference is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LOADERS: dict[str, Callable[[], Any]] = {}
"""The function that loads a reference, by the reference's name in ``against``."""


def register_reference(name: str, load: Callable[[], Any]) -> None:
    """Registers the function that loads a reference.

    Args:
        name: The name of the reference in ``against``.
        load: The function; it returns what runs the reference.
    """
    _LOADERS[name] = load


def load_reference(name: str) -> Any:  # noqa: ANN401 - each reference has a type of its own
    """Returns the class that runs a registered reference.

    Raises:
        VersionError: A package that the reference needs is missing.
    """
    return _LOADERS[name]()
