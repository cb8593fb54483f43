"""The training ops of ONNX Runtime in standard ONNX, one line an op.

A lowering gets a `Site`, makes the nodes that compute what its node did, and returns what takes the place of each
output (None for one that the node leaves out). `LowerTrainingPass` does it all over a model.
"""

from __future__ import annotations

from bngrad.opset.op_attributes import (
    ALPHA,
    ANY,
    AVERAGE_POOL,
    AXIS,
    CONV,
    CONV_TRANSPOSE,
    FLAG,
    LOSS,
    MAX_POOL,
    NORM,
)
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.lower import (
    accumulation,
    activation,
    arithmetic,
    convolution,
    indexing,
    loss,
    normalization,
    pooling,
    reduction,
    resize,
    slicing,
)
from bngrad.passes.lower import concatenation as joining
from bngrad.passes.lower.site import Lowering

# Attributes are those of ORT's schemas and those that its builder copies from the forward node.
LOWERINGS: dict[tuple[str, str], Lowering] = {
    ("", "AveragePoolGrad"): Lowering(pooling.average_pool_grad, pooling.average_refusal, attributes=AVERAGE_POOL),
    ("", "MaxPoolGrad"): Lowering(pooling.max_pool_grad, pooling.refusal, attributes=MAX_POOL),
    (MICROSOFT, "BiasFastGeluGrad_dX"): Lowering(activation.bias_fast_gelu_grad, activation.biased_refusal),
    (MICROSOFT, "BiasGeluGrad_dX"): Lowering(activation.bias_gelu_grad, activation.biased_refusal),
    (MICROSOFT, "BroadcastGradientArgs"): Lowering(arithmetic.broadcast_gradient_args),
    (MICROSOFT, "ConcatTraining"): Lowering(joining.concat_training, attributes=AXIS),
    (MICROSOFT, "ConvGrad"): Lowering(convolution.conv_grad, convolution.refusal, attributes=CONV),
    (MICROSOFT, "ConvTransposeGrad"): Lowering(
        convolution.conv_transpose_grad,
        convolution.refusal,
        attributes=CONV_TRANSPOSE,
    ),
    (MICROSOFT, "DivGrad"): Lowering(arithmetic.div_grad),
    (MICROSOFT, "DropoutGrad"): Lowering(activation.dropout_grad, activation.refusal, attributes={"seed": ANY}),
    (MICROSOFT, "FastGeluGrad"): Lowering(activation.fast_gelu_grad, activation.refusal),
    (MICROSOFT, "GatherElementsGrad"): Lowering(
        indexing.gather_elements_grad, indexing.gather_elements_grad_refusal, attributes=AXIS
    ),
    (MICROSOFT, "GatherGrad"): Lowering(indexing.gather_grad, indexing.gather_grad_refusal, attributes=AXIS),
    (MICROSOFT, "GatherNDGrad"): Lowering(
        indexing.gather_nd_grad, indexing.gather_nd_grad_refusal, attributes={"batch_dims": ANY}
    ),
    (MICROSOFT, "GeluGrad"): Lowering(
        activation.gelu_grad, activation.refusal, attributes={"approximate": ("none",)}
    ),
    (MICROSOFT, "InPlaceAccumulatorV2"): Lowering(
        accumulation.in_place_accumulator, accumulation.accumulator_refusal
    ),
    (MICROSOFT, "LayerNormalizationGrad"): Lowering(
        normalization.layer_normalization_grad, normalization.refusal, attributes={**AXIS, **NORM}
    ),
    (MICROSOFT, "LeakyReluGrad"): Lowering(activation.leaky_relu_grad, activation.refusal, attributes=ALPHA),
    (MICROSOFT, "LogSoftmaxGrad"): Lowering(loss.log_softmax_grad, loss.softmax_refusal, attributes=AXIS),
    (MICROSOFT, "LogSoftmaxGrad_13"): Lowering(loss.log_softmax_grad, attributes=AXIS),
    (MICROSOFT, "QuickGeluGrad"): Lowering(activation.quick_gelu_grad, activation.refusal, attributes=ALPHA),
    (MICROSOFT, "ReluGrad"): Lowering(activation.relu_grad, activation.refusal),
    (MICROSOFT, "ResizeGrad"): Lowering(resize.resize_grad, resize.refusal, attributes=resize.ATTRIBUTES),
    (MICROSOFT, "Scale"): Lowering(reduction.scale, attributes={"scale_down": FLAG}),
    (MICROSOFT, "SigmoidGrad"): Lowering(activation.sigmoid_grad, activation.refusal),
    (MICROSOFT, "SimplifiedLayerNormalizationGrad"): Lowering(
        normalization.simplified_layer_normalization_grad, normalization.refusal, attributes={**AXIS, **NORM}
    ),
    (MICROSOFT, "SliceGrad"): Lowering(slicing.slice_grad, slicing.refusal),
    (MICROSOFT, "SoftmaxCrossEntropyLossGrad"): Lowering(
        loss.softmax_cross_entropy_loss_grad, loss.loss_refusal, attributes=LOSS
    ),
    (MICROSOFT, "SoftmaxGrad"): Lowering(loss.softmax_grad, loss.softmax_refusal, attributes=AXIS),
    (MICROSOFT, "SoftmaxGrad_13"): Lowering(loss.softmax_grad, attributes=AXIS),
    (MICROSOFT, "SplitTraining"): Lowering(joining.split_training, attributes=AXIS),
    (MICROSOFT, "TanhGrad"): Lowering(activation.tanh_grad, activation.refusal),
}
"""(domain, op type) -> its lowering."""
