"""Advice about training steps that are slow on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset.batched_conv import SIGNATURES as BATCHED
from bngrad.opset.conv_grad import NAME as CONV_GRAD
from bngrad.opset.depthwise import GRADS
from bngrad.opset.domain import DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir

_CONVOLUTIONS = frozenset({("", "Conv"), ("", "ConvTranspose")})


def advice_for_gpu(step: ir.Model, evaluation: ir.Model) -> list[str]:
    """Returns a line if a step was written without the op for the gradients of convolutions, else none.

    Args:
        step: The training step.
        evaluation: The graph that evaluates its loss, with the convolutions of the forward model alone.
    """
    ops = [(node.domain, node.op_type) for node in step.graph]
    if (DOMAIN, CONV_GRAD) in ops:
        return []
    for_cpu = {(DOMAIN, name) for name in (*GRADS, *BATCHED)}
    forward = sum((node.domain, node.op_type) in _CONVOLUTIONS for node in evaluation.graph)
    if sum(op in _CONVOLUTIONS for op in ops) <= forward and for_cpu.isdisjoint(ops):
        return []
    advice = (
        "the gradients of the step's convolutions are slow on a GPU; write the step with --conv-grad (conv_grad=)"
    )
    return [f"{advice}, or --channels-last"]
