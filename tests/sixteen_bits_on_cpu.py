"""Runs models in 16 bits on ONNX Runtime's CPU provider, as a device with kernels for them would.

The provider has few kernels for bfloat16; for float16 it computes in float32 and leaves out most roundings. Here
nodes in 16 bits compute in float32 and round, as a kernel with float32 sums does. Ops of bngrad have kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import onnxruntime

from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.io.files import as_ir
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.session import register

if TYPE_CHECKING:
    import onnx

_WIDE = ir.DataType.FLOAT


def rounding_session(model):
    """A session of a model, without the optimizations that remove casts."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    register(options)
    return onnxruntime.InferenceSession(with_casts(model).SerializeToString(), options)


def with_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose nodes in 16 bits are in float32 between casts."""
    result = as_ir(model).clone()
    InferTypesPass()(result)
    for node in list(result.graph):
        if node.op_type in ("Cast", "Constant") or node.domain == "bngrad":
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in SIXTEEN_BITS:
                cast = _cast(value, _WIDE)
                result.graph.insert_before(node, cast)
                node.replace_input_with(index, cast.outputs[0])
        for output in node.outputs:
            if (dtype := output.dtype) in SIXTEEN_BITS:
                narrow = ir.Value(name=f"{output.name}_rounded", type=output.type, shape=output.shape)
                output.replace_all_uses_with(narrow, replace_graph_outputs=True)
                output.type = ir.TensorType(_WIDE)
                result.graph.insert_after(node, _cast(output, dtype, narrow))
    return ir.to_proto(result)


_numbers = iter(range(1_000_000))


def _cast(value, dtype, output=None):
    output = output or ir.Value(name=f"{value.name}_wide_{next(_numbers)}", type=ir.TensorType(dtype))
    return ir.node("Cast", [value], {"to": int(dtype)}, outputs=[output], name=f"cast_{next(_numbers)}")
