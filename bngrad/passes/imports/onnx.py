"""ONNX's BatchNormalization in training mode -> BatchNormalizationTraining.

Stock ONNX Runtime cannot run the ONNX op safely in training mode: an omitted running output causes a segmentation
fault, a running output that is not a graph output overwrites the caller's running_mean or running_var, and equal
initializers are merged and then overwritten, which makes Y wrong. In inference mode the op is safe and left as it
is. ONNX defines the running variance as biased (unbiased_running_var = 0); the pass has an option to change that.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.passes.imports.checks import tensor_reasons
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import ForeignOp
from bngrad.passes.imports.operands import Operands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bngrad.passes.base import Context
    from bngrad.passes.imports.foreign_node import ForeignNode


def form_reasons(node: ForeignNode) -> Iterator[str]:
    """Yields the ways in which a node breaks ONNX's form: its tensors, and an epsilon."""
    yield from tensor_reasons(node)
    epsilon = node.node.attributes.get("epsilon")
    if epsilon is None or epsilon.is_ref() or epsilon.type != ir.AttributeType.FLOAT:
        return
    if not isfinite(epsilon.value) or epsilon.value < 0:
        yield f"its epsilon is {epsilon.value:g}; expected a finite number of 0 or more"


def rewrite_training(node: ForeignNode, context: Context) -> None:
    """Rewrites a forward node, whose epsilon and momentum have ONNX's defaults."""
    attributes = node.node.attributes
    operands = Operands(node, context)
    results = operands.apply(
        "BatchNormalizationTraining",
        epsilon=attributes.get("epsilon") or 1e-5,
        momentum=attributes.get("momentum") or 0.9,
        unbiased_running_var=int(node.unbiased_running_var),
    )
    operands.replace(results)


TRAINING = ForeignOp(
    "X, scale, bias, running_mean, running_var -> Y, new_running_mean, new_running_var, saved_mean, saved_inv_std",
    rewrite=rewrite_training,
    checks=[form_reasons],
)
"""A batch norm in training mode; that of ONNX lacks the last two outputs."""


class ImportOnnxPass(DialectPass):
    """Rewrites every BatchNormalization in training mode.

    Matches: X of rank 1 (then C is 1) to 8, or of unknown rank. X of rank 1 or of unknown rank is reshaped to
    [N, C, S].
    Refuses: other ranks and types, missing inputs, and parameters whose shape is not [C].
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {("", "BatchNormalization"): TRAINING}

    def op_of(self, node: ir.Node) -> ForeignOp | None:  # noqa: D102
        return super().op_of(node) if is_training_batch_norm(node) else None
