"""The version of an op's definition in a model, against those that its gradient rule was written for.

An ONNX op gets a new version with a new attribute, type or meaning. A rule that does not know the
newer definition may ignore what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from bngrad.opset.functions import NEWEST_OPSET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir


def version_refusal(node: ir.Node, known: Sequence[int], opset_imports: Mapping[str, int]) -> str | None:
    """Why a rule does not cover the version of an op that a model imports; None if it does, or has no schema.

    Args:
        node: The node.
        known: The versions that its rule was written for, in ascending order.
        opset_imports: The model's.
    """
    opset = opset_imports.get(node.domain)
    newest = min(onnx.defs.onnx_opset_version(), NEWEST_OPSET)
    if opset is not None and node.domain == "" and opset > newest:
        return f"the model imports ai.onnx {opset}; expected {newest} or older, which this onnx and bngrad know"
    if opset is None or not onnx.defs.has(node.op_type, opset, node.domain):
        return None
    version = onnx.defs.get_schema(node.op_type, opset, node.domain).since_version
    if version in known:
        return None
    what = "an older" if version > known[-1] else "a newer"
    expected = " or ".join(str(number) for number in known)
    return (
        f"its op has a new definition in ai.onnx {version}, which its gradient rule lacks; expected version "
        f"{expected}: export the model with {what} opset"
    )
