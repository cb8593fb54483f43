"""Products in gradients that are 0 where one factor is 0, even if the other is infinite or NaN.

An element that does not reach the loss has the gradient 0, and a local derivative of 0 passes nothing on. In
floating point 0 times infinity is NaN, and one NaN spoils the gradients of all nodes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.node_reader import dtype_of, like

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.graph.builder import NodeMaker

_GUARD = "bngrad.guard"
"""The key in the metadata of a Where that guards a product."""


_FIRST_ORDER = "bngrad.first_order"
"""The key in the metadata of a Where that a first derivative needs, and a second one would get wrong."""


def first_order(value: ir.Value) -> ir.Value:
    """Marks the Where that replaces factors of 0: the derivative by one factor is right, by two not."""
    node = value.producer()
    assert node is not None, "a node makes it"  # noqa: S101
    node.metadata_props[_FIRST_ORDER] = "product"
    return value


def is_first_order(node: ir.Node) -> bool:
    """Tests whether `first_order` marked a node."""
    return _FIRST_ORDER in node.metadata_props


def is_guard(node: ir.Node) -> bool:
    """Tests whether a node only guards a product against 0 times infinity.

    Its derivative is that of the product: a factor that is 0 by chance still has one.
    """
    return _GUARD in node.metadata_props


def zero_where_zero(
    make: NodeMaker, factor: ir.Value, product: ir.Value, *, typed: ir.Value | None = None
) -> ir.Value:
    """Returns a product, or a quotient, that is 0 wherever one factor is 0.

    Args:
        make: The maker of the nodes.
        factor: The factor; it is broadcast to the product.
        product: The product, of the same type.
        typed: A value of that type, where the type of the factor is not known.
    """
    zero = like(make, 0, typed or factor)
    result = make.op("Where", make.op("Equal", factor, zero), zero, product)
    result.dtype = dtype_of(zero)
    node = result.producer()
    assert node is not None, "it was just made"  # noqa: S101
    node.metadata_props[_GUARD] = "product"
    return result


def cut(make: NodeMaker, condition: ir.Value, dY: ir.Value, *, typed: ir.Value | None = None) -> ir.Value:
    """Returns dY where a condition is true, else 0, even if dY is infinite or NaN there."""
    zero = like(make, 0, typed or dY)
    result = make.op("Where", condition, dY, zero)
    result.dtype = dtype_of(zero)
    return result
