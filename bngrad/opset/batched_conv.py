"""The ops BatchedConv and BatchedConvTranspose of ``bngrad``: all images of a batch in one matrix product.

Their functions are Conv and ConvTranspose, which they are without a bias and groups. Importing this module
registers the schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset import onnx_registry
from bngrad.opset.convolutions import ATTRIBUTES, infer_output, schema_of, standard_function
from bngrad.opset.quantities import FLOAT_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx
    import onnx_ir as ir
    from onnx.defs import OpSchema

CONV = "BatchedConv"
TRANSPOSE = "BatchedConvTranspose"
STANDARD = {CONV: "Conv", TRANSPOSE: "ConvTranspose"}
"""The op of ONNX that each is."""

TYPES = FLOAT_TYPES[:1]
"""Float, for which ONNX Runtime has kernels of both."""

SPATIAL_RANKS = (1, 2)
"""The numbers of spatial dimensions."""

_DATA = {"X": "Data, [N, C, size] or [N, C, height, width]"}
_ATTRIBUTES = {name: text for name, text in ATTRIBUTES.items() if name != "group"}
SIGNATURES: dict[str, tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]] = {
    CONV: (
        _DATA | {"W": "Weights, [M, C, *kernel]"},
        {"Y": "Convolution of X with W, of the shape of Conv's"},
        _ATTRIBUTES,
    ),
    TRANSPOSE: (
        _DATA | {"W": "Weights, [C, M, *kernel]"},
        {"Y": "Transposed convolution of X with W, of the shape of ConvTranspose's"},
        dict(sorted((_ATTRIBUTES | {"output_padding": "As of ConvTranspose"}).items())),
    ),
}
"""The documentation of the inputs, outputs and attributes of each, by the name of the op."""


def schemas() -> list[OpSchema]:
    """Returns the schemas of the ops."""
    result = []
    for name, standard in STANDARD.items():
        doc = f"{standard} without a bias and groups, of all images in one matrix product."
        schema = schema_of(name, doc, SIGNATURES[name], types=TYPES)
        schema.set_type_and_shape_inference_function(_infer_conv if name == CONV else _infer_transpose)
        result.append(schema)
    return result


def function(name: str, opset: int) -> ir.Graph:
    """Returns the node of the function of an op.

    Args:
        name: The name of the op.
        opset: The ai.onnx opset of the model.
    """
    return standard_function(name, STANDARD[name], SIGNATURES[name], opset)


def _transposed_sizes(sizes: Sequence[int | None], attributes: Mapping[str, Sequence[int]]) -> list[int | None]:
    """The spatial dimensions of the Y of BatchedConvTranspose."""
    rank = len(sizes)
    names = "kernel_shape", "strides", "dilations", "output_padding"
    columns = zip(sizes, *(attributes[name] for name in names), strict=True)
    pads = [sum(attributes["pads"][axis::rank]) for axis in range(rank)]
    return [
        None if size is None else (size - 1) * stride + dilation * (kernel - 1) + 1 + added - pad
        for (size, kernel, stride, dilation, added), pad in zip(columns, pads, strict=True)
    ]


def _infer_conv(context: onnx.shape_inference.InferenceContext) -> None:
    infer_output(context, SIGNATURES[CONV])


def _infer_transpose(context: onnx.shape_inference.InferenceContext) -> None:
    infer_output(context, SIGNATURES[TRANSPOSE], _transposed_sizes, channels=1)


onnx_registry.register(schemas())
