"""The training ops that ONNX Runtime's training build can run on a CPU; its gradient builder emits more of them.

Measured on onnxruntime-training-cpu 1.19.2.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.node_reader import constant_of

_NONE = ("ConvTransposeGrad", "ResizeGrad")


def has_kernel(node: ir.Node) -> bool:
    """Returns whether the training build has a CPU kernel for a node of a training op that stock ORT lacks."""
    if node.op_type in _NONE:
        return False
    if node.op_type == "SliceGrad" and not _goes_forward(node):
        return False
    types = {value.dtype for value in node.inputs if value is not None and value.dtype is not None}
    return not types & {ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def _goes_forward(slice_grad: ir.Node) -> bool:
    """Tests whether all steps are known to be positive; the kernel reads a negative one as an enormous one."""
    steps = slice_grad.inputs[5] if len(slice_grad.inputs) > 5 else None
    numbers = constant_of(steps)
    return steps is None or (numbers is not None and bool((numbers > 0).all()))
