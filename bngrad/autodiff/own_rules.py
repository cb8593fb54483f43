"""Gradient rules of users, for ops of their own: a Python function, or a function of ONNX."""

from __future__ import annotations

import functools
from itertools import islice
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from bngrad.arguments import require_names
from bngrad.autodiff.function_rules import function_attributes, rule_from_function
from bngrad.autodiff.rule import Rule
from bngrad.autodiff.rules import RULES
from bngrad.errors import InputError
from bngrad.graph.nodes import describe
from bngrad.opset.known_shapes import known_shape, may_be_equal, size_text, type_text
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

    RuleFunction = Callable[[Backward], Gradients]

_BUILT_IN = frozenset(RULES)


def gradient(
    domain: str,
    op_type: str,
    *,
    inputs: Sequence[int] | None = (0,),
    zero: Sequence[int] = (),
    attributes: Sequence[str] | None = None,
) -> Callable[[Any], Any]:
    """Registers a function as the gradient rule of an op of your own, for this process.

    A Python function takes a `bngrad.Backward`: the node, the gradients of its outputs, and methods that make
    nodes of the backward pass. It returns a list with a value for each input of the node: the gradient with
    respect to it, of its type and shape, or None where that is 0 or not needed. `differentiate` refuses another
    type or shape by an InputError, as far as it can infer them.

    A function of ONNX, an `onnx.FunctionProto` or one of onnxscript, takes the inputs of the node, its outputs,
    and the gradients of its outputs. It returns the gradients of ``inputs``, in this order. Its attributes are
    those of the node.

    A rule that is registered again replaces the earlier one.

    Args:
        domain: The domain of the op; one of ONNX's own ops has a rule of bngrad or none at all.
        op_type: The op.
        inputs: The inputs that get a gradient; None for all. Another float input must be constant, or the node is
            refused.
        zero: Other float inputs, with a gradient of 0.
        attributes: The attributes that the rule was written for; a node with another one is refused. None for any,
            or for those of a function of ONNX.

    Returns:
        A decorator, which returns the function.

    Raises:
        InputError: The op has a rule of bngrad, or is one of ONNX's default domain; or the function is neither of
            Python nor a valid one of ONNX.
    """
    require_names(attributes=attributes)
    key = ("" if domain == "ai.onnx" else domain, op_type)
    if key[0] == "" or key in _BUILT_IN:
        raise InputError(
            f"op {op_type!r} of domain {domain!r} is not yours; expected an op of a domain of your own"
        )

    def register(function: Any) -> Any:  # noqa: ANN401
        op, supported = f"{domain}.{op_type}", attributes
        to_proto = getattr(function, "to_function_proto", None)  # of onnxscript
        form = function if to_proto is None else to_proto()
        if isinstance(form, onnx.FunctionProto):
            rule = rule_from_function(form, op, inputs)
            supported = function_attributes(form) if supported is None else supported
        elif callable(form):
            rule = form
        else:
            raise InputError(
                f"the gradient rule of {op} is {form!r}; expected a function of Python, an onnx.FunctionProto, or "
                "a function of onnxscript"
            )

        @functools.wraps(rule)
        def checked(back: Backward) -> Gradients:
            return _checked(rule, back, op)

        RULES[key] = Rule(
            checked,
            None if inputs is None else tuple(inputs),
            tuple(zero),
            attributes=None if supported is None else dict.fromkeys(supported, ANY),
        )
        return function

    return register


def has_own_rules() -> bool:
    """Returns whether there is a rule of the user, for an op that a library of theirs computes."""
    return len(RULES) > len(_BUILT_IN)


def _checked(rule: RuleFunction, back: Backward, op: str) -> Gradients:
    """Returns what a rule returns, if that is a value or None for each input, of its type as far as that is known.

    Raises:
        InputError: It is something else.
    """
    graph, count = back.node.graph, len(back.node.inputs)
    assert graph is not None, "the forward node is in a graph"  # noqa: S101
    before = len(graph)
    gradients = rule(back)
    if not isinstance(gradients, list | tuple) or len(gradients) != count:
        number = f"{len(gradients)} values" if isinstance(gradients, list | tuple) else repr(gradients)
        raise InputError(f"the gradient rule of {op} returned {number}; expected a list of {count}, one an input")
    for value in gradients:
        if value is not None and not isinstance(value, ir.Value):
            raise InputError(
                f"the gradient rule of {op} returned {value!r}; expected values that its Backward made"
            )
    back.infer_types(reversed([*islice(reversed(graph), len(graph) - before)]))
    for index, (value, x) in enumerate(zip(gradients, back.node.inputs, strict=True)):
        if value is not None and x is not None and back.needs(index) and not _may_have_type_of(value, x):
            raise InputError(
                f"the gradient rule of {op} returned a gradient of input {index}, {x.name!r}, that is "
                f"{type_text(value)}; expected {type_text(x)}, the type of the input of {describe(back.node)}"
            )
    return gradients


def _may_have_type_of(value: ir.Value, x: ir.Value) -> bool:
    """Returns whether a value has the type and shape of another one, as far as both are known."""
    if None not in (value.dtype, x.dtype) and value.dtype != x.dtype:
        return False
    shape, expected = known_shape(value), known_shape(x)
    if shape is None or expected is None:
        return True
    # One of the two has a size of 1, and would be broadcast to that of any number of samples.
    of_one = (
        1 in pair and any(isinstance(size, str) and size_text(size) != "?" for size in pair)
        for pair in zip(shape, expected, strict=False)
    )
    return may_be_equal(shape, expected) and not any(of_one)
