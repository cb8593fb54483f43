"""Attributes and schemas of the ops of ``bngrad`` that are convolutions, all of whose tensors have one type."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from onnx import helper
from onnx.defs import OpSchema

from bngrad.opset.domain import DOMAIN, VERSION
from bngrad.opset.quantities import FLOAT_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Signature = tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]
    Sizes = Callable[[Sequence[int | None], Mapping[str, Sequence[int]]], list[int | None]]

MIN_IR_VERSION = 10
"""The oldest ONNX IR version with overloads, by which nodes of these ops name their functions."""

ATTRIBUTES = {
    "dilations": "As of Conv",
    "group": "As of Conv",
    "kernel_shape": "Shape of the kernel",
    "pads": "As of Conv, for the beginnings and then the ends of the spatial dimensions",
    "strides": "As of Conv",
}
"""The documentation of the required attributes: a kernel needs no defaults, and no auto_pad."""

INTEGERS = frozenset({"channels_last", "group"})
"""The attributes that are one integer; the others are lists."""


def schema_of(
    name: str,
    doc: str,
    signature: Signature,
    *,
    optional_outputs: bool = False,
    defaults: Mapping[str, int] = MappingProxyType({}),
    types: Sequence[str] = FLOAT_TYPES,
) -> OpSchema:
    """Returns the schema of an op, without inference of types.

    Args:
        name: The name of the op.
        doc: Its documentation.
        signature: The documentation of the inputs, outputs and attributes, by name.
        optional_outputs: Whether a node may leave out any output.
        defaults: The attributes that a node may leave out, and their values then.
        types: The types of its tensors.
    """
    inputs, outputs, attributes = signature
    options, kinds = OpSchema.FormalParameterOption, OpSchema.AttrType
    option = options.Optional if optional_outputs else options.Single

    def parameters(
        docs: Mapping[str, str], kind: OpSchema.FormalParameterOption
    ) -> list[OpSchema.FormalParameter]:
        return [OpSchema.FormalParameter(value, "T", text, param_option=kind) for value, text in docs.items()]

    return OpSchema(
        name,
        DOMAIN,
        VERSION,
        doc=doc,
        inputs=parameters(inputs, options.Single),
        outputs=parameters(outputs, option),
        type_constraints=[("T", types, "Type of all tensors")],
        attributes=[
            OpSchema.Attribute(value, helper.make_attribute(value, defaults[value]), text)
            if value in defaults
            else OpSchema.Attribute(value, kinds.INT if value in INTEGERS else kinds.INTS, text, required=True)
            for value, text in attributes.items()
        ],
    )


def _inference_inputs(
    context: onnx.shape_inference.InferenceContext, attributes: Iterable[str], inputs: Iterable[str]
) -> tuple[dict[str, list[int]], dict[str, onnx.TypeProto], dict[str, Any]]:
    """Returns what the shape of Y follows from: lists of attributes, types, and the dimensions that are known.

    Args:
        context: A node.
        attributes: The names of its attributes.
        inputs: The names of its inputs.

    Raises:
        InferenceError: A list or an input does not fit the rank of the kernel.
    """
    lists = {name: list(context.get_attribute(name).ints) for name in attributes if name not in INTEGERS}
    rank = len(lists["kernel_shape"])
    for name, values in lists.items():
        if len(values) != rank * (2 if name == "pads" else 1) or (name == "strides" and 0 in values):
            message = f"{name} is {values}, which does not fit a kernel of {rank} dimensions"
            raise onnx.shape_inference.InferenceError(message)
    types = {name: context.get_input_type(index) for index, name in enumerate(inputs)}
    shapes = {
        name: value.tensor_type.shape.dim
        for name, value in types.items()
        if value is not None and value.tensor_type.HasField("shape")
    }
    for name, shape in shapes.items():
        if len(shape) != 2 + rank:
            message = f"{name} has {len(shape)} dimensions; expected {2 + rank}, for a kernel of {rank}"
            raise onnx.shape_inference.InferenceError(message)
    return lists, types, shapes


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


def infer_output(
    context: onnx.shape_inference.InferenceContext,
    signature: Signature,
    sizes: Sizes = output_sizes,
    *,
    channels: int = 0,
    channels_last: bool = False,
) -> None:
    """Infers the type of Y from X, with N of X, the channels of W, and the spatial dimensions by the attributes.

    Args:
        context: A node.
        signature: The documentation of its inputs, outputs and attributes.
        sizes: The function that returns the spatial dimensions of Y from those of X, as `output_sizes`.
        channels: The dimension of W that is the channels of Y.
        channels_last: Whether the channels are the last dimension of X and Y.

    Raises:
        InferenceError: A list or an input does not fit the rank of the kernel.
    """
    inputs, _, attributes = signature
    lists, types, shapes = _inference_inputs(context, attributes, inputs)
    if (x := types.get("X")) is None:
        return
    result = onnx.TypeProto()
    result.tensor_type.elem_type = x.tensor_type.elem_type
    if len(shapes) == len(inputs):
        batch, *spatial = shapes["X"]
        del spatial[-1 if channels_last else 0]
        before = [dim.dim_value if dim.HasField("dim_value") else None for dim in spatial]
        dims = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in sizes(before, lists)]
        dims.insert(len(dims) if channels_last else 0, shapes["W"][channels])
        result.tensor_type.shape.dim.extend([batch, *dims])
    context.set_output_type(0, result)


def standard_function(name: str, op_type: str, signature: Signature, opset: int) -> ir.Graph:
    """Returns the node of the function of an op: one of ONNX, with its inputs and attributes.

    Args:
        name: The name of the op.
        op_type: The op of ONNX.
        signature: The documentation of the inputs, outputs and attributes, by name.
        opset: The ai.onnx opset of the model.
    """
    inputs = [ir.Value(name=value) for value in signature[0]]
    int_, ints = ir.AttributeType.INT, ir.AttributeType.INTS
    references = {value: ir.RefAttr(value, value, int_ if value in INTEGERS else ints) for value in signature[2]}
    node = ir.node(op_type, inputs, references, name="Y")
    node.outputs[0].name = "Y"
    return ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": opset}, name=name)
