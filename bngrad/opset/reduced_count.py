"""The number of elements that a reduction over axes reduces to one, for the functions of the ops.

ONNX's Size and Shape give int64 in the CPU's memory. A GPU provider without a Size copies all data to the CPU for
it, and what is computed from a Size or a Shape is copied back. Here the length of dimension 0, the batch, is a sum
of ones where the data is. The lengths of the others are a constant if they are known, else int64 on the CPU.
"""

from __future__ import annotations

import onnx
from onnx.inliner import inline_selected_functions
from onnxscript import opset15 as op
from onnxscript import script
from onnxscript.values import Opset

from bngrad.opset.domain import DOMAIN, VERSION

_opset = Opset(DOMAIN, VERSION)


@script(_opset, default_opset=op)
def ReducedCount(x, axes):
    """The number of elements of x over axes, as a scalar of the type of x."""
    zero = op.Constant(value_ints=[0])
    unit = op.Constant(value_ints=[1])
    end = op.Constant(value_ints=[9223372036854775807])
    units = op.Expand(unit, op.Shape(op.Shape(x)))
    ends = op.ScatterElements(units, axes, op.Expand(end, op.Shape(axes)))
    rows = op.Slice(x, units - units, op.ScatterElements(units, zero, op.Slice(ends, zero, unit)))
    # The power of 0 is 1 of any number, and of NaN.
    length = op.ReduceSum(op.Pow(rows, op.CastLike(op.Constant(value_float=0.0), x)), keepdims=0)
    # ORT makes a constant of the shape of a sample, but not of that of x[0:1], whose batch may be empty.
    sample = op.ReduceSum(op.Slice(x, zero, unit, zero), zero, keepdims=0)
    others = op.Concat(unit, op.Min(op.Shape(sample), op.Slice(ends, unit, end)), axis=0)
    count = length * op.CastLike(op.ReduceProd(others, keepdims=0), x)
    return count


def inline_reduced_counts(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Returns a function with the nodes of `ReducedCount` in place of its calls: models carry ops only."""
    proto = ReducedCount.to_function_proto()
    calls = [node for node in function.node if (node.domain, node.op_type) == (proto.domain, proto.name)]
    if not calls:
        return function
    empty = onnx.helper.make_graph([], "empty", [], [])
    model = onnx.helper.make_model(empty, functions=[proto, function], opset_imports=function.opset_import)
    (result,) = inline_selected_functions(model, [(proto.domain, proto.name)]).functions
    if not any(node.domain == proto.domain for node in result.node):
        kept = [opset for opset in result.opset_import if opset.domain != proto.domain]
        del result.opset_import[:]
        result.opset_import.extend(kept)
    return result
