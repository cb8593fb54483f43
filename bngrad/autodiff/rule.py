"""Gradient rules: functions from the gradients of a node's outputs to the gradients of its inputs.

A module of `bngrad.autodiff.rules` registers each of its rules with `gradient`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from bngrad.graph.broadcasting import sum_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.opset.op_attributes import Attributes

    Gradients: TypeAlias = Sequence[ir.Value | None]
    """The gradient with respect to each input; None where it is zero, or is not needed."""


@dataclass(frozen=True)
class Rule:
    """A gradient rule of an op.

    A float input that is neither in ``inputs`` nor in ``zero`` must be a constant: a node where it depends on what
    the loss is differentiated with respect to is refused.
    """

    gradients: Callable[[Backward], Gradients]
    """The function that makes the gradient nodes of one forward node."""
    inputs: tuple[int, ...] | None = (0,)
    """The inputs that the rule gives a gradient; None for all of them."""
    zero: tuple[int, ...] = ()
    """Other inputs that may be floats, with a gradient of zero: the output is piecewise constant in them."""
    versions: tuple[int, ...] = (1,)
    """The versions of the op's schema that the rule was written for; any other is refused."""
    attributes: Attributes | None = field(default_factory=dict)
    """The attributes that it was written for, as `attribute_refusal` takes them; any other is refused. None for a
    rule that reads what it needs."""

    def differentiates(self, index: int) -> bool:
        """Returns whether the rule gives an input a gradient."""
        return self.inputs is None or index in self.inputs


RULES: dict[tuple[str, str], Rule] = {}
"""(domain, op type) -> its rule; empty until `bngrad.autodiff.rules` is imported."""

NEW_TYPES = (21, 23, 24, 25)
"""The versions that only added types to the ops that move elements of any type."""


def gradient(
    op_type: str,
    *,
    domain: str = "",
    inputs: tuple[int, ...] | None = (0,),
    zero: tuple[int, ...] = (),
    versions: tuple[int, ...] = (1,),
    attributes: Attributes | None = None,
) -> Callable[[Callable[[Backward], Gradients]], Callable[[Backward], Gradients]]:
    """Registers a function as the gradient rule of an op; a function may be that of several ops.

    Args:
        op_type: The op.
        domain: Its domain.
        inputs: The inputs that the rule gives a gradient, as in `Rule`.
        zero: Other inputs that may be floats, as in `Rule`.
        versions: The supported versions, as in `Rule`; of an ONNX op, those that opset 18 and newer resolve to.
        attributes: The supported attributes, as in `Rule`.

    Raises:
        ValueError: The op has a rule already.
    """

    def register(function: Callable[[Backward], Gradients]) -> Callable[[Backward], Gradients]:
        if (domain, op_type) in RULES:
            raise ValueError(f"{domain}.{op_type} has two gradient rules")
        RULES[domain, op_type] = Rule(function, inputs, zero, versions, attributes or {})
        return function

    return register


def for_each_input(back: Backward, flow: Callable[[int], ir.Value]) -> Gradients:
    """Returns the gradients of the inputs of an op that broadcasts all of them against each other.

    Args:
        back: The node.
        flow: A function from the index of an input to its gradient, in the output's shape; called for the inputs
            that need one.
    """
    inputs = [back.x(index) for index in range(len(back.node.inputs))]
    return [
        sum_to(back, flow(index), x, back.y(), others=inputs[:index] + inputs[index + 1 :])
        if back.needs(index)
        else None
        for index, x in enumerate(inputs)
    ]
