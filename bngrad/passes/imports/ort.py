"""The batch-norm ops that ONNX Runtime's gradient builder writes -> the ops of ``bngrad``.

ORT's schema names input 4 of the gradient ``variance``, but its gradient builder connects saved_inv_std there and
its kernel reads it as such. The input therefore becomes inv_std unchanged, and epsilon is not needed. ORT's
running variance is biased (unbiased_running_var = 0); the pass has an option to change that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import ForeignOp
from bngrad.passes.imports.onnx import TRAINING, form_reasons
from bngrad.passes.imports.operands import Operands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bngrad.passes.base import Context
    from bngrad.passes.imports.foreign_node import ForeignNode


def _mode_reasons(node: ForeignNode) -> Iterator[str]:
    mode = node.node.attributes.get("training_mode")
    if mode is not None and mode.value != 1:
        got = f"@{mode.ref_attr_name}" if mode.is_ref() else mode.value
        yield f"it has training_mode {got}; expected 1, because ORT saves no statistics otherwise"


def _rewrite_gradient(node: ForeignNode, context: Context) -> None:
    operands = Operands(node, context)
    operands.replace(operands.apply("BatchNormalizationGrad", training_mode=1))


class ImportOrtPass(DialectPass):
    """Rewrites every BatchNormInternal and BatchNormalizationGrad.

    Matches: X of rank 1 (then C is 1) to 8, or of unknown rank. X of rank 1 or of unknown rank is reshaped to
    [N, C, S].
    Refuses: other ranks and types, missing inputs, parameters whose shape is not [C], and a BatchNormInternal with
    training_mode = 0, for which ORT has no kernel.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {
        BATCH_NORM_INTERNAL: replace(TRAINING, checks=[_mode_reasons, form_reasons]),
        BATCH_NORM_GRAD: ForeignOp(
            "dY, X, scale, mean, inv_std -> dX, dscale, dbias",
            rewrite=_rewrite_gradient,
            checks=[_mode_reasons, form_reasons],
        ),
    }
