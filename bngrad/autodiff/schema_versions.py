"""Compares the version of an op's definition in a model with the versions that its gradient rule supports.

An ONNX op gets a new version with a new attribute, type or meaning, which a rule for older versions may ignore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from bngrad.opset.functions import NEWEST_OPSET
from bngrad.opset.onnx_registry import schema_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir


def version_refusal(node: ir.Node, supported: Sequence[int], opset_imports: Mapping[str, int]) -> str | None:
    """Returns the reason why a rule does not support the imported version of an op; None if it does.

    An op without a schema has no version to check.

    Args:
        node: The node.
        supported: The versions that its rule was written for, in ascending order.
        opset_imports: The opset imports of the model.
    """
    opset = opset_imports.get(node.domain)
    newest = min(onnx.defs.onnx_opset_version(), NEWEST_OPSET)
    if opset is not None and node.domain == "" and opset > newest:
        return f"the model imports ai.onnx {opset}; expected {newest} or older, which this onnx and bngrad support"
    schema = None if opset is None else schema_in(node.op_type, opset, node.domain)
    if schema is None:
        return None
    version = schema.since_version
    if version in supported:
        return None
    what = "an older" if version > supported[-1] else "a newer"
    expected = " or ".join(str(number) for number in supported)
    return (
        f"its op has a new definition in ai.onnx {version}, which its gradient rule lacks; expected version "
        f"{expected}: export the model with {what} opset"
    )
