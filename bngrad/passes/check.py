"""onnx's checker, for what a command made; what it finds may be a fault of what the user gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.io.external_data import in_memory, is_external

# Both register schemas with onnx, which the checker needs.
from bngrad.opset import ort_dialect, schemas  # noqa: F401
from bngrad.passes.prepare.large_initializers import is_large, set_aside

if TYPE_CHECKING:
    from collections.abc import Iterable


def check(model: ir.Model, source: ir.Model) -> None:
    """Sees to it that onnx's checker takes a model, with strict shape inference.

    An input may have no shape, which ONNX Runtime takes and the checker does not; outputs need none then.

    Args:
        model: What a command made.
        source: What the user gave.

    Raises:
        ModelError: It does not pass; the message says so of the source where that does not pass either.
    """
    problem = _problem(model)
    if problem is None:
        return
    own = _problem(source)
    if own is not None:
        raise ModelError(f"the model does not pass onnx's checker: {own}")
    raise ModelError(f"the rewritten model does not pass onnx's checker: {problem}")


def _problem(model: ir.Model) -> str | None:
    """What onnx's checker says of a model, in one line; None if it passes."""
    try:
        with set_aside(model.graph, lambda value: is_large(value) or is_external(value)):
            # What is not in the main graph is small, or no protobuf could have it.
            proto = ir.to_proto(in_memory(model))
        _check(proto)
    except Exception as error:  # noqa: BLE001 - onnx raises what it likes
        return " ".join(str(error).split())
    return None


def _check(proto: onnx.ModelProto) -> None:
    """Does what a full check does, but for shapes that the model does not say."""
    shapeless = _shapeless(proto.graph.input)
    if shapeless:
        said = onnx.ModelProto()
        said.CopyFrom(proto)
        for tensor in (*_shapeless(said.graph.input), *_shapeless(said.graph.output)):
            tensor.shape.SetInParent()
        onnx.checker.check_model(said)
    else:
        for value in proto.graph.output:
            if _shapeless([value]):
                raise ValueError(f"its output {value.name!r} has no shape; name its dimensions in the model")
        onnx.checker.check_model(proto)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


def _shapeless(values: Iterable[onnx.ValueInfoProto]) -> list[onnx.TypeProto.Tensor]:
    """The tensor types among those of some values that have no shape, not even a rank."""
    types = [value.type.tensor_type for value in values if value.type.HasField("tensor_type")]
    return [tensor for tensor in types if not tensor.HasField("shape")]
