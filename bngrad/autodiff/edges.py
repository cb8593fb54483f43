"""The edges that gradients flow along: from a node to the float inputs that it is differentiable in."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import onnx

from bngrad.autodiff.quantization import is_quantization
from bngrad.autodiff.rules import RULES
from bngrad.autodiff.stop_gradient import is_stop
from bngrad.autodiff.straight_through import rounding_of
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import captured_values, nodes_of, subgraphs
from bngrad.opset.quantities import FLOAT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx_ir as ir

    from bngrad.autodiff.rule import Rule


def rule_of(node: ir.Node) -> Rule | None:
    """Returns the gradient rule of a node's op; None if there is none."""
    return RULES.get((node.domain, node.op_type))


def can_have_gradient(value: ir.Value) -> bool:
    """Returns whether a value is a float, or may be one."""
    return value.dtype in (None, *SUPPORTED_DTYPES)


def smooth_inputs(node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
    """Yields the inputs, with their indices, that a gradient can flow to from a node.

    They are the inputs that its rule differentiates, those that the rule requires to be constant, and for a node
    without a rule all float inputs: `add_gradients` refuses the node if a gradient reaches it. A StopGradient has
    none. Further inputs are the values that bodies of If, Loop and Scan read from around them, and what the
    rounding before a DequantizeLinear reads.
    """
    yield from smooth_operands(node)
    yield from enumerate(captured_floats(node), len(node.inputs))
    yield from enumerate(rounded_floats(node), len(node.inputs))


def smooth_operands(node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
    """Yields those of `smooth_inputs` that are inputs of the node itself."""
    if is_stop(node):
        return
    rule = rule_of(node)
    for index, value in enumerate(node.inputs):
        if value is None or not can_have_gradient(value) or (rule is not None and index in rule.zero):
            continue
        if rule is None or value.dtype is not None or _may_be_float(node.domain, node.op_type, index):
            yield index, value


def captured_floats(node: ir.Node) -> Sequence[ir.Value]:
    """Returns the values around the bodies of a node that a gradient can flow to from the nodes in them."""
    bodies = list(subgraphs(node))
    if not bodies:
        return ()
    smooth = {value for body in bodies for value in body.outputs}
    for inner in (inner for body in bodies for inner in nodes_of(body)):
        smooth.update(value for _, value in smooth_operands(inner))
        smooth.update(rounded_floats(inner))
    return [value for value in captured_values(node) if value in smooth and can_have_gradient(value)]


def rounded_floats(node: ir.Node) -> Sequence[ir.Value]:
    """Returns the data and the scale of the rounding that a node ends; none for another node."""
    rounding = rounding_of(node)
    return () if rounding is None else (rounding.x, rounding.scale)


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yields the values that a gradient can flow to from a node: those of `smooth_inputs`."""
    for _, value in smooth_inputs(node):
        yield value


def why_no_gradient(value: ir.Value) -> str:
    """Returns the reason why a value has no gradient, as the end of a message; empty if unknown.

    It is the first node without one that the value, or a value computed from it, is an input of.
    """
    computed = {value}
    for x in (waiting := [value]):
        for node, index in x.uses():
            if node.op_type in ("BatchNormInternal", "BatchNormalizationTraining") and index in (3, 4):
                if x is value:
                    return f": it is a running statistic of batch norm {node.name!r}, which is in training mode"
                continue
            rule = rule_of(node)
            is_end = _may_not_be_float(node.domain, node.op_type) or is_quantization(node)
            if is_end or (rule is not None and index in rule.zero):
                return f": {describe(node)} gives input {index} no gradient"
            waiting += [output for output in node.outputs if output not in computed]
            computed |= {*node.outputs}
    return ""


@cache
def _may_not_be_float(domain: str, op_type: str) -> bool:
    """Returns whether an op has only integers, booleans or strings as outputs; sizes depend on no values."""
    if domain or op_type in ("Shape", "Size") or not onnx.defs.has(op_type):
        return False
    types = {type_ for output in onnx.defs.get_schema(op_type).outputs for type_ in output.types}
    return types.isdisjoint(FLOAT_TYPES) and all(type_.startswith("tensor(") for type_ in types)


@cache
def _may_be_float(domain: str, op_type: str, index: int) -> bool:
    """Returns whether the schema of an op allows a float input; True where there is no schema."""
    if domain or not onnx.defs.has(op_type):
        return True
    parameters = onnx.defs.get_schema(op_type).inputs
    return not parameters[min(index, len(parameters) - 1)].types.isdisjoint(FLOAT_TYPES)
