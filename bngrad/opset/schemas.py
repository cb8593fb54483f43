"""ONNX schemas of the ops, for onnx's checker and shape inference.

Importing this module registers them with onnx. The inputs, outputs, attributes and documentation of an op are
those of its function in `functions`; `quantities` has the type and shape of each input and output by name.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING

import onnx
from onnx.defs import OpSchema

from bngrad.errors import InputError
from bngrad.opset import onnx_registry
from bngrad.opset.axes import normalize_axes
from bngrad.opset.functions import DOMAIN, FUNCTIONS, VERSION
from bngrad.opset.known_shapes import may_be_equal, shape_text
from bngrad.opset.quantities import ATTRIBUTES, COEFFICIENTS, FLOAT_TYPES, QUANTITIES, ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from onnx.shape_inference import InferenceContext

    from bngrad.opset.known_shapes import KnownShape


_TYPE_CONSTRAINTS = {
    "T": (FLOAT_TYPES, "Type of the data"),
    "T1": (FLOAT_TYPES, "Type of scale and bias and their gradients: T or float"),
    "T2": (FLOAT_TYPES, "Type of the statistics: T or float"),
    "W": (FLOAT_TYPES[:2], "Type of the weight, its gradient and its moving averages"),
}
_ATTR_TYPES = {
    "int": OpSchema.AttrType.INT,
    "float": OpSchema.AttrType.FLOAT,
    "string": OpSchema.AttrType.STRING,
}


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
    """Returns the names of an op's inputs and outputs, and the types of its attributes.

    An attribute is an ``int``, a ``float`` or a ``string``.
    """
    function = FUNCTIONS[name].function_ir
    attributes = {attribute: function.attributes[attribute].type.name.lower() for attribute in function.attributes}
    return [str(v.name) for v in function.inputs], [str(v.name) for v in function.outputs], attributes


def main_input(name: str) -> str:
    """Returns the input of an op whose shape all its data have: X of a batch norm, the weight of an update.

    An op without data has the shape of its running statistics.
    """
    inputs = signature(name)[0]
    return next((main for main in ("X", "running_mean") if main in inputs), inputs[0])


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
    for BatchNormalizationStatistics, it is the type that the op computes in.
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
    elements = _element_types(types, x.elem_type)
    _common_shape(_shaped(types, "data"))
    parameter = _parameter_shape(context, inputs, types)
    _check_fixed_shapes(types, parameter)
    shapes = {"data": x, "parameter": parameter, **_shapes_of_exchanges(x, parameter)}
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


def _check_fixed_shapes(
    types: Mapping[str, onnx.TypeProto.Tensor], parameter: onnx.TypeProto.Tensor | None
) -> None:
    """Checks the inputs that are neither data nor parameters."""
    channels = _channels(parameter)
    expected: dict[str, KnownShape] = {
        "coefficients": (COEFFICIENTS,),
        "scalar": (),
        **{f"gathered_{kind}": (None, rows, channels) for kind, rows in ROWS.items()},
    }
    for kind, want in expected.items():
        for name, tensor in _shaped(types, kind).items():
            got = _sizes(tensor)
            if not may_be_equal(got, want):
                raise onnx.shape_inference.InferenceError(
                    f"{name} has shape {shape_text(got)}; expected {shape_text(want)}"
                )


def _shapes_of_exchanges(
    data: onnx.TypeProto.Tensor, parameter: onnx.TypeProto.Tensor | None
) -> dict[str, onnx.TypeProto.Tensor]:
    """Returns tensor types with the shapes of what ranks exchange, by kind."""
    channels = _channels(parameter)
    shapes = {kind: _tensor_type((rows, channels)) for kind, rows in ROWS.items()}
    gathered = onnx.TypeProto.Tensor()
    if data.HasField("shape"):
        gathered.shape.dim.add()  # the number of ranks
        gathered.shape.dim.extend(data.shape.dim)
    return {**shapes, "gathered": gathered, "scalar": _tensor_type(())}


def _channels(parameter: onnx.TypeProto.Tensor | None) -> int | None:
    """Returns the number of channels, if it is known."""
    sizes = (None,) if parameter is None or not parameter.HasField("shape") else _sizes(parameter)
    return None if None in sizes else math.prod(size for size in sizes if isinstance(size, int))


def _tensor_type(shape: KnownShape) -> onnx.TypeProto.Tensor:
    result = onnx.TypeProto.Tensor()
    result.shape.SetInParent()
    for size in shape:
        dim = result.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
    return result


def _element_types(types: Mapping[str, onnx.TypeProto.Tensor], data: int) -> dict[str, int]:
    """Returns the element types of all type variables; as in ONNX's BatchNormalization, T1 and T2 are T or float.

    Args:
        types: The types of the inputs.
        data: The element type of the main input.
    """
    computed = data if data == onnx.TensorProto.DOUBLE else onnx.TensorProto.FLOAT
    elements = {
        "T": data,
        "W": data,
        "T1": computed,
        "T2": computed,
        "tensor(double)": onnx.TensorProto.DOUBLE,
    }
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
    shaped = _shaped(types, "parameter")
    axes = context.get_input_data(inputs.index("axes")) if "axes" in inputs else None
    if axes is not None and axes.data_type != onnx.TensorProto.INT64:
        got = onnx.TensorProto.DataType.Name(axes.data_type).lower()
        raise onnx.shape_inference.InferenceError(f"axes is {got}; expected int64")
    if axes is not None and types["X"].HasField("shape"):
        shaped["X without axes"] = _without(types["X"], onnx.numpy_helper.to_array(axes))
    return _common_shape(shaped)


def _shaped(types: Mapping[str, onnx.TypeProto.Tensor], kind: str) -> dict[str, onnx.TypeProto.Tensor]:
    """Returns the inputs of one kind whose shape is known."""
    return {
        name: tensor
        for name, tensor in types.items()
        if QUANTITIES[name].shape == kind and tensor.HasField("shape")
    }


def _common_shape(types: Mapping[str, onnx.TypeProto.Tensor]) -> onnx.TypeProto.Tensor | None:
    """Checks that all shapes may be equal, and returns a tensor type with that shape; None if there are none."""
    first = next(iter(types), None)
    if first is None:
        return None
    for name, tensor in types.items():
        expected, other = _sizes(types[first]), _sizes(tensor)
        if not may_be_equal(expected, other):
            raise onnx.shape_inference.InferenceError(
                f"{first} has shape {shape_text(expected)} and {name} {shape_text(other)}; expected equal shapes"
            )
    return types[first]


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
