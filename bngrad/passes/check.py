"""Infers the types of the result of a command, and checks it with onnx's checker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.io.external_data import in_memory, is_external

# Both register the schemas that the checker needs.
from bngrad.opset import ort_dialect, schemas  # noqa: F401
from bngrad.passes.prepare.infer_types import InferTypesPass, infer_strictly, require_possible
from bngrad.passes.prepare.large_initializers import hidden_initializers, is_large

if TYPE_CHECKING:
    from collections.abc import Iterable


def check(model: ir.Model, source: ir.Model) -> None:
    """Raises an error if a model does not pass onnx's checker with strict shape inference.

    Unlike the checker, and like ONNX Runtime, this accepts inputs without a shape; outputs then need no shape
    either.

    Args:
        model: The result of a command.
        source: The user's model.

    Raises:
        ModelError: The result does not pass. If the user's model does not pass either, the message is about that.
    """
    problem = _problem(model)
    if problem is None:
        return
    source_problem = _problem(source)
    if source_problem is not None:
        raise ModelError(f"the model does not pass onnx's checker: {source_problem}")
    raise ModelError(f"the rewritten model does not pass onnx's checker: {problem}")


def infer_and_check(model: ir.Model, source: ir.Model) -> None:
    """Infers the types of the result of a command, and checks it.

    Args:
        model: The result; it gets the types, see `InferTypesPass`.
        source: The user's model.

    Raises:
        ModelError: See `require_possible` and `check`.
        UnsupportedNodeError: See `require_possible`.
    """
    inferred = infer_strictly(model)
    if inferred is None:
        InferTypesPass()(model)
    require_possible(model)
    if inferred is None or not _passes(inferred):
        check(model, source)


def _passes(inferred: onnx.ModelProto) -> bool:
    """Tests whether a model that was inferred strictly is sure to pass `check`."""
    if _shapeless([*inferred.graph.input, *inferred.graph.output]):
        return False
    try:
        onnx.checker.check_model(inferred)
    except onnx.checker.ValidationError:
        return False
    return True


def _problem(model: ir.Model) -> str | None:
    """Returns the message of onnx's checker about a model in one line; None if the model passes."""
    try:
        with hidden_initializers(model.graph, lambda value: is_large(value) or is_external(value)):
            # Tensors outside the main graph are small, or the model could not be a protobuf.
            proto = ir.to_proto(in_memory(model))
        _check(proto)
    except Exception as error:  # noqa: BLE001 - onnx raises errors of many types
        return " ".join(str(error).split())
    return None


def _check(proto: onnx.ModelProto) -> None:
    """Runs a full check; unlike ``check_model(full_check=True)`` it allows inputs without a shape."""
    if _shapeless(proto.graph.input):
        with_shapes = onnx.ModelProto()
        with_shapes.CopyFrom(proto)
        for tensor in (*_shapeless(with_shapes.graph.input), *_shapeless(with_shapes.graph.output)):
            tensor.shape.SetInParent()
        onnx.checker.check_model(with_shapes)
    else:
        for value in proto.graph.output:
            if _shapeless([value]):
                raise ValueError(f"its output {value.name!r} has no shape; name its dimensions in the model")
        onnx.checker.check_model(proto)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


def _shapeless(values: Iterable[onnx.ValueInfoProto]) -> list[onnx.TypeProto.Tensor]:
    """Returns the tensor types of values without a shape."""
    types = [value.type.tensor_type for value in values if value.type.HasField("tensor_type")]
    return [tensor for tensor in types if not tensor.HasField("shape")]
