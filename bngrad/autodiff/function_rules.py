"""Gradient rules that are functions of ONNX; their nodes become nodes of the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from bngrad.autodiff.control_flow.body_copy import zeros_like
from bngrad.errors import InputError, ModelError
from bngrad.passes.prepare.inline_functions import inline
from bngrad.passes.prepare.raise_opset import align_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_DOMAIN = "bngrad.rule"
"""The domain of the functions, until they are inlined."""


def function_attributes(proto: onnx.FunctionProto) -> list[str]:
    """Returns the names of the attributes of a function, with and without defaults."""
    return [*proto.attribute, *(attribute.name for attribute in proto.attribute_proto)]


def rule_from_function(
    proto: onnx.FunctionProto, op: str, inputs: Sequence[int] | None
) -> Callable[[Backward], Gradients]:
    """Returns the rule that a function is.

    Args:
        proto: The function: of the inputs, outputs and gradients of the outputs of a node, to the gradients.
        op: The name of the op.
        inputs: The inputs that it returns the gradients of; None for all.

    Raises:
        InputError: The function is not valid, or returns another number of gradients.
    """
    try:
        onnx.checker.check_function(proto)
        function = ir.serde.deserialize_function(proto)
    except Exception as error:
        names = {*proto.input, *(name for node in proto.node for name in node.output)}
        reason = next((f"no node makes its output {name!r}" for name in proto.output if name not in names), error)
        raise InputError(
            f"the gradient rule of {op} is no valid function: {' '.join(str(reason).split())}"
        ) from error
    function.domain, function.name = _DOMAIN, op
    if inputs is not None and len(function.outputs) != len(inputs):
        raise InputError(
            f"the gradient rule of {op} returns {len(function.outputs)} gradients; expected {len(inputs)}, one "
            f"for each input of inputs={tuple(inputs)}"
        )

    def rule(back: Backward) -> Gradients:
        node = back.node
        taken, count = len(node.inputs) + 2 * len(node.outputs), len(function.inputs)
        if taken != count:
            back.refuse(
                f"its gradient rule takes {count} inputs; expected {taken}, its {len(node.inputs)} inputs, its "
                f"{len(node.outputs)} outputs, and their gradients"
            )
        indices = range(len(node.inputs)) if inputs is None else inputs
        if len(function.outputs) != len(indices):
            back.refuse(f"its gradient rule returns {len(function.outputs)} gradients; expected {len(indices)}")
        for name in proto.attribute:
            if name not in node.attributes:
                back.refuse(f"it has no attribute {name!r}; its gradient rule expects one")
        outputs = [back.y(index) for index in range(len(node.outputs))]
        seeds = [zeros_like(back, y) if dY is None else dY for y, dY in zip(outputs, back.all_dY, strict=True)]
        results = back.outputs_of(
            function.name,
            *(*node.inputs, *outputs, *seeds),
            domain=_DOMAIN,
            outputs=[f"of_input_{index}" for index in indices],
            **back.attributes(),
        )
        back.add_function(function)
        _infer_results(proto, [*node.inputs, *outputs, *outputs], list(back.attributes().values()), results)
        gradients: list[ir.Value | None] = [None] * len(node.inputs)
        for index, result in zip(indices, results, strict=True):
            gradients[index] = result if back.needs(index) else None
        return gradients

    return rule


def _infer_results(
    proto: onnx.FunctionProto,
    inputs: Sequence[ir.Value | None],
    attributes: Sequence[ir.Attr],
    results: Sequence[ir.Value],
) -> None:
    """Infers the types and shapes of the results of a function, as far as onnx can."""
    try:
        types = onnx.shape_inference.infer_function_output_types(
            proto,
            [onnx.TypeProto() if value is None else ir.serde.serialize_value(value).type for value in inputs],
            [ir.to_proto(attribute) for attribute in attributes],
        )
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        TypeError,
        ValueError,
    ):
        return  # ONNX Runtime reports the reason
    for value, kind in zip(results, types, strict=True):
        if kind.WhichOneof("value") is not None:
            value.type = ir.serde.deserialize_type_proto_for_type(kind)
            value.shape = ir.serde.deserialize_type_proto_for_shape(kind)


def inline_rules(model: ir.Model) -> None:
    """Replaces the calls of such functions by their nodes.

    Raises:
        ModelError: A function imports ops in another version than the model, where they differ.
    """
    rules = [function for function in model.functions.values() if function.domain == _DOMAIN]
    if not rules:
        return
    align_functions(model)
    for function in rules:
        for domain, version in function.opset_imports.items():
            expected = model.opset_imports.setdefault(domain, version)
            if version != expected:
                raise ModelError(
                    f"the gradient rule of {function.name} imports version {version} of the ops of "
                    f"{domain or 'ai.onnx'}, and the model {expected}, in which they differ; register a rule with "
                    f"version {expected}"
                )
    inline(model, lambda function: function.domain == _DOMAIN)
