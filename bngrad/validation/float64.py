"""Runs a small model in float64, with onnx's reference evaluator and the ops of `training_ops`.

In float64 two correct graphs agree to about 1e-12, so what is left between an original and its rewrite is a
mistake and not rounding. It is NumPy: for models of the digits network's size, not for ResNet-50.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError
from onnx.reference.ops import load_op
from onnx_ir.passes.common import InlinePass

from bngrad.errors import InputError, UnsupportedNodeError
from bngrad.validation.training_ops import FUNCTIONS, OP_RUNS, attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    Array = NDArray[Any]

_TYPE_ATTRIBUTES = {
    "Bernoulli": "dtype",
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}
"""The attribute by which an op of ONNX names an element type."""

_FLOAT_BY_DEFAULT = {
    *("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"),
    *("RandomNormal", "RandomUniform", "SequenceEmpty"),
}
"""Those that make float32 when the attribute is absent."""

_STATIC_INPUT = {("", "AveragePoolGrad"), ("", "MaxPoolGrad")}
"""Ops that read their output's extents from its static type."""


def evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> dict[str, Array]:
    """Runs a model in float64.

    Args:
        model: A model of ONNX ops, of ops that ORT's gradient builder writes, and of ops whose functions it
            carries; those are run as their functions.
        feeds: The inputs that have no default, and any of the others; float32 arrays are widened.
        outputs: Names of the values to return, inner ones too; all graph outputs if None.

    Returns:
        The values by name.

    Raises:
        UnsupportedNodeError: An op, or one of its attributes, that has no implementation here.
        InputError: ``feeds`` lacks an input or has one too many, or there is no such output.
    """
    wide = _widened(model)
    for index, node in enumerate(wide.graph.all_nodes()):
        _name_absent_outputs(node, f"bngrad/absent/{index}")
        _make_input_extent_explicit(node)
    _refuse_unknown_ops(wide)
    _check_names(wide.graph, feeds, outputs)
    names = [_name(value) for value in wide.graph.outputs] if outputs is None else list(outputs)
    evaluator = ReferenceEvaluator(ir.to_proto(wide), new_ops=OP_RUNS)
    with np.errstate(all="ignore"):  # infinities and NaN are results, as they are in ONNX Runtime
        results = evaluator.run(names, {name: _widen_array(array) for name, array in feeds.items()})
    return dict(zip(names, results, strict=True))


def to_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of the model in which double has taken the place of float32, wherever that is written.

    That is in initializers, constants, types of values, and attributes that name a type, in subgraphs too.
    Attributes that are numbers, such as epsilon, keep their value, rounded to float32 as ONNX stores it. Model
    functions are inlined first: a body's constants may depend on the call. Other types stay.
    """
    return ir.to_proto(_widened(model))


def _widened(model: onnx.ModelProto) -> ir.Model:
    result = ir.from_proto(model)
    InlinePass()(result)
    for graph in result.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            _widen_value(value)
        for node in graph:
            _widen_node(node)
            for value in node.outputs:
                _widen_value(value)
    return result


def _widen_value(value: ir.Value) -> None:
    if value.const_value is not None:
        value.const_value = _widen_tensor(value.const_value)
    if value.type is not None:
        value.type = _widen_type(value.type)


def _widen_type(type_: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        return type(type_)(_widen_type(type_.elem_type))
    if isinstance(type_, ir.TensorType | ir.SparseTensorType) and type_.dtype == ir.DataType.FLOAT:
        return type(type_)(ir.DataType.DOUBLE)
    return type_


def _widen_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype != ir.DataType.FLOAT:
        return tensor
    return ir.tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_array(array: Array) -> Array:
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _widen_node(node: ir.Node) -> None:
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR:
            _set(node, ir.AttrTensor(attribute.name, _widen_tensor(attribute.as_tensor())))
    if node.domain != "":
        return
    if node.op_type == "Constant":
        for name in ("value_float", "value_floats"):
            if name in node.attributes:
                # The float32 that ONNX stores, not the decimal that it came from.
                number = np.asarray(node.attributes.pop(name).value, np.float32).astype(np.float64)
                _set(node, ir.AttrTensor("value", ir.tensor(number)))
    elif node.op_type == "ConstantOfShape" and "value" not in node.attributes:
        _set(node, ir.AttrTensor("value", ir.tensor(np.zeros(1))))
    elif node.op_type in _TYPE_ATTRIBUTES:
        name = _TYPE_ATTRIBUTES[node.op_type]
        default = ir.DataType.FLOAT if node.op_type in _FLOAT_BY_DEFAULT else None
        if node.attributes.get_int(name, default) == ir.DataType.FLOAT:
            _set(node, ir.AttrInt64(name, ir.DataType.DOUBLE))


def _name_absent_outputs(node: ir.Node, prefix: str) -> None:
    """Names what a node leaves out: the evaluator would store it under "", the name of every absent input."""
    for index, value in enumerate(node.outputs):
        if not value.name:
            value.name = f"{prefix}/{index}"


def _make_input_extent_explicit(node: ir.Node) -> None:
    """Adds the attribute ``input_extent`` to a pool's gradient, from the static type of its output."""
    if (node.domain, node.op_type) not in _STATIC_INPUT:
        return
    shape = node.outputs[0].shape
    extent = [] if shape is None else [size for size in shape[2:] if isinstance(size, int)]
    if shape is None or len(extent) != len(shape) - 2:
        raise UnsupportedNodeError(
            f"{node.op_type} node {node.name!r}: the spatial extents of {node.outputs[0].name!r} are not in the "
            f"model, and the node's inputs do not tell them; add a value_info with static spatial dimensions"
        )
    _set(node, ir.AttrInt64s("input_extent", extent))


def _refuse_unknown_ops(model: ir.Model) -> None:
    unknown = sorted(set(_unknown_ops(model)))
    if unknown:
        raise UnsupportedNodeError(f"cannot evaluate in float64: no implementation of {', '.join(unknown)}")


def _unknown_ops(model: ir.Model) -> Iterator[str]:
    for node in model.graph.all_nodes():
        function = FUNCTIONS.get((node.domain, node.op_type))
        if function is not None:
            for attribute in node.attributes.keys() - attributes_of(function):
                yield f"{node.domain or 'ai.onnx'}.{node.op_type} with {attribute}"
        elif node.domain != "" or not _is_in_evaluator(node.op_type, model.opset_imports[""]):
            yield f"{node.domain or 'ai.onnx'}.{node.op_type}"


def _is_in_evaluator(op_type: str, opset: int) -> bool:
    try:
        load_op("", op_type, opset, evaluator_cls=ReferenceEvaluator)
    except NotImplementedError:
        return False
    except RuntimeContextError:  # there is one, for types that are known later
        return True
    return True


def _check_names(graph: ir.Graph, feeds: Mapping[str, Array], outputs: Sequence[str] | None) -> None:
    inputs = [_name(value) for value in graph.inputs]
    if unknown := sorted(feeds.keys() - set(inputs)):
        raise InputError(f"no graph input is named {', '.join(unknown)}; expected among {', '.join(inputs)}")
    if missing := [name for name in inputs if name not in feeds and name not in graph.initializers]:
        raise InputError(f"inputs without a value: {', '.join(missing)}")
    known = {*inputs, *graph.initializers, *(value.name for node in graph for value in node.outputs)}
    if unknown := sorted(set(outputs or ()) - known):
        raise InputError(f"no value in the model is named {', '.join(unknown)}")


def _set(node: ir.Node, attribute: ir.Attr) -> None:
    node.attributes[attribute.name] = attribute


def _name(value: ir.Value) -> str:
    return str(value.name)
