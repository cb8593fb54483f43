"""The op ConvChannelsLast of ``bngrad``: Conv of data whose channels are the last dimension.

A function for each number of spatial dimensions defines it: a Conv between Transposes. A node names its function
by its overload. Importing this module registers the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from bngrad.opset import onnx_registry
from bngrad.opset.convolutions import ATTRIBUTES, inference_inputs, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx.defs import OpSchema

NAME = "ConvChannelsLast"

INPUTS = {
    "X": "Data, [N, ..., C]",
    "W": "Weights, [M, *kernel, C / group]",
}
OUTPUTS = {"Y": "Convolution of X with W, [N, ..., M]"}
SIGNATURE = INPUTS, OUTPUTS, ATTRIBUTES
"""The documentation of each, by name."""


def schema() -> OpSchema:
    """Returns the schema of the op."""
    result = schema_of(NAME, "Conv without a bias, of data with the channels last.", SIGNATURE)
    result.set_type_and_shape_inference_function(_infer)
    return result


def output_sizes(sizes: Sequence[int | None], attributes: Mapping[str, Sequence[int]]) -> list[int | None]:
    """Returns the spatial dimensions of Y.

    Args:
        sizes: Those of X; None if unknown.
        attributes: The attributes of the node that are lists.
    """
    rank = len(sizes)
    pads = attributes["pads"]
    columns = zip(
        sizes,
        attributes["kernel_shape"],
        attributes["strides"],
        attributes["dilations"],
        pads[:rank],
        pads[rank:],
        strict=True,
    )
    return [
        None if size is None else max(0, (size + begin + end - dilation * (kernel - 1) - 1) // stride + 1)
        for size, kernel, stride, dilation, begin, end in columns
    ]


def _infer(context: onnx.shape_inference.InferenceContext) -> None:
    """Infers the type of Y from X, with N of X, M of W, and the spatial dimensions by the attributes."""
    lists, types, shapes = inference_inputs(context, ATTRIBUTES, INPUTS)
    if (x := types.get("X")) is None:
        return
    result = onnx.TypeProto()
    result.tensor_type.elem_type = x.tensor_type.elem_type
    if len(shapes) == len(INPUTS):
        batch, *spatial, _ = shapes["X"]
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in spatial]
        dims = result.tensor_type.shape.dim
        dims.add().CopyFrom(batch)
        for size in output_sizes(sizes, lists):
            dim = dims.add()
            if size is not None:
                dim.dim_value = size
        dims.add().CopyFrom(shapes["W"][0])
    context.set_output_type(0, result)


onnx_registry.register([schema()])
