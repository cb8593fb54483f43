"""The op ConvGrad of ``bngrad``: the gradients of Conv, defined by a function for each form.

The nodes that compute them fastest depend on shapes and attributes, so there is no one function for all nodes, as
the ops of `functions` have. A node names its function by its overload. Importing this module registers the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from bngrad.opset import convolutions, onnx_registry

if TYPE_CHECKING:
    from onnx.defs import OpSchema

NAME = "ConvGrad"

INPUTS = {
    "dY": "Gradient with respect to the output of Conv",
    "X": "Data of Conv, [N, C, ...], or [N, ..., C] with channels_last",
    "W": "Weights of Conv, [M, C / group, *kernel], or [M, *kernel, C / group] with channels_last",
}
OUTPUTS = {
    "dX": "Gradient with respect to X",
    "dW": "Gradient with respect to W",
    "dB": "Gradient with respect to the bias of Conv, [M]",
}
LAID_OUT = ("dX", "dW")
"""The outputs that have channels as their second dimension, or as their last."""
CHANNELS_LAST = "channels_last"
ATTRIBUTES = {
    CHANNELS_LAST: "1: the channels are the last dimension of dY, X, dX, W and dW; 0, the default: the second",
    **convolutions.ATTRIBUTES,
}
REQUIRED = tuple(convolutions.ATTRIBUTES)
SIGNATURE = INPUTS, OUTPUTS, ATTRIBUTES
"""The documentation of each, by name."""


def schema() -> OpSchema:
    """Returns the schema of the op."""
    doc = "The gradients of Conv with respect to its data, weights and bias. A node may omit any of them."
    result = convolutions.schema_of(NAME, doc, SIGNATURE, optional_outputs=True, defaults={CHANNELS_LAST: 0})
    result.set_type_and_shape_inference_function(_infer)
    return result


def _infer(context: onnx.shape_inference.InferenceContext) -> None:
    """Infers the types: dX has that of X, dW that of W, and dB the first dimension of W."""
    x, w = context.get_input_type(1), context.get_input_type(2)
    for output, like in enumerate((x, w, w)[: context.get_num_outputs()]):
        if like is not None:
            result = onnx.TypeProto()
            result.CopyFrom(like)
            if output == 2 and like.tensor_type.HasField("shape"):
                del result.tensor_type.shape.dim[1:]
            context.set_output_type(output, result)


onnx_registry.register([schema()])
