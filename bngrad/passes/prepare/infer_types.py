"""Types and shapes of all values, also of those behind ops that onnx infers nothing for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.nodes import all_nodes, describe
from bngrad.graph.subgraphs import proto_subgraphs, subgraphs
from bngrad.io.external_data import with_small_tensors
from bngrad.io.negative_dimensions import has_negative_extent
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.prepare.large_initializers import is_large, set_aside
from bngrad.passes.prepare.long_vectors import may_have_long_vector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_log = logging.getLogger(__name__)

_LIKE_FIRST_INPUT = {
    ("", "GroupNormalization"),
    *((MICROSOFT, op_type) for op_type in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")),
}
"""Forward ops whose output has the type and shape of the first input, which onnx does not know.

Giving it schemas is no way out: its reference evaluator takes no op type, such as Gelu, in two domains.
"""


CONTRADICTS = "bngrad.contradicts"
"""The key in a model's ``meta`` that says whether something in it contradicts what was inferred."""

_SHAPED_BY_FLOATS = ("Cast", "Range", "Resize", "Upsample")
"""Ops whose output has a shape, or is one, that a float among their inputs says."""


class InferTypesPass(ir.passes.InPlacePass):
    """Runs onnx's shape inference, in which the ops that it lacks take part as Identity.

    Guarantees: nodes are as before. What cannot be inferred, or contradicts what the model says, stays as it is;
    the model's ``meta`` has whether there is the latter, under `CONTRADICTS`.
    onnx-ir's pass of that purpose reads back the whole model, of which types alone are new: half its time.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        disguised = [
            (node, node.domain, node.op_type)
            for node in all_nodes(model)
            if (node.domain, node.op_type) in _LIKE_FIRST_INPUT
        ]
        for node, _, _ in disguised:
            node.domain, node.op_type = "", "Identity"
        try:
            with set_aside(model.graph, _says_no_shape):
                proto = ir.to_proto(with_small_tensors(model))
                inferred, contradicts = _infer(proto, data_prop=not may_have_long_vector(model))
        except (
            onnx.shape_inference.InferenceError,
            onnx.checker.ValidationError,
            ValueError,
            RuntimeError,
        ) as error:
            _log.info("types cannot be inferred, those that the model says stay: %s", error)
            return ir.passes.PassResult(model, modified=False)
        finally:
            for node, domain, op_type in disguised:
                node.domain, node.op_type = domain, op_type
        model.meta[CONTRADICTS] = contradicts
        return ir.passes.PassResult(model, modified=_take_types(model.graph, inferred.graph))


def _infer(proto: onnx.ModelProto, *, data_prop: bool) -> tuple[onnx.ModelProto, bool]:
    """A model with all types that can be inferred, and whether something in it contradicts them.

    A Slice of a value for which onnx infers an extent below 0 ends the process (an assertion of onnx's). So where
    there are Slices, inference first goes as far as it gets without them, and no further if it meets such a value.
    """
    slices = [node for node in _proto_nodes(proto.graph) if (node.domain, node.op_type) == ("", "Slice")]
    if slices:
        for node in slices:
            node.op_type = "NoSlice"
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=data_prop)
        for node in slices:
            node.op_type = "Slice"
        if any(extent.dim_value < 0 for extent in _proto_extents(inferred.graph)):
            return inferred, True
    try:
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=data_prop), False
    except onnx.shape_inference.InferenceError:
        return onnx.shape_inference.infer_shapes(proto, data_prop=data_prop), True


def _proto_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of subgraphs too."""
    for node in graph.node:
        yield node
        for subgraph in proto_subgraphs(node):
            yield from _proto_nodes(subgraph)


def _proto_extents(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """The extents of all values."""
    for info in (*graph.value_info, *graph.output):
        yield from info.type.tensor_type.shape.dim
    for node in graph.node:
        for subgraph in proto_subgraphs(node):
            yield from _proto_extents(subgraph)


def require_possible(model: ir.Model) -> None:
    """Sees to it that no value has an extent below 0, as onnx infers one behind windows larger than their data.

    Nor may a transposed convolution have another rank than its data: onnx leaves out the spatial dimensions where
    output_shape is smaller than the data.

    Raises:
        ModelError: There is one.
        UnsupportedNodeError: There is such a transposed convolution.
    """
    for node in all_nodes(model):
        if (node.domain, node.op_type) == ("", "ConvTranspose"):
            _require_rank_of_data(node)
        for value in node.outputs:
            if value.shape is not None and has_negative_extent(value.shape):
                raise ModelError(
                    f"{describe(node)} cannot be: onnx infers that {value.name!r} has the shape {value.shape}; "
                    "expected extents of 0 or more: windows that fit into their data"
                )


def _require_rank_of_data(node: ir.Node) -> None:
    x, y = (values[0] if values else None for values in (node.inputs, node.outputs))
    if x is None or y is None or x.shape is None or y.shape is None or len(x.shape) == len(y.shape):
        return
    raise UnsupportedNodeError(
        f"{describe(node)} cannot be: onnx infers that {y.name!r} has the shape {y.shape} from data with "
        f"{len(x.shape)} dimensions; expected pads instead of an output_shape smaller than the data"
    )


def _take_types(graph: ir.Graph, inferred: onnx.GraphProto, inputs: Sequence[ir.Value] = ()) -> bool:
    """Gives the values of a graph and its subgraphs the types and shapes of the same graph after inference.

    Args:
        graph: The graph.
        inferred: What inference made of it.
        inputs: Those of its inputs whose types are inferred too: a loop's body has them from the loop.
    """
    infos = {info.name: info.type for info in (*inferred.input, *inferred.value_info, *inferred.output)}
    modified = [_take_type(value, infos[value.name]) for value in inputs if value.name in infos]
    for node, node_proto in zip(graph, inferred.node, strict=True):
        modified += [_take_type(value, infos[value.name]) for value in node.outputs if value.name in infos]
        for subgraph, proto in zip(subgraphs(node), proto_subgraphs(node_proto), strict=True):
            modified.append(_take_types(subgraph, proto, subgraph.inputs))
    return any(modified)


def _take_type(value: ir.Value, proto: onnx.TypeProto) -> bool:
    """Gives a value a type and a shape, if they are known."""
    before = value.type, value.shape
    try:
        value.type = ir.serde.deserialize_type_proto_for_type(proto) or value.type
    except ir.serde.SerdeError:  # an attribute may name a type that there is none of, which onnx believes
        return False
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    value.shape = value.shape if shape is None else shape
    return before != (value.type, value.shape)


def _says_no_shape(initializer: ir.Value) -> bool:
    """Whether no shape depends on an initializer's numbers."""
    return is_large(initializer) or (
        initializer.dtype in SUPPORTED_DTYPES
        and not any(node.op_type in _SHAPED_BY_FLOATS for node, _ in initializer.uses())
    )
