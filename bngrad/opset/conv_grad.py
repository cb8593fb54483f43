"""The op ConvGrad of ``bngrad``: the gradients of Conv, defined by a function for each form.

The nodes that compute them fastest depend on shapes and attributes, so there is no one function for all nodes, as
the ops of `functions` have. A node names its function by its overload. Importing this module registers the schema.
"""

from __future__ import annotations

import onnx
from onnx import helper
from onnx.defs import OpSchema

from bngrad.opset import onnx_registry
from bngrad.opset.domain import DOMAIN, VERSION
from bngrad.opset.quantities import FLOAT_TYPES

NAME = "ConvGrad"
MIN_IR_VERSION = 10
"""The oldest ONNX IR version with overloads."""

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
    "dilations": "As of Conv",
    "group": "As of Conv",
    "kernel_shape": "Shape of the kernel",
    "pads": "As of Conv, for the beginnings and then the ends of the spatial dimensions",
    "strides": "As of Conv",
}
REQUIRED = tuple(name for name in ATTRIBUTES if name != CHANNELS_LAST)
"""All others: a kernel needs no defaults, and no auto_pad."""
INTEGERS = frozenset({CHANNELS_LAST, "group"})
"""The attributes that are one integer; the others are lists."""
SIGNATURE = INPUTS, OUTPUTS, ATTRIBUTES
"""The documentation of each, by name."""


def schema() -> OpSchema:
    """Returns the schema of the op."""
    option = OpSchema.FormalParameterOption
    ints, int_ = OpSchema.AttrType.INTS, OpSchema.AttrType.INT
    result = OpSchema(
        NAME,
        DOMAIN,
        VERSION,
        doc="The gradients of Conv with respect to its data, weights and bias. A node may omit any of them.",
        inputs=[OpSchema.FormalParameter(name, "T", doc) for name, doc in INPUTS.items()],
        outputs=[
            OpSchema.FormalParameter(name, "T", doc, param_option=option.Optional) for name, doc in OUTPUTS.items()
        ],
        type_constraints=[("T", FLOAT_TYPES, "Type of all tensors")],
        attributes=[
            OpSchema.Attribute(name, int_ if name in INTEGERS else ints, ATTRIBUTES[name], required=True)
            for name in REQUIRED
        ]
        + [OpSchema.Attribute(CHANNELS_LAST, helper.make_attribute(CHANNELS_LAST, 0), ATTRIBUTES[CHANNELS_LAST])],
    )
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
