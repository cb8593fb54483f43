"""ONNX schemas of the ops, for onnx's checker and shape inference.

Importing this module registers them with onnx. The inputs, outputs, attributes and documentation of an op are
those of its function in `functions`; `QUANTITIES` has the type and shape of each input and output by name.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import onnx
from onnx.defs import OpSchema

from bngrad.errors import InputError
from bngrad.opset import onnx_registry
from bngrad.opset.axes import normalize_axes
from bngrad.opset.functions import DOMAIN, FUNCTIONS, VERSION
from bngrad.opset.known_shapes import may_be_equal, shape_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from onnx.shape_inference import InferenceContext

    from bngrad.opset.known_shapes import KnownShape


class Quantity(NamedTuple):
    """An input or output of the ops."""

    type_constraint: str
    shape: Literal["data", "parameter", "axes", "coefficients"]
    doc: str


COEFFICIENTS = 9
"""The number of coefficients of AdamUpdate."""

_LIKE_X = "; has the shape of X"
_LIKE_WEIGHT = "; has the shape of weight"
_LIKE_SCALE = "; has the shape of X without the reduction axes"

QUANTITIES: dict[str, Quantity] = {
    "X": Quantity("T", "data", "Input of the forward pass, of rank 1 to 8"),
    "Y": Quantity("T", "data", "The normalized, scaled and shifted X" + _LIKE_X),
    "dY": Quantity("T", "data", "Gradient with respect to Y" + _LIKE_X),
    "dX": Quantity("T", "data", "Gradient with respect to X" + _LIKE_X),
    "Z": Quantity("T", "data", "relu(Y)" + _LIKE_X),
    "dZ": Quantity("T", "data", "Gradient with respect to Z" + _LIKE_X),
    "ddX": Quantity("T", "data", "Gradient with respect to dX" + _LIKE_X),
    "d_dY": Quantity("T", "data", "Gradient with respect to dY" + _LIKE_X),
    "d_X": Quantity("T", "data", "Gradient with respect to X, through the first gradients" + _LIKE_X),
    "scale": Quantity("T1", "parameter", "Multiplies the normalized X" + _LIKE_SCALE),
    "bias": Quantity("T1", "parameter", "Added after scaling" + _LIKE_SCALE),
    "dscale": Quantity("T1", "parameter", "Gradient with respect to scale" + _LIKE_SCALE),
    "dbias": Quantity("T1", "parameter", "Gradient with respect to bias" + _LIKE_SCALE),
    "ddscale": Quantity("T1", "parameter", "Gradient with respect to dscale" + _LIKE_SCALE),
    "ddbias": Quantity("T1", "parameter", "Gradient with respect to dbias" + _LIKE_SCALE),
    "d_scale": Quantity(
        "T1", "parameter", "Gradient with respect to scale, through the first gradients" + _LIKE_SCALE
    ),
    "mean": Quantity("T2", "parameter", "Mean that is subtracted from X" + _LIKE_SCALE),
    "inv_std": Quantity("T2", "parameter", "1 / sqrt(variance + epsilon), not the variance itself" + _LIKE_SCALE),
    "saved_mean": Quantity("T2", "parameter", "Mean of this batch" + _LIKE_SCALE),
    "saved_inv_std": Quantity("T2", "parameter", "1 / sqrt(variance of this batch + epsilon)" + _LIKE_SCALE),
    "running_mean": Quantity("T2", "parameter", "Running mean before this step" + _LIKE_SCALE),
    "running_var": Quantity("T2", "parameter", "Running variance before this step" + _LIKE_SCALE),
    "new_running_mean": Quantity("T2", "parameter", "Running mean after this step" + _LIKE_SCALE),
    "new_running_var": Quantity("T2", "parameter", "Running variance after this step" + _LIKE_SCALE),
    "weight": Quantity("W", "data", "Weight before this step, of any shape"),
    "gradient": Quantity("W", "data", "Gradient with respect to weight" + _LIKE_WEIGHT),
    "exp_avg": Quantity("W", "data", "Moving average of the gradient before this step" + _LIKE_WEIGHT),
    "exp_avg_sq": Quantity("W", "data", "Moving average of the squared gradient before this step" + _LIKE_WEIGHT),
    "new_weight": Quantity("W", "data", "Weight after this step" + _LIKE_WEIGHT),
    "new_exp_avg": Quantity("W", "data", "Moving average of the gradient after this step" + _LIKE_WEIGHT),
    "new_exp_avg_sq": Quantity(
        "W", "data", "Moving average of the squared gradient after this step" + _LIKE_WEIGHT
    ),
    "coefficients": Quantity(
        "tensor(double)",
        "coefficients",
        "gradient_scale, l2_penalty, weight_factor, 1 - beta1, beta2, 1 - beta2, step_size, "
        "sqrt_bias_correction2 and epsilon, of shape [9]",
    ),
    "axes": Quantity(
        "tensor(int64)", "axes", "The dimensions to reduce: 1-D, each in [-rank, rank), without duplicates"
    ),
}
"""All inputs and outputs of the ops, by name. A gradient is that of the loss."""

ATTRIBUTES: dict[str, str] = {
    "training_mode": "1: mean and inv_std are functions of X; 0: they are constants (frozen statistics)",
    "epsilon": "Added to the variance before its square root",
    "momentum": "Weight of the old running value",
    "unbiased_running_var": "Whether to apply Bessel's correction, M / max(M - 1, 1), to the running variance",
}
"""The documentation of the attributes of the ops, by name."""

_FLOATS = ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"]
_TYPE_CONSTRAINTS = {
    "T": (_FLOATS, "Type of the data"),
    "T1": (_FLOATS, "Type of scale and bias and their gradients: T or float"),
    "T2": (_FLOATS, "Type of the statistics: T or float"),
    "W": (_FLOATS[:2], "Type of the weight, its gradient and its moving averages"),
}
_ATTR_TYPES = {"int": OpSchema.AttrType.INT, "float": OpSchema.AttrType.FLOAT}


def schema(name: str) -> OpSchema:
    """Returns the schema of an op of the domain.

    Args:
        name: A key of `bngrad.opset.functions.FUNCTIONS`.
    """
    inputs, outputs, attributes = signature(name)
    used = [QUANTITIES[q].type_constraint for q in inputs + outputs]
    result = OpSchema(
        name,
        DOMAIN,
        VERSION,
        doc=inspect.cleandoc(FUNCTIONS[name].function.__doc__ or ""),
        inputs=[_formal_parameter(q) for q in inputs],
        # A node may omit all outputs except the first.
        outputs=[_formal_parameter(q, optional=i > 0) for i, q in enumerate(outputs)],
        type_constraints=[(t, types, doc) for t, (types, doc) in _TYPE_CONSTRAINTS.items() if t in used],
        attributes=[
            OpSchema.Attribute(a, _ATTR_TYPES[kind], ATTRIBUTES[a], required=True)
            for a, kind in attributes.items()
        ],
    )
    result.set_type_and_shape_inference_function(lambda context: _infer(context, name))
    return result


def signature(name: str) -> tuple[list[str], list[str], dict[str, str]]:
    """Returns the names of an op's inputs and outputs, and the types of its attributes (``int`` or ``float``)."""
    function = FUNCTIONS[name].function_ir
    attributes = {attribute: function.attributes[attribute].type.name.lower() for attribute in function.attributes}
    return [str(v.name) for v in function.inputs], [str(v.name) for v in function.outputs], attributes


def main_input(name: str) -> str:
    """Returns the input of an op whose shape all its data have: X of a batch norm, the weight of an update."""
    inputs = signature(name)[0]
    return "X" if "X" in inputs else inputs[0]


def register_schemas() -> None:
    """Registers all ops of the domain with onnx; a second call has no effect."""
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


def _infer(context: InferenceContext, op: str) -> None:
    """Infers the types of the outputs, for any op.

    Data outputs have the shape of the main input. Parameters have the shape of the other parameters, or that of X
    without the axes. The element type is that of the inputs with the same type constraint; if there are none, as
    for the statistics of X alone, it is the type that the op computes in.
    """
    inputs, outputs, _ = signature(op)
    types = {
        name: type_proto.tensor_type
        for i, name in enumerate(inputs)
        if i < context.get_num_inputs() and (type_proto := context.get_input_type(i)) is not None
    }
    x = types.get(main_input(op))
    if x is None:
        return
    _check_numbers(context)
    _check_coefficients(types)
    elements = _element_types(types, x.elem_type)
    _common_shape(_shaped(types, "data"))
    shapes = {"data": x, "parameter": _parameter_shape(context, inputs, types) if "axes" in inputs else None}
    for i, name in enumerate(outputs[: context.get_num_outputs()]):
        quantity = QUANTITIES[name]
        result = onnx.TypeProto()
        result.tensor_type.elem_type = elements[quantity.type_constraint]
        like = shapes[quantity.shape]
        if like is not None and like.HasField("shape"):
            result.tensor_type.shape.CopyFrom(like.shape)
        context.set_output_type(i, result)


def _check_numbers(context: InferenceContext) -> None:
    """Checks the attributes that the kernels check when a session is created."""
    for name, least in (("epsilon", 0.0), ("momentum", -math.inf)):
        attribute = context.get_attribute(name)
        if attribute is not None and not (math.isfinite(attribute.f) and attribute.f >= least):
            expected = "a finite number" + (" of 0 or more" if name == "epsilon" else "")
            raise onnx.shape_inference.InferenceError(f"{name} is {attribute.f}; expected {expected}")


def _check_coefficients(types: Mapping[str, onnx.TypeProto.Tensor]) -> None:
    for name, tensor in _shaped(types, "coefficients").items():
        got = _sizes(tensor)
        if not may_be_equal(got, (COEFFICIENTS,)):
            raise onnx.shape_inference.InferenceError(
                f"{name} has shape {shape_text(got)}; expected [{COEFFICIENTS}]"
            )


def _element_types(types: Mapping[str, onnx.TypeProto.Tensor], data: int) -> dict[str, int]:
    """Returns the element types of all type variables; as in ONNX's BatchNormalization, T1 and T2 are T or float.

    Args:
        types: The types of the inputs.
        data: The element type of the main input.
    """
    computed = data if data == onnx.TensorProto.DOUBLE else onnx.TensorProto.FLOAT
    elements = {"T": data, "W": data, "T1": computed, "T2": computed}
    for name, tensor in types.items():
        constraint = QUANTITIES[name].type_constraint
        if constraint in ("T1", "T2"):
            if tensor.elem_type not in (data, onnx.TensorProto.FLOAT):
                got, x_type = (onnx.TensorProto.DataType.Name(t).lower() for t in (tensor.elem_type, data))
                raise onnx.shape_inference.InferenceError(
                    f"{name} is {got}; expected float or {x_type}, the type of X"
                )
            elements[constraint] = tensor.elem_type
    return elements


def _parameter_shape(
    context: InferenceContext, inputs: list[str], types: Mapping[str, onnx.TypeProto.Tensor]
) -> onnx.TypeProto.Tensor | None:
    """Returns a tensor type with the shape of the parameters; None if it is unknown."""
    known = _shaped(types, "parameter")
    axes = context.get_input_data(inputs.index("axes"))
    if axes is not None and axes.data_type != onnx.TensorProto.INT64:
        got = onnx.TensorProto.DataType.Name(axes.data_type).lower()
        raise onnx.shape_inference.InferenceError(f"axes is {got}; expected int64")
    if axes is not None and types["X"].HasField("shape"):
        known["X without axes"] = _without(types["X"], onnx.numpy_helper.to_array(axes))
    return _common_shape(known)


def _shaped(types: Mapping[str, onnx.TypeProto.Tensor], kind: str) -> dict[str, onnx.TypeProto.Tensor]:
    """Returns the inputs of one kind whose shape is known."""
    return {
        name: tensor
        for name, tensor in types.items()
        if QUANTITIES[name].shape == kind and tensor.HasField("shape")
    }


def _common_shape(known: Mapping[str, onnx.TypeProto.Tensor]) -> onnx.TypeProto.Tensor | None:
    """Checks that all shapes may be equal, and returns a tensor type with that shape; None if there are none."""
    first = next(iter(known), None)
    if first is None:
        return None
    for name, tensor in known.items():
        one, other = _sizes(known[first]), _sizes(tensor)
        if not may_be_equal(one, other):
            raise onnx.shape_inference.InferenceError(
                f"{first} has shape {shape_text(one)} and {name} {shape_text(other)}; expected equal shapes"
            )
    return known[first]


def _without(x: onnx.TypeProto.Tensor, axes: NDArray[np.int64]) -> onnx.TypeProto.Tensor:
    dims = x.shape.dim
    try:
        reduced = normalize_axes(axes, len(dims))
    except InputError as error:
        raise onnx.shape_inference.InferenceError(str(error)) from None
    result = onnx.TypeProto.Tensor()
    result.shape.dim.extend(dim for d, dim in enumerate(dims) if d not in reduced)
    result.shape.SetInParent()
    return result


def _sizes(tensor: onnx.TypeProto.Tensor) -> KnownShape:
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)


register_schemas()
