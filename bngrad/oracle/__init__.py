"""The oracle: ONNX Runtime's own gradient builder, which rewritten graphs are validated against.

It is part of onnxruntime-training-cpu, whose last release is 1.19.2 and which cannot be installed beside the stock
onnxruntime. So it has a virtual environment of its own, made when it is first needed, and runs in a process of its
own.

- `environment`: `install`, `status`, `remove`, `ensure`
- `client`: `Oracle`, which builds gradients, runs models and captures intermediate values
- `preparation`: `prepare_forward`, which turns a forward model into one that ORT's builder takes and gets right
- `differentiate`: `ort_training_graph`, the training graph of a forward model by ORT's builder
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


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as PEP 562 has it
    """Imports a public name when it is first used, so that the command line shows its help without onnx."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
