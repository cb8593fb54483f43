"""The registry of lowerings: functions that insert nodes that compute the same as a training op.

A module of `bngrad.passes.lower` registers each of its lowerings with `lowering`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from bngrad.opset.op_attributes import Attributes
    from bngrad.passes.lower.site import Site

    Outputs: TypeAlias = Sequence[ir.Value | None]
    """The value that replaces each output; None for one that the node leaves out."""


def _nothing_refused(_node: ir.Node) -> str | None:
    return None


@dataclass(frozen=True)
class Lowering:
    """The lowering of an op."""

    rewrite: Callable[[Site], Outputs]
    """Inserts the new nodes before the node."""
    refusal: Callable[[ir.Node], str | None] = _nothing_refused
    """Returns the reason why a node cannot be lowered, with what was expected; None if it can."""
    attributes: Attributes = field(default_factory=dict)
    """The attributes that the op may have, as `attribute_refusal` takes them. Any other is refused."""


LOWERINGS: dict[tuple[str, str], Lowering] = {}
"""(domain, op type) -> its lowering; empty until `bngrad.passes.lower` is imported."""


def lowering(
    op_type: str,
    *,
    domain: str = MICROSOFT,
    refusal: Callable[[ir.Node], str | None] = _nothing_refused,
    attributes: Attributes | None = None,
) -> Callable[[Callable[[Site], Outputs]], Callable[[Site], Outputs]]:
    """Registers a function as the lowering of an op; a function may be that of several ops.

    Args:
        op_type: The op.
        domain: Its domain.
        refusal: As of `Lowering`.
        attributes: As of `Lowering`: those of ORT's schema, and those that its builder copies from the forward
            node.

    Raises:
        ValueError: The op has a lowering already.
    """

    def register(function: Callable[[Site], Outputs]) -> Callable[[Site], Outputs]:
        if (domain, op_type) in LOWERINGS:
            raise ValueError(f"{domain}.{op_type} has two lowerings")
        LOWERINGS[domain, op_type] = Lowering(function, refusal, attributes or {})
        return function

    return register
