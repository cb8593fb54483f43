"""Batch-normalization training for ONNX Runtime.

A training graph's batch norms become ops of the domain ``bngrad``, which run on any ONNX Runtime: `rewrite`.
`validate` proves that they compute what the original did. `register` and `get_library_path` bring the native
implementation into a session; `session` makes one. `differentiate` makes the training graph of a forward model,
and `finalize` puts what was trained back into it.

Nothing is imported until it is used: the command line must answer at once.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bngrad.api import differentiate as differentiate
    from bngrad.api import finalize as finalize
    from bngrad.api import rewrite as rewrite
    from bngrad.errors import BngradError as BngradError
    from bngrad.parameter_shape import derive_parameter_shape as derive_parameter_shape
    from bngrad.runtime import get_library_path as get_library_path
    from bngrad.runtime import register as register
    from bngrad.runtime import session as session
    from bngrad.validation.validate import validate as validate

__all__ = [
    "BngradError",
    "__version__",
    "derive_parameter_shape",
    "differentiate",
    "finalize",
    "get_library_path",
    "register",
    "rewrite",
    "session",
    "validate",
]

_HOMES = {
    "BngradError": "errors",
    "derive_parameter_shape": "parameter_shape",
    "differentiate": "api",
    "finalize": "api",
    "get_library_path": "runtime",
    "register": "runtime",
    "rewrite": "api",
    "session": "runtime",
    "validate": "validation.validate",
}

try:
    __version__ = version("bngrad")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as the protocol has it
    """Imports a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "BngradError":  # whoever catches it must be able to
        import_module(f"{__name__}.versions").check()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
