"""ORT's training dialect: the ops of ONNX Runtime's gradient builder that stock onnx and ONNX Runtime do not have.

Importing this module registers schemas with onnx for the ops that shape inference needs, because they are in the
forward part of a training graph, and for those in the default domain, where onnx's checker rejects unknown ops.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import onnx
from onnx.defs import OpSchema

from bngrad.opset import onnx_registry
from bngrad.opset.stock_ops import MICROSOFT_OPS

if TYPE_CHECKING:
    from onnx.shape_inference import InferenceContext

MICROSOFT = "com.microsoft"
_ONNX = ("", "ai.onnx.ml")

BATCH_NORM_INTERNAL = (MICROSOFT, "BatchNormInternal")
"""(X, scale, bias, running_mean, running_var) -> (Y, running_mean, running_var, saved_mean, saved_inv_std)."""

BATCH_NORM_GRAD = (MICROSOFT, "BatchNormalizationGrad")
"""(dY, X, scale, saved_mean, saved_inv_std) -> (dX, dscale, dbias).

ORT's own schema names input 4 ``variance``; its builder connects, and its kernel takes, 1 / sqrt(var + eps).
"""

TYPED_MATMUL_NBITS = (MICROSOFT, "TypedMatMulNBits")
"""The name of stock ONNX Runtime's MatMulNBits while types are inferred.

With a schema of that op itself, onnx's checker would refuse the attributes of newer releases.
"""

_TYPES = [("T", ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"], "Data")]
_POOL_ATTRIBUTES = {
    "auto_pad": OpSchema.AttrType.STRING,
    "ceil_mode": OpSchema.AttrType.INT,
    "count_include_pad": OpSchema.AttrType.INT,
    "dilations": OpSchema.AttrType.INTS,
    "kernel_shape": OpSchema.AttrType.INTS,
    "pads": OpSchema.AttrType.INTS,
    "storage_order": OpSchema.AttrType.INT,
    "strides": OpSchema.AttrType.INTS,
}


def register_schemas() -> None:
    """Registers the schemas with onnx; a second call has no effect."""
    onnx_registry.register(_schemas())


@cache
def stock_ops() -> frozenset[tuple[str, str]]:
    """Returns (domain, op type) of all ops of stock ONNX Runtime.

    These are the ops that the installed ONNX Runtime lists. A training build does not list its ops; for it, they
    are the ops that onnx defines and `MICROSOFT_OPS`.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as ort  # noqa: PLC0415 - slow to import

    if list_ops := getattr(ort, "get_all_operator_schema", None):
        return frozenset((schema.domain, schema.name) for schema in list_ops())
    training_ops = {(schema.domain, schema.name) for schema in _schemas()}
    defined = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas() if schema.domain in _ONNX}
    return frozenset(defined - training_ops | {(MICROSOFT, name) for name in MICROSOFT_OPS})


def _schemas() -> list[OpSchema]:
    float_attribute, int_attribute = OpSchema.AttrType.FLOAT, OpSchema.AttrType.INT
    internal = _schema(
        *BATCH_NORM_INTERNAL,
        inputs=["X", "scale", "bias", "running_mean", "running_var"],
        outputs=["Y", "new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"],
        attributes={"epsilon": float_attribute, "momentum": float_attribute, "training_mode": int_attribute},
    )
    internal.set_type_and_shape_inference_function(_infer_batch_norm_internal)
    concat = _schema(
        MICROSOFT,
        "ConcatTraining",
        inputs=["*inputs"],
        outputs=["Y", "#per_input_length"],
        attributes={"axis": int_attribute},
    )
    concat.set_type_and_shape_inference_function(_infer_concat_training)
    max_pool = _schema("", "MaxPoolGrad", inputs=["dY", "#indices"], outputs=["dX"], attributes=_POOL_ATTRIBUTES)
    average_pool = _schema("", "AveragePoolGrad", inputs=["dY"], outputs=["dX"], attributes=_POOL_ATTRIBUTES)
    nbits = _schema(*TYPED_MATMUL_NBITS, inputs=["*inputs"], outputs=["Y"], attributes={"N": int_attribute})
    nbits.set_type_and_shape_inference_function(_infer_matmul_nbits)
    norm = _schema(
        "",
        "SimplifiedLayerNormalization",
        inputs=["X", "scale"],
        outputs=["Y", "inv_std"],
        attributes={"axis": int_attribute, "epsilon": float_attribute, "stash_type": int_attribute},
    )
    norm.set_type_and_shape_inference_function(_infer_like_data)
    return [internal, concat, max_pool, average_pool, nbits, norm]


def _schema(
    domain: str, name: str, *, inputs: list[str], outputs: list[str], attributes: dict[str, OpSchema.AttrType]
) -> OpSchema:
    """Creates a schema; the prefix * of a name means variadic, and # means int64."""
    return OpSchema(
        name,
        domain,
        1,
        doc="Emitted by ONNX Runtime's gradient builder.",
        inputs=[_formal_parameter(parameter) for parameter in inputs],
        outputs=[_formal_parameter(parameter, optional=i > 0) for i, parameter in enumerate(outputs)],
        type_constraints=_TYPES,
        attributes=[OpSchema.Attribute(a, kind, required=False) for a, kind in attributes.items()],
    )


def _formal_parameter(name: str, *, optional: bool = False) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption
    kind = option.Variadic if name.startswith("*") else option.Optional if optional else option.Single
    type_name = "tensor(int64)" if name.startswith("#") else "T"
    return OpSchema.FormalParameter(name.lstrip("*#"), type_name, param_option=kind)


def _infer_batch_norm_internal(context: InferenceContext) -> None:
    for output in range(context.get_num_outputs()):
        like = context.get_input_type(0 if output == 0 else 1)
        if like is not None:
            context.set_output_type(output, like)


def _infer_like_data(context: InferenceContext) -> None:
    like = context.get_input_type(0)
    if like is not None:
        context.set_output_type(0, like)


def _infer_concat_training(context: InferenceContext) -> None:
    """Infers the output's shape: sizes along the axis are added up, all other dimensions are the first input's."""
    types = [context.get_input_type(i) for i in range(context.get_num_inputs())]
    if context.get_num_outputs() > 1:
        lengths = onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, [len(types)])
        context.set_output_type(1, lengths)
    axis_attribute = context.get_attribute("axis")
    if axis_attribute is None or not types or any(t is None for t in types):
        return
    result = onnx.TypeProto()
    result.CopyFrom(types[0])
    if not all(t.tensor_type.HasField("shape") for t in types):
        result.tensor_type.ClearField("shape")
        context.set_output_type(0, result)
        return
    dims = result.tensor_type.shape.dim
    if any(len(t.tensor_type.shape.dim) != len(dims) for t in types) or not dims:
        return
    axis = axis_attribute.i % len(dims)
    along = [t.tensor_type.shape.dim[axis] for t in types]
    dims[axis].Clear()
    if all(dim.HasField("dim_value") for dim in along):
        dims[axis].dim_value = sum(dim.dim_value for dim in along)
    context.set_output_type(0, result)


def _infer_matmul_nbits(context: InferenceContext) -> None:
    data, rows = context.get_input_type(0), context.get_attribute("N")
    result = onnx.TypeProto()
    if data is not None:
        result.CopyFrom(data)
    if result.tensor_type.shape.dim and rows is not None:
        result.tensor_type.shape.dim[-1].Clear()
        result.tensor_type.shape.dim[-1].dim_value = rows.i
    context.set_output_type(0, result)


register_schemas()
