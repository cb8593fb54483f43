"""Packages of dependencies that a command imports only if it uses them.

onnx-ir imports sympy, which takes a fourth of the time of a short command, for arithmetic on symbolic dimensions.
onnxscript imports its optimizer, which imports all of onnx's reference evaluator.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import LazyLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_DEFERRED = (
    "sympy",
    "onnx_ir._symbolic_shapes",
    "onnxscript.optimizer",
    "onnxscript.rewriter",
    "onnxscript.version_converter",
)
"""sympy, the module of onnx-ir that reads its attributes on import, and packages of onnxscript."""


class _Finder(MetaPathFinder):
    """Finds the deferred modules; they are loaded when an attribute of theirs is read first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Defers the imports in this process; for the command line only, as the whole process is affected."""
    sys.meta_path.insert(0, _Finder())
