"""Infers the types of new nodes, one by one, in a model whose other types are known.

The inference of a whole model serializes it twice. Passes add few nodes whose types they do not know.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from bngrad.graph.constant_value import constant_tensor
from bngrad.graph.subgraphs import nodes_of, subgraphs
from bngrad.io.negative_dimensions import has_negative_dimension
from bngrad.opset.ort_dialect import MICROSOFT, TYPED_MATMUL_NBITS

LIKE_FIRST_INPUT = {
    ("", "GroupNormalization"),
    ("bngrad.autodiff", "StopGradient"),
    *((MICROSOFT, op_type) for op_type in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "Scale")),
}
"""Ops that onnx cannot infer, whose output has the type and shape of the first input.

Registering schemas for them does not work: onnx's reference evaluator does not support an op type, such as Gelu,
in two domains.
"""

INFERRED_AS = {**dict.fromkeys(LIKE_FIRST_INPUT, ("", "Identity")), (MICROSOFT, "MatMulNBits"): TYPED_MATMUL_NBITS}
"""The op that stands for one that onnx cannot infer, while it infers."""

_FAILURES = (
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    ir.serde.SerdeError,
)
"""The errors of onnx besides Python's own; an opset beyond 32 bits is a TypeError."""

_SMALL = 64
"""The largest constants whose values inference gets: axes, pads and similar."""


def untyped_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes of the main graph and its subgraphs with an output of unknown type, rank or dimension."""
    return [node for node in nodes_of(model.graph) if not _is_typed(node)]


def _is_typed(node: ir.Node) -> bool:
    return all(_is_known(value) for value in node.outputs if value.name)


def _is_known(value: ir.Value) -> bool:
    if value.dtype is None or value.shape is None:
        return False
    return all(isinstance(size, int) or size.value is not None for size in value.shape)


def infer_outputs(node: ir.Node, model: ir.Model) -> bool:
    """Infers the types of the outputs of a node from those of its inputs.

    Returns:
        Whether all are known now. Else the whole model has to be inferred, which also propagates the values of
        shapes that nodes compute.
    """
    inputs = {str(value.name): value for value in node.inputs if value is not None}
    has_graph = node.op_identifier() in model.functions or any(True for _ in subgraphs(node))
    if has_graph or not all(map(_can_be_read, inputs.values())):
        return False
    if (node.domain, node.op_type) in LIKE_FIRST_INPUT and node.inputs and node.inputs[0] is not None:
        node.outputs[0].type, node.outputs[0].shape = node.inputs[0].type, node.inputs[0].shape
        return _is_typed(node)
    try:
        constants = {name: small_constant(value) for name, value in inputs.items()}
        types = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, model.opset_imports.get(node.domain, 1), node.domain),
            ir.to_proto(node),
            {name: ir.serde.serialize_value(value).type for name, value in inputs.items()},
            {name: tensor for name, tensor in constants.items() if tensor is not None},
            opset_imports=[onnx.helper.make_opsetid(*domain) for domain in model.opset_imports.items()],
            ir_version=model.ir_version,
        )
        for value in node.outputs:
            if value.name in types and not _is_known(value):
                value.type = ir.serde.deserialize_type_proto_for_type(types[value.name])
                value.shape = ir.serde.deserialize_type_proto_for_shape(types[value.name])
    except (*_FAILURES, OSError, RuntimeError, TypeError, ValueError):
        return False  # the inference of the whole model reports the reason
    return _is_typed(node)


def _can_be_read(value: ir.Value) -> bool:
    """Tests whether a value has a type, and no size below 0, at which onnx may abort the process."""
    return value.type is not None and (value.shape is None or not has_negative_dimension(value.shape))


def small_constant(value: ir.Value) -> onnx.TensorProto | None:
    """The tensor of a small value that is the same in every run, such as axes; None for other values.

    Raises:
        OSError, ValueError: It is external data that cannot be read.
    """
    tensor = None if value.is_graph_input() else constant_tensor(value)
    return None if tensor is None or tensor.size > _SMALL else ir.serde.serialize_tensor(tensor)
