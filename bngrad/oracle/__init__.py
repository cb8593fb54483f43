"""The oracle: ONNX Runtime's own gradient builder, which rewritten graphs are validated against.

It comes from a package that has ended (onnxruntime-training-cpu 1.19.2) and cannot be installed beside the stock
onnxruntime, so it lives in a virtual environment of its own, made when first needed, and works in its own process.

- `environment`: `install`, `status`, `remove`, `ensure`
- `client`: `Oracle`, which builds gradients, runs models and captures the values between nodes
- `preparation`: `prepare_forward`, which turns a forward model into one that ORT's builder takes and gets right
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bngrad.oracle.client import Oracle
    from bngrad.oracle.environment import Environment, Status, ensure, install, remove, status
    from bngrad.oracle.preparation import Prepared, prepare_forward
    from bngrad.oracle.session import Session

__all__ = [
    "Environment",
    "Oracle",
    "Prepared",
    "Session",
    "Status",
    "ensure",
    "install",
    "prepare_forward",
    "remove",
    "status",
]

_HOMES = {
    "Environment": "environment",
    "Oracle": "client",
    "Prepared": "preparation",
    "Session": "session",
    "Status": "environment",
    "ensure": "environment",
    "install": "environment",
    "prepare_forward": "preparation",
    "remove": "environment",
    "status": "environment",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as the protocol has it
    """Import a public name when it is first used: the command line must not wait for onnx to show its help."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
