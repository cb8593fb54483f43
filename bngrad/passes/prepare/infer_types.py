"""Infers types and shapes, including those that depend on ops without inference in onnx."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.nodes import all_nodes, describe
from bngrad.graph.subgraphs import proto_subgraphs, subgraphs
from bngrad.io.external_data import in_memory, with_small_tensors
from bngrad.io.limits import MAX_RANK
from bngrad.io.negative_dimensions import has_negative_dimension
from bngrad.passes.prepare.complete_types import INFERRED_AS, infer_outputs, untyped_nodes
from bngrad.passes.prepare.large_initializers import hidden_initializers, is_large
from bngrad.passes.prepare.long_vectors import may_have_long_vector
from bngrad.passes.prepare.stated_shapes import STATES_WRONG_SHAPES, infer_without_wrong_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_log = logging.getLogger(__name__)

CONTRADICTS = "bngrad.contradicts"
"""The key in a model's ``meta`` for whether the model contradicts the inferred types and shapes."""

_SHAPED_BY_FLOATS = ("Cast", "Range", "Resize", "Upsample")
"""Ops whose output, or its shape, may depend on the value of a float input."""


class InferTypesPass(ir.passes.InPlacePass):
    """Runs onnx's shape inference, with some ops unknown to onnx replaced by others meanwhile.

    Guarantees: the nodes do not change. Types and shapes that cannot be inferred stay as they are in the model.
    Stated shapes of intermediate values that contradict the inferred ones are replaced, unless the model
    contradicts itself without them, too: then all stay, and the model's ``meta`` records that under `CONTRADICTS`.
    Infers only the nodes without types if an earlier inference of the model succeeded, and that gives every type.
    Logs a failure: as a warning if an earlier inference of the model succeeded, else as information.
    onnx-ir's own pass is not used because it also deserializes the nodes and tensors, which takes half its time.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        if model.meta.get(CONTRADICTS) is False:
            untyped = untyped_nodes(model)
            if all(infer_outputs(node, model) for node in untyped):
                return ir.passes.PassResult(model, modified=bool(untyped))
        modified = _infer_types(model)
        while _rank_transposed(model):
            modified = True
            _infer_types(model)  # the values after them have a rank now
        return ir.passes.PassResult(model, modified=modified)


def _infer_types(model: ir.Model) -> bool:
    """Runs the inference once, and returns whether any type or shape changed."""
    replaced = [
        (node, (node.domain, node.op_type))
        for node in all_nodes(model)
        if (node.domain, node.op_type) in INFERRED_AS
    ]
    for node, op in replaced:
        node.domain, node.op_type = INFERRED_AS[op]
    try:
        with hidden_initializers(model.graph, _determines_no_shape):
            proto = ir.to_proto(with_small_tensors(model))
            inferred, contradicts = _infer(proto, data_prop=not may_have_long_vector(model))
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        ValueError,
        RuntimeError,
    ) as error:
        # The user's model may be beyond onnx; where an inference succeeded before, a pass broke the model.
        level = logging.WARNING if CONTRADICTS in model.meta else logging.INFO
        _log.log(level, "types cannot be inferred; the model keeps the types that it states: %s", error)
        return False
    finally:
        for node, op in replaced:
            node.domain, node.op_type = op
    model.meta[CONTRADICTS] = contradicts
    return _copy_types(model.graph, inferred.graph)


def infer_strictly(model: ir.Model) -> onnx.ModelProto | None:
    """Infers types as onnx's checker does, with one conversion and one inference.

    Returns:
        The model with the inferred types, and with its large initializers as inputs. None if only `InferTypesPass`
        can infer the types; some may be inferred then.
    """
    nodes = {(node.domain, node.op_type) for node in all_nodes(model)}
    # onnx may abort the process at a Slice; see `_infer`.
    if nodes & {*INFERRED_AS, ("", "Slice")} or model.producer_name in STATES_WRONG_SHAPES:
        return None
    data_prop = not may_have_long_vector(model)
    try:
        with hidden_initializers(model.graph, is_large):
            proto = ir.to_proto(in_memory(model))
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=data_prop)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError):
        return None  # `InferTypesPass` logs it
    model.meta[CONTRADICTS] = False
    _copy_types(model.graph, inferred.graph)
    return None if _rank_transposed(model) else inferred


def _rank_transposed(model: ir.Model) -> bool:
    """Gives a Transpose of data of unknown rank the rank of its permutation; returns whether there is one.

    PyTorch's exporter writes one after the packed projection of attention, whose Reshape has a computed shape.
    """
    changed = False
    for node in all_nodes(model):
        perm = node.attributes.get("perm") if (node.domain, node.op_type) == ("", "Transpose") else None
        if perm is None or perm.is_ref() or perm.type != ir.AttributeType.INTS:
            continue
        value = node.outputs[0]
        if value.shape is None and value.dtype is not None:
            value.shape, changed = ir.Shape([None] * len(perm.as_ints())), True
    return changed


def _infer(proto: onnx.ModelProto, *, data_prop: bool) -> tuple[onnx.ModelProto, bool]:
    """Returns a model with all types that can be inferred, and whether the model contradicts them.

    onnx aborts the process (a failed assertion) at a Slice of a value with an inferred size below 0. A model with
    Slices is therefore first inferred without them, and only so if that finds a size below 0.
    """
    slices = [node for node in _proto_nodes(proto.graph) if (node.domain, node.op_type) == ("", "Slice")]
    if slices:
        for node in slices:
            node.op_type = "NoSlice"
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=data_prop)
        for node in slices:
            node.op_type = "Slice"
        if any(dimension.dim_value < 0 for dimension in _proto_dimensions(inferred.graph)):
            return inferred, True
    strict = partial(onnx.shape_inference.infer_shapes, strict_mode=True)
    attempts = (strict, infer_without_wrong_shapes)
    for infer in attempts[proto.producer_name in STATES_WRONG_SHAPES :]:
        try:
            return infer(proto, data_prop=data_prop), False
        except onnx.shape_inference.InferenceError as error:
            _log.debug("%s", error)
    return onnx.shape_inference.infer_shapes(proto, data_prop=data_prop), True


def _proto_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields all nodes, including those of subgraphs."""
    for node in graph.node:
        yield node
        for subgraph in proto_subgraphs(node):
            yield from _proto_nodes(subgraph)


def _proto_dimensions(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yields the dimensions of all values, including those of subgraphs."""
    for info in (*graph.value_info, *graph.output):
        yield from info.type.tensor_type.shape.dim
    for node in graph.node:
        for subgraph in proto_subgraphs(node):
            yield from _proto_dimensions(subgraph)


def require_possible(model: ir.Model) -> None:
    """Raises an error if onnx infers an impossible shape.

    A size below 0 results from windows larger than their data. For a transposed convolution whose output_shape is
    smaller than the data, onnx omits the spatial dimensions.

    Raises:
        ModelError: A value has a size below 0.
        UnsupportedNodeError: The output of a transposed convolution has another rank than its data.
    """
    for node in all_nodes(model):
        if (node.domain, node.op_type) == ("", "ConvTranspose"):
            _require_same_rank(node)
        for value in node.outputs:
            if value.shape is not None and has_negative_dimension(value.shape):
                raise ModelError(
                    f"{describe(node)} is not valid: its output {value.name!r} has inferred shape {value.shape}; "
                    "expected sizes of 0 or more: windows that fit into their data"
                )


def _require_same_rank(node: ir.Node) -> None:
    x, y = (values[0] if values else None for values in (node.inputs, node.outputs))
    if x is None or y is None or x.shape is None or y.shape is None or len(x.shape) == len(y.shape):
        return
    raise UnsupportedNodeError(
        f"{describe(node)} is unsupported: its output {y.name!r} has inferred shape {y.shape}, its data "
        f"{len(x.shape)} dimensions; expected pads instead of an output_shape smaller than the data"
    )


def _copy_types(graph: ir.Graph, inferred: onnx.GraphProto, inputs: Sequence[ir.Value] = ()) -> bool:
    """Copies inferred types and shapes to the values of a graph and its subgraphs.

    Args:
        graph: The graph.
        inferred: The same graph after shape inference.
        inputs: The graph inputs whose types are inferred too, as those of a loop body.

    Returns:
        Whether any type or shape changed.
    """
    infos = {info.name: info.type for info in (*inferred.input, *inferred.value_info, *inferred.output)}
    modified = [_copy_type(value, infos[value.name]) for value in inputs if value.name in infos]
    for node, node_proto in zip(graph, inferred.node, strict=True):
        modified += [_copy_type(value, infos[value.name]) for value in node.outputs if value.name in infos]
        for subgraph, proto in zip(subgraphs(node), proto_subgraphs(node_proto), strict=True):
            modified.append(_copy_types(subgraph, proto, subgraph.inputs))
    return any(modified)


def _copy_type(value: ir.Value, proto: onnx.TypeProto) -> bool:
    """Copies the known parts of a type and shape to a value, and returns whether it changed.

    Raises:
        ModelError: The rank is beyond the limit, which only a constant shape can bring about.
    """
    before = value.type, value.shape
    if (rank := len(proto.tensor_type.shape.dim)) > MAX_RANK:
        raise ModelError(f"value {value.name!r} has {rank} dimensions; expected at most {MAX_RANK}")
    try:
        value.type = ir.serde.deserialize_type_proto_for_type(proto) or value.type
    except ir.serde.SerdeError:  # onnx copies a type that does not exist from an attribute
        return False
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    value.shape = value.shape if shape is None else shape
    return before != (value.type, value.shape)


def _determines_no_shape(initializer: ir.Value) -> bool:
    """Tests whether no shape depends on the values of an initializer."""
    return is_large(initializer) or (
        initializer.dtype in SUPPORTED_DTYPES
        and not any(node.op_type in _SHAPED_BY_FLOATS for node, _ in initializer.uses())
    )
