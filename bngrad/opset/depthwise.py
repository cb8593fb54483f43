"""The ops DepthwiseConv and DepthwiseConvGrad of ``bngrad``: Conv with a group for each channel of its data.

The nodes that compute the gradients fastest depend on shapes and attributes, and an op has one function in ONNX
Runtime below 1.27, which does not tell overloads apart. So DepthwiseConvGrad has several names, of which a model
takes one for each function. Importing this module registers the schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset import onnx_registry
from bngrad.opset.convolutions import ATTRIBUTES, infer_output, schema_of, standard_function
from bngrad.opset.quantities import FLOAT_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    import onnx_ir as ir
    from onnx.defs import OpSchema

CONV = "DepthwiseConv"
GRAD = "DepthwiseConvGrad"
GRADS = tuple(f"{GRAD}_{number}" for number in range(1, 33))
"""The names of DepthwiseConvGrad."""

TYPES = FLOAT_TYPES[:2]
"""Float and double."""

SPATIAL_RANKS = (1, 2)
"""The numbers of spatial dimensions."""

_DATA = "Data, [N, C, size] or [N, C, height, width], with C = group"
_WEIGHTS = "Weights, [M, 1, *kernel], with M a multiple of C"

CONV_SIGNATURE = (
    {"X": _DATA, "W": _WEIGHTS},
    {"Y": "Convolution of X with W, of the shape of Conv's"},
    ATTRIBUTES,
)
GRAD_SIGNATURE = (
    {"dY": "Gradient with respect to Y", "X": _DATA, "W": _WEIGHTS},
    {"dX": "Gradient with respect to X", "dW": "Gradient with respect to W"},
    ATTRIBUTES,
)
SIGNATURES: dict[str, tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]] = {
    CONV: CONV_SIGNATURE,
    **dict.fromkeys(GRADS, GRAD_SIGNATURE),
}
"""The documentation of the inputs, outputs and attributes of each, by the name of the op."""


def schemas() -> list[OpSchema]:
    """Returns the schemas of the ops."""
    conv = schema_of(CONV, "Conv without a bias, with a group for each channel of X.", CONV_SIGNATURE, types=TYPES)
    conv.set_type_and_shape_inference_function(_infer_conv)
    result = [conv]
    for name in GRADS:
        doc = "The gradients of DepthwiseConv. A node may omit any of them."
        grad = schema_of(name, doc, GRAD_SIGNATURE, optional_outputs=True, types=TYPES)
        grad.set_type_and_shape_inference_function(_infer_grad)
        result.append(grad)
    return result


def conv_function(opset: int) -> ir.Graph:
    """Returns the nodes of the function of DepthwiseConv: a Conv.

    Args:
        opset: The ai.onnx opset of the model.
    """
    return standard_function(CONV, "Conv", CONV_SIGNATURE, opset)


def _infer_conv(context: onnx.shape_inference.InferenceContext) -> None:
    infer_output(context, CONV_SIGNATURE)


def _infer_grad(context: onnx.shape_inference.InferenceContext) -> None:
    """Infers the types: dX has that of X, and dW that of W."""
    for output in range(context.get_num_outputs()):
        like = context.get_input_type(1 + output)
        if like is not None:
            context.set_output_type(output, like)


onnx_registry.register(schemas())
