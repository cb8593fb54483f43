"""NumPy implementations of ops for onnx's reference evaluator, at the precision of their inputs.

They are the ops of ORT's training dialect, ops of ``bngrad``, and ONNX ops that the evaluator computes wrongly or
too slowly (each module states which and why). A function's positional arguments are the inputs of the op, its
keyword arguments are the attributes, and its docstring is the formula.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from onnx.reference.op_run import OpRun

from bngrad.opset import reference
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.validation.training_ops import (
    activation,
    arithmetic,
    batch_norm,
    convolution,
    deformable,
    indexing,
    loss,
    normalization,
    pooling,
    quantized,
    recurrent,
    resize,
    sampling,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("", "AffineGrid"): sampling.affine_grid,
    ("", "AveragePool"): pooling.average_pool,
    ("", "AveragePoolGrad"): pooling.average_pool_grad,
    ("", "BatchNormalization"): batch_norm.batch_normalization,
    ("", "Conv"): convolution.conv,
    ("", "ConvTranspose"): convolution.conv_transpose,
    ("", "DeformConv"): deformable.deform_conv,
    ("", "DequantizeLinear"): quantized.dequantize_linear,
    ("", "Erf"): activation.erf,
    ("", "Flatten"): indexing.flatten,
    ("", "GatherElements"): indexing.gather_elements,
    ("", "Gelu"): activation.gelu,
    ("", "Mean"): arithmetic.mean,
    ("", "GRU"): recurrent.gru,
    ("", "GlobalLpPool"): pooling.global_lp_pool,
    ("", "GlobalMaxPool"): pooling.global_max_pool,
    ("", "GridSample"): sampling.grid_sample,
    ("", "GroupNormalization"): normalization.group_normalization,
    ("", "LRN"): normalization.lrn,
    ("", "LSTM"): recurrent.lstm,
    ("", "LpNormalization"): normalization.lp_normalization,
    ("", "LpPool"): pooling.lp_pool,
    ("", "MaxPool"): pooling.max_pool,
    ("", "MaxPoolGrad"): pooling.max_pool_grad,
    ("", "MaxRoiPool"): pooling.max_roi_pool,
    ("", "MeanVarianceNormalization"): normalization.mean_variance_normalization,
    ("", "NegativeLogLikelihoodLoss"): loss.negative_log_likelihood_loss,
    ("", "Pad"): indexing.pad,
    ("", "RNN"): recurrent.rnn,
    ("", "SoftmaxCrossEntropyLoss"): loss.softmax_cross_entropy_loss,
    (MICROSOFT, "BatchNormInternal"): batch_norm.batch_norm_internal,
    (MICROSOFT, "BatchNormalizationGrad"): batch_norm.batch_normalization_grad,
    (MICROSOFT, "BiasFastGeluGrad_dX"): activation.bias_fast_gelu_grad_dx,
    (MICROSOFT, "BiasGelu"): activation.bias_gelu,
    (MICROSOFT, "BiasGeluGrad_dX"): activation.bias_gelu_grad_dx,
    (MICROSOFT, "BroadcastGradientArgs"): arithmetic.broadcast_gradient_args,
    (MICROSOFT, "ConcatTraining"): indexing.concat_training,
    (MICROSOFT, "ConvGrad"): convolution.conv_grad,
    (MICROSOFT, "DivGrad"): arithmetic.div_grad,
    (MICROSOFT, "DropoutGrad"): activation.dropout_grad,
    (MICROSOFT, "FastGelu"): activation.fast_gelu,
    (MICROSOFT, "FastGeluGrad"): activation.fast_gelu_grad,
    (MICROSOFT, "FusedMatMul"): arithmetic.fused_matmul,
    (MICROSOFT, "GatherElementsGrad"): indexing.gather_elements_grad,
    (MICROSOFT, "GatherGrad"): indexing.gather_grad,
    (MICROSOFT, "GatherNDGrad"): indexing.gather_nd_grad,
    (MICROSOFT, "Gelu"): activation.gelu,
    (MICROSOFT, "GeluGrad"): activation.gelu_grad,
    (MICROSOFT, "LayerNormalizationGrad"): arithmetic.layer_normalization_grad,
    (MICROSOFT, "LeakyReluGrad"): activation.leaky_relu_grad,
    (MICROSOFT, "LogSoftmaxGrad_13"): loss.log_softmax_grad,
    (MICROSOFT, "MatMulNBits"): quantized.matmul_nbits,
    (MICROSOFT, "QuickGelu"): activation.quick_gelu,
    (MICROSOFT, "QuickGeluGrad"): activation.quick_gelu_grad,
    (MICROSOFT, "ReluGrad"): activation.relu_grad,
    (MICROSOFT, "ResizeGrad"): resize.resize_grad,
    (MICROSOFT, "Scale"): arithmetic.scale,
    (MICROSOFT, "SigmoidGrad"): activation.sigmoid_grad,
    (MICROSOFT, "SimplifiedLayerNormalizationGrad"): arithmetic.simplified_layer_normalization_grad,
    (MICROSOFT, "SliceGrad"): indexing.slice_grad,
    (MICROSOFT, "SoftmaxCrossEntropyLossGrad"): loss.softmax_cross_entropy_loss_grad,
    (MICROSOFT, "SoftmaxGrad_13"): loss.softmax_grad,
    (MICROSOFT, "SplitTraining"): indexing.split_training,
    (MICROSOFT, "TanhGrad"): activation.tanh_grad,
    (DOMAIN, "AllGather"): batch_norm.of_bngrad(reference.all_gather),
    (DOMAIN, "AllReduce"): batch_norm.of_bngrad(reference.all_reduce),
    (DOMAIN, "BatchNormalizationGrad"): batch_norm.of_bngrad(reference.batch_normalization_grad),
    (DOMAIN, "BatchNormalizationStatistics"): batch_norm.of_bngrad(reference.batch_normalization_statistics),
    (DOMAIN, "BatchNormalizationTraining"): batch_norm.of_bngrad(reference.batch_normalization_training),
    (DOMAIN, "MaxPoolInputGrad"): pooling.max_pool_grad_of_x,
}
"""The function of each op, by (domain, op type)."""

REDEFINED_SINCE = {**dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), 13), "Resize": 11}
"""The opset since which an ONNX op has the semantics that are implemented; the evaluator ignores older ones."""


def attributes_of(function: Callable[..., Any]) -> frozenset[str]:
    """Returns the attributes that the function of an op supports."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


def op_run(domain: str, op_type: str, function: Callable[..., Any]) -> type[OpRun]:
    """Wraps a function as an op of onnx's reference evaluator."""

    def run(_self: OpRun, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:  # noqa: ANN401  as in OpRun
        result = function(*inputs, **attributes)
        return tuple(result) if isinstance(result, tuple) else (result,)

    # OpRun looks up schemas by name only, but BatchNormalizationGrad is in two domains.
    members = {"op_domain": domain, "op_schema": None, "_run": run, "__doc__": function.__doc__}
    return type(op_type, (OpRun,), members)


OP_RUNS = [op_run(*key, function) for key, function in FUNCTIONS.items()]
"""The ops as classes, for ``ReferenceEvaluator(new_ops=...)``."""
