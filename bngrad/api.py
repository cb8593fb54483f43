"""`rewrite` for every kind of model that a caller may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import onnx_ir as ir

from bngrad.files import as_ir
from bngrad.passes import pipeline

if TYPE_CHECKING:
    import os

    import onnx

    from bngrad.passes.pipeline import Target


@overload
def rewrite(model: ir.Model, *, target: Target = ..., functions: bool = ...) -> ir.Model: ...
@overload
def rewrite(
    model: str | os.PathLike[str] | onnx.ModelProto, *, target: Target = ..., functions: bool = ...
) -> onnx.ModelProto: ...


def rewrite(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    target: Target = "stock",
    functions: bool = True,
) -> onnx.ModelProto | ir.Model:
    """Makes every batch norm of a training graph an op of ``bngrad``.

    Args:
        model: A training graph: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not changed.
        target: ``stock``: everything in the result runs on any ONNX Runtime. ``training``: only batch norm is
            rewritten, the other training ops stay for a training build.
        functions: Whether to embed the ops' definitions, so that the result runs where nothing is registered.

    Returns:
        The rewritten model, of the kind that came in; for a path an `onnx.ModelProto`.

    Raises:
        InputError: The model cannot be read.
        ModelError: It is no model, there is no batch norm to rewrite, or the result does not pass onnx's checker.
        UnsupportedNodeError: A node cannot be rewritten.
    """
    result = pipeline.rewrite(as_ir(model), target=target, functions=functions).model
    return result if isinstance(model, ir.Model) else ir.to_proto(result)
