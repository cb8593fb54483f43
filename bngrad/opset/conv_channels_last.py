"""The op ConvChannelsLast of ``bngrad``: Conv of data whose channels are the last dimension.

A function for each number of spatial dimensions defines it: a Conv between Transposes. A node names its function
by its overload. Importing this module registers the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset import onnx_registry
from bngrad.opset.convolutions import ATTRIBUTES, infer_output, schema_of

if TYPE_CHECKING:
    import onnx
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


def _infer(context: onnx.shape_inference.InferenceContext) -> None:
    infer_output(context, SIGNATURE, channels_last=True)


onnx_registry.register([schema()])
