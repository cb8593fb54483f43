"""Checks whether TensorFlow's nodes can be rewritten.

TensorFlow checks shapes and types when a kernel runs. The same rules apply here to the shapes and types that the
model states; unknown ones are accepted. Two rules are wider: every version accepts all formats and types, because
the versions differ in nothing else, and data may be double, which TensorFlow's ops do not support.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norms import type_refusal
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.passes.imports.tensorflow.lost_attributes import GRADIENTS, recovery_refusal
from bngrad.passes.imports.tensorflow.node import (
    ATTRIBUTES,
    FORWARDS,
    channels_last,
    data_indices,
    data_rank,
    input_names,
    read_attribute,
    read_parameters,
)

if TYPE_CHECKING:
    import onnx_ir as ir

FORMATS = ("NHWC", "NCHW", "NDHWC", "NCDHW")
"""The values of data_format, for data of rank 4 and 5."""

RANKS = (4, 5)
"""The ranks of data. TensorFlow's CPU kernels accept either rank with any format."""

_SAME_TYPE = (("scale", "offset"), ("mean", "variance"), ("reserve_space_1", "reserve_space_2"))
"""Parameters of the same type: U for all in TensorFlow, T1 for the first pair and T2 for the others in ONNX."""


def refusal(node: ir.Node) -> str | None:
    """Returns why a node cannot be rewritten; None if it can."""
    # Each rule relies on those before it.
    rules = (_arity_refusal, _attribute_refusal, recovery_refusal, _type_refusal, _rank_refusal, _shape_refusal)
    return next((reason for rule in rules if (reason := rule(node))), None)


def _arity_refusal(node: ir.Node) -> str | None:
    present = [value is not None for value in node.inputs]
    most = GRADIENTS.get(node.op_type, 5)
    # The last input of GradV3 is cuDNN's and may be omitted.
    if len(present) > most or len(present) < 5 or not all(present[:5]):
        return f"it has {sum(present)} inputs; expected {most}, all present: {', '.join(input_names(node))}"
    outputs = 5 if node.op_type in GRADIENTS else FORWARDS.get(node.op_type, 6)
    if len(node.outputs) > outputs:
        return f"it has {len(node.outputs)} outputs; expected at most {outputs}"
    return None


def _attribute_refusal(node: ir.Node) -> str | None:
    for name, (kind, _) in ATTRIBUTES.items():
        attribute = node.attributes.get(name)
        if attribute is None:
            continue
        if attribute.is_ref():
            return (
                f"its {name} is @{attribute.ref_attr_name}, which may differ between calls of its function; "
                "expected a constant: inline the function"
            )
        if attribute.type != kind:
            return f"its {name} is of type {attribute.type.name.lower()}; expected {kind.name.lower()}"
    if read_attribute(node, "is_training") not in (0, 1):
        return f"its is_training is {read_attribute(node, 'is_training')}; expected 0 or 1"
    if read_attribute(node, "data_format") not in FORMATS:
        return f"its data_format is {read_attribute(node, 'data_format')!r}; expected one of {', '.join(FORMATS)}"
    return None


def _type_refusal(node: ir.Node) -> str | None:
    parameters = read_parameters(node)
    reason = type_refusal([node.inputs[i] for i in data_indices(node)], parameters.values())
    if reason:
        return reason
    for first, second in _SAME_TYPE:
        a, b = (value.dtype if (value := parameters.get(name)) is not None else None for name in (first, second))
        if a is not None and b is not None and a != b:
            return f"its {second} is {b.name.lower()}; expected {a.name.lower()} like {first}"
    return None


def _rank_refusal(node: ir.Node) -> str | None:
    rank = data_rank(node)
    if rank is not None and rank not in RANKS:
        return f"its x has rank {rank}; expected 4 or 5"
    return None


def _shape_refusal(node: ir.Node) -> str | None:
    shapes = [known_shape(node.inputs[i]) for i in data_indices(node)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) == 2 and not may_be_equal(*known):
        return f"its y_backprop has shape {shape_text(known[1])}; expected {shape_text(known[0])} like x"
    channel = -1 if channels_last(node) else 1
    counts = [shape[channel] for shape in known if isinstance(shape[channel], int)]
    for name, value in read_parameters(node).items():
        shape = known_shape(value)
        if shape is None:
            continue
        if len(shape) != 1:
            return f"its {name} has shape {shape_text(shape)}; expected one dimension, the channels of x"
        if counts and isinstance(shape[0], int) and shape[0] != counts[0]:
            return (
                f"its {name} has {shape[0]} elements; expected {counts[0]}, the channels of x "
                f"({'the last dimension' if channel == -1 else 'dimension 1'})"
            )
    return None
