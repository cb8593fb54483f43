"""The condition that all gradients of a step are finite, for loss scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.overloads import call_of, function_of, refuse_old_runtimes
from bngrad.opset.convolutions import MIN_IR_VERSION
from bngrad.opset.group_updates import IS_ALL_FINITE
from bngrad.training.gradient_sums import sum_of, widest

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def all_finite(make: NodesAtEnd, gradients: Sequence[ir.Value]) -> ir.Value:
    """Returns whether every element of some gradients is finite: the difference with itself is 0, else NaN."""
    differences = [make.typed("Sub", gradient, gradient) for gradient in gradients]
    total = sum_of(make, "ReduceSum", differences)
    return as_condition(make.op("Equal", total, make.constant(0, widest(gradients))))


def all_finite_by_op(model: ir.Model, make: NodesAtEnd, gradients: Sequence[ir.Value]) -> ir.Value:
    """Returns the same by the op IsAllFinite for the gradients of each type, whose functions the model gets."""
    types = dict.fromkeys(dtype_of(gradient) for gradient in gradients)
    groups = [[gradient for gradient in gradients if gradient.dtype == dtype] for dtype in types]
    parts = []
    for number, group in enumerate(groups, 1):
        if group[0].dtype not in _TYPES:
            parts.append(all_finite(make, group))
            continue
        inputs = [ir.val(f"tensor_{index}", group[0].dtype, value.shape) for index, value in enumerate(group)]
        graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": model.opset_imports[""]}, name=IS_ALL_FINITE)
        names = Names(ir.Model(graph, ir_version=MIN_IR_VERSION))
        graph.outputs.append(all_finite(NodesAtEnd(graph, names, IS_ALL_FINITE), inputs))
        function = function_of(IS_ALL_FINITE, str(number), graph, ())
        (part,) = call_of(model, make, function, group, ["all_finite"], {})
        parts.append(as_condition(part))
        refuse_old_runtimes(model, IS_ALL_FINITE, [str(value.name) for value in inputs], ["all_finite"], ())
    result = parts[0]
    for part in parts[1:]:
        result = make.typed("And", result, part)
    return result


def as_condition(value: ir.Value) -> ir.Value:
    """Sets the type of a bool scalar, and returns it."""
    value.type, value.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    return value
