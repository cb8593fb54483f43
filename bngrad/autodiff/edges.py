"""Where gradients can flow: from a node to those of the values it reads that its rule differentiates by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rules import RULES
from bngrad.passes.nodes import SUPPORTED_DTYPES
from bngrad.subgraphs import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.autodiff.rule import Rule


def rule_of(node: ir.Node) -> Rule | None:
    """The gradient rule of a node's op; None if there is none."""
    return RULES.get((node.domain, node.op_type))


def can_have_gradient(value: ir.Value) -> bool:
    """Whether a value is a float, or may be one."""
    return value.dtype in (None, *SUPPORTED_DTYPES)


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a gradient can flow to from a node.

    A node without a rule passes on whatever it gets: whether that matters turns out on the way back.
    """
    rule = rule_of(node)
    for index, value in enumerate(node.inputs):
        if value is not None and can_have_gradient(value) and (rule is None or rule.differentiates(index)):
            yield value
    if rule is None:
        # The body of an If or a Loop reads values of the graph around it without naming them as inputs.
        for body in subgraphs(node):
            yield from filter(can_have_gradient, body.outputs)
            for inner in ir.traversal.RecursiveGraphIterator(body):
                yield from (value for value in inner.inputs if value is not None and can_have_gradient(value))
