"""ONNX schemas of the op set, so that onnx's checker and shape inference know the ops.

Importing this module registers them with onnx. Nothing is said twice: the inputs, outputs, attributes and
documentation of an op are those of its function in `opset.py`, and each name there is one of `QUANTITIES`,
which gives its type and its shape.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import onnx
from onnx.defs import OpSchema

from bngrad.errors import InputError
from bngrad.opset import onnx_registry
from bngrad.opset.functions import DOMAIN, FUNCTIONS, VERSION
from bngrad.opset.known_shapes import may_be_equal, shape_text
from bngrad.opset.reference import normalize_axes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from onnx.shape_inference import InferenceContext

    from bngrad.opset.known_shapes import KnownShape


class Quantity(NamedTuple):
    """An input or output of an op, by its standard name."""

    type_constraint: str
    shape: Literal["data", "parameter", "axes"]
    doc: str


_LIKE_SCALE = "; the shape of X without the reduction axes"

QUANTITIES: dict[str, Quantity] = {
    "X": Quantity("T", "data", "Input of the forward pass, of rank 1 to 8"),
    "Y": Quantity("T", "data", "The normalized, scaled and shifted X; the shape of X"),
    "dY": Quantity("T", "data", "Gradient of the loss by Y; the shape of X"),
    "dX": Quantity("T", "data", "Gradient of the loss by X; the shape of X"),
    "Z": Quantity("T", "data", "relu(Y); the shape of X"),
    "dZ": Quantity("T", "data", "Gradient of the loss by Z; the shape of X"),
    "ddX": Quantity("T", "data", "Gradient of the loss by dX; the shape of X"),
    "d_dY": Quantity("T", "data", "Gradient of the loss by dY; the shape of X"),
    "d_X": Quantity("T", "data", "Gradient of the loss by X, through the gradients; the shape of X"),
    "scale": Quantity("T1", "parameter", "Multiplies the normalized X" + _LIKE_SCALE),
    "bias": Quantity("T1", "parameter", "Added after scaling" + _LIKE_SCALE),
    "dscale": Quantity("T1", "parameter", "Gradient of the loss by scale" + _LIKE_SCALE),
    "dbias": Quantity("T1", "parameter", "Gradient of the loss by bias" + _LIKE_SCALE),
    "ddscale": Quantity("T1", "parameter", "Gradient of the loss by dscale" + _LIKE_SCALE),
    "ddbias": Quantity("T1", "parameter", "Gradient of the loss by dbias" + _LIKE_SCALE),
    "d_scale": Quantity("T1", "parameter", "Gradient of the loss by scale, through the gradients" + _LIKE_SCALE),
    "mean": Quantity("T2", "parameter", "Mean that X is centered by" + _LIKE_SCALE),
    "inv_std": Quantity("T2", "parameter", "1 / sqrt(variance + epsilon), not the variance itself" + _LIKE_SCALE),
    "saved_mean": Quantity("T2", "parameter", "Mean of this batch" + _LIKE_SCALE),
    "saved_inv_std": Quantity("T2", "parameter", "1 / sqrt(variance of this batch + epsilon)" + _LIKE_SCALE),
    "running_mean": Quantity("T2", "parameter", "Running mean before this step" + _LIKE_SCALE),
    "running_var": Quantity("T2", "parameter", "Running variance before this step" + _LIKE_SCALE),
    "new_running_mean": Quantity("T2", "parameter", "Running mean after this step" + _LIKE_SCALE),
    "new_running_var": Quantity("T2", "parameter", "Running variance after this step" + _LIKE_SCALE),
    "axes": Quantity(
        "tensor(int64)", "axes", "The dimensions to reduce over: 1-D, each in [-rank, rank), none twice"
    ),
}

ATTRIBUTES: dict[str, str] = {
    "training_mode": "1: mean and inv_std are functions of X; 0: they are constants (frozen statistics)",
    "epsilon": "Added to the variance before its square root",
    "momentum": "Weight of the old running value",
    "unbiased_running_var": "Whether the running variance takes Bessel's correction, M / max(M - 1, 1)",
}

_FLOATS = ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"]
_TYPE_CONSTRAINTS = {
    "T": "Type of the data",
    "T1": "Type of scale and bias and their gradients: T or float",
    "T2": "Type of the statistics: T or float",
}
_ATTR_TYPES = {"int": OpSchema.AttrType.INT, "float": OpSchema.AttrType.FLOAT}


def schema(name: str) -> OpSchema:
    """Returns the schema of an op of the domain, made from its function.

    Args:
        name: A key of `opset.FUNCTIONS`.
    """
    inputs, outputs, attributes = signature(name)
    used = [QUANTITIES[q].type_constraint for q in inputs + outputs]
    result = OpSchema(
        name,
        DOMAIN,
        VERSION,
        doc=inspect.cleandoc(FUNCTIONS[name].function.__doc__ or ""),
        inputs=[_formal_parameter(q) for q in inputs],
        # The first output is what the op is for; a node may leave the others out.
        outputs=[_formal_parameter(q, optional=i > 0) for i, q in enumerate(outputs)],
        type_constraints=[(t, _FLOATS, doc) for t, doc in _TYPE_CONSTRAINTS.items() if t in used],
        attributes=[
            OpSchema.Attribute(a, _ATTR_TYPES[kind], ATTRIBUTES[a], required=True)
            for a, kind in attributes.items()
        ],
    )
    result.set_type_and_shape_inference_function(lambda context: _infer(context, inputs, outputs))
    return result


def signature(name: str) -> tuple[list[str], list[str], dict[str, str]]:
    """Returns the names of an op's inputs and of its outputs, and its attributes, ``int`` or ``float``."""
    function = FUNCTIONS[name].function_ir
    attributes = {attribute: function.attributes[attribute].type.name.lower() for attribute in function.attributes}
    return [str(v.name) for v in function.inputs], [str(v.name) for v in function.outputs], attributes


def register_schemas() -> None:
    """Registers every op of the domain with onnx; a second call changes nothing."""
    onnx_registry.register(schema(name) for name in FUNCTIONS)


def _formal_parameter(name: str, *, optional: bool = False) -> OpSchema.FormalParameter:
    quantity = QUANTITIES[name]
    option = OpSchema.FormalParameterOption
    return OpSchema.FormalParameter(
        name,
        quantity.type_constraint,
        quantity.doc,
        param_option=option.Optional if optional else option.Single,
    )


def _infer(context: InferenceContext, inputs: list[str], outputs: list[str]) -> None:
    """Sets the type of every output.

    One rule for all ops: data has the shape of X; a parameter that of any other parameter, else that of X without
    the axes. The element type is that of the inputs of the same type constraint; where there is none (the
    statistics of X alone) it is the type that the op computes in.
    """
    types = {
        name: given.tensor_type
        for i, name in enumerate(inputs)
        if i < context.get_num_inputs() and (given := context.get_input_type(i)) is not None
    }
    x = types.get("X")
    if x is None:
        return
    _check_numbers(context)
    elements = _element_types(types)
    _common_shape(_shaped(types, "data"))
    shapes = {"data": x, "parameter": _parameter_shape(context, inputs, types)}
    for i, name in enumerate(outputs[: context.get_num_outputs()]):
        quantity = QUANTITIES[name]
        result = onnx.TypeProto()
        result.tensor_type.elem_type = elements[quantity.type_constraint]
        like = shapes[quantity.shape]
        if like is not None and like.HasField("shape"):
            result.tensor_type.shape.CopyFrom(like.shape)
        context.set_output_type(i, result)


def _check_numbers(context: InferenceContext) -> None:
    """What the kernels refuse when a session is made."""
    for name, least in (("epsilon", 0.0), ("momentum", -math.inf)):
        attribute = context.get_attribute(name)
        if attribute is not None and not (math.isfinite(attribute.f) and attribute.f >= least):
            expected = "a finite number" + (" of 0 or more" if name == "epsilon" else "")
            raise onnx.shape_inference.InferenceError(f"{name} is {attribute.f}; expected {expected}")


def _element_types(types: Mapping[str, onnx.TypeProto.Tensor]) -> dict[str, int]:
    """The element type of T, T1 and T2, after ONNX's rule for BatchNormalization: the latter are T or float."""
    data = types["X"].elem_type
    computed = data if data == onnx.TensorProto.DOUBLE else onnx.TensorProto.FLOAT
    elements = {"T": data, "T1": computed, "T2": computed}
    for name, given in types.items():
        constraint = QUANTITIES[name].type_constraint
        if constraint in ("T1", "T2"):
            if given.elem_type not in (data, onnx.TensorProto.FLOAT):
                got, of_x = (onnx.TensorProto.DataType.Name(t).lower() for t in (given.elem_type, data))
                raise onnx.shape_inference.InferenceError(
                    f"{name} is {got}; expected float or {of_x}, the type of X"
                )
            elements[constraint] = given.elem_type
    return elements


def _parameter_shape(
    context: InferenceContext, inputs: list[str], types: Mapping[str, onnx.TypeProto.Tensor]
) -> onnx.TypeProto.Tensor | None:
    """A tensor type with the shape of a parameter; None where nothing tells it."""
    known = _shaped(types, "parameter")
    axes = context.get_input_data(inputs.index("axes"))
    if axes is not None and axes.data_type != onnx.TensorProto.INT64:
        got = onnx.TensorProto.DataType.Name(axes.data_type).lower()
        raise onnx.shape_inference.InferenceError(f"axes is {got}; expected int64")
    if axes is not None and types["X"].HasField("shape"):
        known["X without axes"] = _without(types["X"], onnx.numpy_helper.to_array(axes))
    return _common_shape(known)


def _shaped(types: Mapping[str, onnx.TypeProto.Tensor], kind: str) -> dict[str, onnx.TypeProto.Tensor]:
    """The inputs of one kind whose shape is known."""
    return {
        name: given for name, given in types.items() if QUANTITIES[name].shape == kind and given.HasField("shape")
    }


def _common_shape(known: Mapping[str, onnx.TypeProto.Tensor]) -> onnx.TypeProto.Tensor | None:
    """A tensor type with the shape that all have; None where there are none."""
    first = next(iter(known), None)
    if first is None:
        return None
    for name, given in known.items():
        one, other = _extents(known[first]), _extents(given)
        if not may_be_equal(one, other):
            raise onnx.shape_inference.InferenceError(
                f"{first} has the shape {shape_text(one)}, {name} {shape_text(other)}; expected one shape"
            )
    return known[first]


def _without(x: onnx.TypeProto.Tensor, axes: NDArray[np.int64]) -> onnx.TypeProto.Tensor:
    extents = x.shape.dim
    try:
        reduced = normalize_axes(axes, len(extents))
    except InputError as error:
        raise onnx.shape_inference.InferenceError(str(error)) from None
    result = onnx.TypeProto.Tensor()
    result.shape.dim.extend(extent for d, extent in enumerate(extents) if d not in reduced)
    result.shape.SetInParent()
    return result


def _extents(tensor: onnx.TypeProto.Tensor) -> KnownShape:
    return tuple(extent.dim_value if extent.HasField("dim_value") else None for extent in tensor.shape.dim)


register_schemas()
