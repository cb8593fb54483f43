"""The op MaxPoolInputGrad of ``bngrad``: the gradient of MaxPool, from its input instead of its indices.

MaxPool needs no indices then, with which ONNX Runtime's kernel takes several times as long. Importing this module
registers the schema.
"""

from __future__ import annotations

import functools

import onnx
from onnx.defs import OpSchema

from bngrad.opset import onnx_registry
from bngrad.opset.functions import DOMAIN, VERSION
from bngrad.opset.quantities import FLOAT_TYPES

NAME = "MaxPoolInputGrad"
"""Not MaxPoolGrad: onnx.reference refuses to load if two domains have that, and ONNX Runtime's dialect does."""

INPUTS = {
    "dY": "Gradient with respect to the output of MaxPool",
    "X": "Input of MaxPool, [N, C, ...], with one to three spatial dimensions",
}
OUTPUTS = {"dX": "Gradient with respect to X"}
ATTRIBUTES = {
    "ceil_mode": "As of MaxPool in opset 22: no window begins after X",
    "dilations": "As of MaxPool",
    "kernel_shape": "As of MaxPool",
    "pads": "As of MaxPool, for the beginnings and then the ends of the spatial dimensions",
    "strides": "As of MaxPool",
}
"""The documentation of the required attributes: a kernel needs no defaults, and no auto_pad."""
SIGNATURE = INPUTS, OUTPUTS, ATTRIBUTES
"""The documentation of each, by name."""

MIN_OPSET = 16
"""The oldest ai.onnx opset with all ops that the function uses (ScatterElements that adds is the newest)."""

_FUNCTION = """
    Y, indices = MaxPool <
        ceil_mode: int = @ceil_mode, dilations: ints = @dilations, kernel_shape: ints = @kernel_shape,
        pads: ints = @pads, strides: ints = @strides> (X)
    shape = Shape (X)
    size = ReduceProd <keepdims = 1> (shape)
    zero = Constant <value_float = 0.0> ()
    zero_of_x = CastLike (zero, X)
    zeros = Expand (zero_of_x, size)
    vector = Constant <value_ints = [-1]> ()
    flat_indices = Reshape (indices, vector)
    flat_dY = Reshape (dY, vector)
    sums = ScatterElements <axis = 0, reduction = "add"> (zeros, flat_indices, flat_dY)
    dX = Reshape <allowzero = 1> (sums, shape)
"""


def schema() -> OpSchema:
    """Returns the schema of the op."""
    result = OpSchema(
        NAME,
        DOMAIN,
        VERSION,
        doc="The gradient of MaxPool: dY of each window, added to the first of the largest elements of X in it.",
        inputs=[OpSchema.FormalParameter(name, "W", doc) for name, doc in INPUTS.items()],
        outputs=[OpSchema.FormalParameter(name, "W", doc) for name, doc in OUTPUTS.items()],
        type_constraints=[("W", FLOAT_TYPES[:2], "Type of all tensors")],
        attributes=[
            OpSchema.Attribute(
                name,
                OpSchema.AttrType.INT if name == "ceil_mode" else OpSchema.AttrType.INTS,
                doc,
                required=True,
            )
            for name, doc in ATTRIBUTES.items()
        ],
    )
    result.set_type_and_shape_inference_function(_infer)
    return result


@functools.cache
def function_proto(opset: int) -> onnx.FunctionProto:
    """Returns the function of the op in an ai.onnx opset, of at least `MIN_OPSET`; it must not be changed."""
    header = f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>'
    signature = f"{NAME} <{', '.join(ATTRIBUTES)}> ({', '.join(INPUTS)}) => ({', '.join(OUTPUTS)})"
    proto: onnx.FunctionProto = onnx.parser.parse_function(f"{header} {signature} {{ {_FUNCTION} }}")
    for node in proto.node:
        node.name = node.output[0]
    return proto


def _infer(context: onnx.shape_inference.InferenceContext) -> None:
    """Infers the type: dX has that of X."""
    x = context.get_input_type(1)
    if x is not None:
        context.set_output_type(0, x)


onnx_registry.register([schema()])
