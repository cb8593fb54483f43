"""ATen's gradients of convolutions, poolings and ReLU, as the ops of ONNX Runtime's gradient builder.

`bngrad.passes.lower` has these in standard ONNX, and fuses ReLU's gradient with that of a batch norm. onnxscript
calls an op only if onnx knows its schema, so they are written in a domain of their own first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from onnx.defs import OpSchema
from onnxscript.values import Opset

from bngrad.errors import UnsupportedNodeError
from bngrad.opset import onnx_registry
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.opset.quantities import FLOAT_TYPES
from bngrad.torch.draws import draws
from bngrad.torch.onnx_ops import op
from bngrad.torch.scalars import scalar_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

_DOMAIN = "bngrad.torch.joint"
_INTS = dict.fromkeys(("dilations", "kernel_shape", "output_padding", "pads", "strides"), OpSchema.AttrType.INTS)
_INT = dict.fromkeys(("ceil_mode", "count_include_pad", "group"), OpSchema.AttrType.INT)
_OPS = {
    "ConvGrad": (MICROSOFT, ["dY", "X", "W"], ["dX", "dW", "dB"]),
    "ConvTransposeGrad": (MICROSOFT, ["dY", "X", "W"], ["dX", "dW", "dB"]),
    "ReluGrad": (MICROSOFT, ["dY", "Y"], ["dX"]),
    "MaxPoolGrad": ("", ["dY", "indices"], ["dX"]),
    "AveragePoolGrad": ("", ["dY"], ["dX"]),
}
"""The domain of each op, its inputs and its outputs."""

_joint: Any = Opset(_DOMAIN, 1)


def joint_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The custom translation table for `torch.onnx.export`."""
    _register_schemas()
    aten = torch.ops.aten
    return {
        aten.scalar_tensor.default: scalar_tensor,
        aten.convolution_backward.default: _convolution_backward,
        aten.threshold_backward.default: _threshold_backward,
        aten.max_pool2d_with_indices.default: _max_pool,
        aten.max_pool3d_with_indices.default: _max_pool,
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
        aten.max_pool3d_with_indices_backward.default: _max_pool_backward,
        aten.avg_pool2d_backward.default: _average_pool_backward,
        aten.avg_pool3d_backward.default: _average_pool_backward,
        **draws(),
    }


def to_ort_dialect(model: ir.Model) -> None:
    """Renames the ops to those of ONNX Runtime's gradient builder."""
    for node in model.graph:
        if node.domain == _DOMAIN:
            node.domain, node.version = _OPS[node.op_type][0], None
            for value in node.outputs:
                if not value.uses() and not value.is_graph_output():
                    value.name = ""
    model.opset_imports.pop(_DOMAIN, None)
    model.opset_imports.setdefault(MICROSOFT, 1)


def _register_schemas() -> None:
    def parameter(name: str) -> OpSchema.FormalParameter:
        return OpSchema.FormalParameter(name, "I" if name == "indices" else "T")

    onnx_registry.register(
        OpSchema(
            name,
            _DOMAIN,
            1,
            inputs=[parameter(operand) for operand in inputs],
            outputs=[parameter(operand) for operand in outputs],
            type_constraints=[("T", FLOAT_TYPES, "Any float")]
            + ([("I", ["tensor(int64)"], "Indices")] if "indices" in inputs else []),
            attributes=[
                OpSchema.Attribute(attribute, kind, required=False) for attribute, kind in (_INTS | _INT).items()
            ],
        )
        for name, (_, inputs, outputs) in _OPS.items()
    )


def _convolution_backward(
    grad_output: Any,  # noqa: ANN401 - of onnxscript's
    input: Any,  # noqa: A002, ANN401 - PyTorch's name
    weight: Any,  # noqa: ANN401
    bias_sizes: Sequence[int] | None = None,  # noqa: ARG001
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    output_mask: Sequence[bool] = (),  # noqa: ARG001 - outputs that nothing reads are removed
) -> Any:  # noqa: ANN401
    """aten.convolution_backward -> ConvGrad or ConvTransposeGrad."""
    kernel = [int(size) for size in weight.shape[2:]]
    rank = len(kernel)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": _each(stride, rank),
        "pads": _each(padding, rank) * 2,
        "dilations": _each(dilation, rank),
        "group": groups,
    }
    if transposed:
        attributes["output_padding"] = _each(output_padding, rank)
        return _joint.ConvTransposeGrad(grad_output, input, weight, **attributes)
    return _joint.ConvGrad(grad_output, input, weight, **attributes)


def _threshold_backward(grad_output: Any, self: Any, threshold: float) -> Any:  # noqa: ANN401
    """aten.threshold_backward -> ReluGrad, or Where for other thresholds than 0."""
    if threshold == 0:
        return _joint.ReluGrad(grad_output, self)
    limit = op.CastLike(op.Constant(value_float=float(threshold)), self)
    zero = op.CastLike(op.Constant(value_float=0.0), grad_output)
    return op.Where(op.LessOrEqual(self, limit), zero, grad_output)


def _max_pool(
    self: Any,  # noqa: ANN401
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:  # noqa: ANN401
    """aten.max_poolNd_with_indices -> MaxPool. Indices are those of a plane in PyTorch, of the tensor in ONNX."""
    _require_batch(self, kernel_size, "max")
    y, indices = op.MaxPool(
        self,
        **_windows(kernel_size, stride, padding),
        dilations=_each(dilation, len(kernel_size)),
        ceil_mode=int(ceil_mode),
    )
    return y, op.Mod(indices, op.ReduceProd(op.Shape(self, start=2), keepdims=0))


def _max_pool_backward(
    grad_output: Any,  # noqa: ANN401
    self: Any,  # noqa: ANN401, ARG001
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """aten.max_poolNd_with_indices_backward -> MaxPoolGrad(dY, indices of MaxPool)."""
    remainder = indices.producer()
    pooling = None if remainder is None or remainder.op_type != "Mod" else remainder.inputs[0].producer()
    if pooling is None or pooling.op_type != "MaxPool":
        raise UnsupportedNodeError(
            "the gradient of a max pooling reads indices that are not those of its forward pass; expected those"
        )
    return _joint.MaxPoolGrad(
        grad_output,
        remainder.inputs[0],
        **_windows(kernel_size, stride, padding),
        dilations=_each(dilation, len(kernel_size)),
        ceil_mode=int(ceil_mode),
    )


def _average_pool_backward(
    grad_output: Any,  # noqa: ANN401
    self: Any,  # noqa: ANN401
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Any:  # noqa: ANN401
    """aten.avg_poolNd_backward -> AveragePoolGrad."""
    _require_batch(self, kernel_size, "average")
    if divisor_override is not None:
        raise UnsupportedNodeError(
            f"the module has an average pooling with divisor_override={divisor_override}, which is unsupported; "
            "expected None"
        )
    return _joint.AveragePoolGrad(
        grad_output,
        **_windows(kernel_size, stride, padding),
        ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )


def _windows(kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> dict[str, list[int]]:
    rank = len(kernel_size)
    return {
        "kernel_shape": list(kernel_size),
        "strides": _each(stride, rank) if stride else list(kernel_size),
        "pads": _each(padding, rank) * 2,
    }


def _each(numbers: Sequence[int], rank: int) -> list[int]:
    """One number for each axis; PyTorch accepts a single number for all axes."""
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)


def _require_batch(x: Any, kernel_size: Sequence[int], what: str) -> None:  # noqa: ANN401 - of onnxscript's
    rank = len(kernel_size) + 2
    if len(x.shape) != rank:
        raise UnsupportedNodeError(
            f"the module has a {what} pooling of a tensor of rank {len(x.shape)}; expected rank {rank}, with a "
            "batch"
        )
