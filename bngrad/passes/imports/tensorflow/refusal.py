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
from bngrad.passes.imports.tensorflow.node import ATTRIBUTES, FORWARDS
from bngrad.passes.imports.tensorflow.spatial import FORMATS, RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.passes.imports.tensorflow.node import TensorflowNode

_SAME_TYPE = (("scale", "offset"), ("mean", "variance"), ("reserve_space_1", "reserve_space_2"))
"""Parameters of the same type: U for all in TensorFlow, T1 for the first pair and T2 for the others in ONNX."""


def reasons(node: TensorflowNode) -> Iterator[str]:
    """Yields the reasons why a node cannot be rewritten; each check relies on those before it."""
    yield from _arity_reasons(node)
    yield from _attribute_reasons(node)
    if reason := recovery_refusal(node.node):
        yield reason
    yield from _type_reasons(node)
    if node.rank is not None and node.rank not in RANKS:
        yield f"its x has rank {node.rank}; expected 4 or 5"
    yield from _shape_reasons(node)


def _arity_reasons(node: TensorflowNode) -> Iterator[str]:
    present = [value is not None for value in node.node.inputs]
    op_type = node.node.op_type
    most = GRADIENTS.get(op_type, 5)
    # The last input of GradV3 is cuDNN's and may be omitted.
    if len(present) > most or len(present) < 5 or not all(present[:5]):
        yield f"it has {sum(present)} inputs; expected {most}, all present: {', '.join(node.op.inputs)}"
    outputs = 5 if op_type in GRADIENTS else FORWARDS.get(op_type, 6)
    if len(node.node.outputs) > outputs:
        yield f"it has {len(node.node.outputs)} outputs; expected at most {outputs}"


def _attribute_reasons(node: TensorflowNode) -> Iterator[str]:
    for name, (kinds, _) in ATTRIBUTES.items():
        attribute = node.node.attributes.get(name)
        if attribute is None:
            continue
        if attribute.is_ref():
            yield (
                f"its {name} is @{attribute.ref_attr_name}, which may differ between calls of its function; "
                "expected a constant: inline the function"
            )
        if attribute.type not in kinds:
            yield f"its {name} is of type {attribute.type.name.lower()}; expected {kinds[0].name.lower()}"
    if (training := node.attribute("is_training")) not in (0, 1):
        yield f"its is_training is {training}; expected 0 or 1"
    if (data_format := node.attribute("data_format")) not in FORMATS:
        yield f"its data_format is {data_format!r}; expected one of {', '.join(FORMATS)}"


def _type_reasons(node: TensorflowNode) -> Iterator[str]:
    parameters = node.read_parameters()
    if reason := type_refusal(node.data_inputs(), parameters.values()):
        yield reason
    for first, second in _SAME_TYPE:
        a, b = (value.dtype if (value := parameters.get(name)) is not None else None for name in (first, second))
        if a is not None and b is not None and a != b:
            yield f"its {second} is {b.name.lower()}; expected {a.name.lower()} like {first}"


def _shape_reasons(node: TensorflowNode) -> Iterator[str]:
    shapes = [shape for value in node.data_inputs() if (shape := known_shape(value)) is not None]
    if len(shapes) == 2 and not may_be_equal(*shapes):
        yield f"its y_backprop has shape {shape_text(shapes[1])}; expected {shape_text(shapes[0])} like x"
    channel = -1 if node.channels_last else 1
    counts = [shape[channel] for shape in shapes if isinstance(shape[channel], int)]
    for name, value in node.read_parameters().items():
        shape = known_shape(value)
        if shape is None:
            continue
        if len(shape) != 1:
            yield f"its {name} has shape {shape_text(shape)}; expected one dimension, the channels of x"
        if counts and isinstance(shape[0], int) and shape[0] != counts[0]:
            where = "the last dimension" if channel == -1 else "dimension 1"
            yield f"its {name} has {shape[0]} elements; expected {counts[0]}, the channels of x ({where})"
