"""The gradient rules: what each op's rule differentiates, and the versions and attributes that it knows.

`Rule` says what the columns mean; the versions are those that ai.onnx 18 and newer resolve to, which
`tests/autodiff/test_schema_history.py` compares with onnx's. An op that onnx has and that is not here is in
`without_rule.py`.
"""

from __future__ import annotations

from bngrad.autodiff.rule import Rule
from bngrad.autodiff.rules import (
    activation,
    arithmetic,
    convolution,
    creation,
    indexing,
    loss,
    matrix,
    normalization,
    pooling,
    reduction,
    resampling,
    selection,
    shape,
    unary,
)
from bngrad.autodiff.rules import local_response as response
from bngrad.opset import op_attributes
from bngrad.opset.functions import DOMAIN
from bngrad.opset.op_attributes import ALPHA, ANY, AXIS, FLAG, LOSS, REDUCTION, SCATTER
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT
from bngrad.passes.lower import resize

_TYPES = (21, 23, 24, 25)
"""The versions that brought new types alone, to ops that move elements of any type."""
_BLOCKS = {"blocksize": ANY, "mode": ("DCR", "CRD")}

_ONNX: dict[str, Rule] = {
    "Abs": Rule(unary.absolute, versions=(13,)),
    "Add": Rule(arithmetic.add, inputs=(0, 1), versions=(14,)),
    "AveragePool": Rule(pooling.average_pool, versions=(11, 19, 22), attributes=op_attributes.AVERAGE_POOL),
    "BatchNormalization": Rule(
        normalization.batch_norm_frozen,
        inputs=(0, 1, 2, 3, 4),
        versions=(15,),
        attributes={"epsilon": ANY, "momentum": ANY, "training_mode": (0,)},
    ),
    "Bernoulli": Rule(unary.nothing, inputs=(), zero=(0,), versions=(15, 22), attributes=op_attributes.RANDOM),
    "Cast": Rule(
        unary.cast, versions=(13, 19, 21, 23, 24, 25, 28), attributes={"to": ANY, **op_attributes.ROUNDING}
    ),
    "CastLike": Rule(unary.cast, zero=(1,), versions=(15, 19, 21, 23, 24, 25), attributes=op_attributes.ROUNDING),
    "Ceil": Rule(unary.nothing, inputs=(), zero=(0,), versions=(13,)),
    "Celu": Rule(activation.celu, versions=(12, 28), attributes=ALPHA),
    "Clip": Rule(selection.clip, inputs=(0, 1, 2), versions=(13,)),
    "Concat": Rule(shape.concat, inputs=None, versions=(13,), attributes=AXIS),
    "Conv": Rule(convolution.conv, inputs=(0, 1, 2), versions=(11, 22), attributes=op_attributes.CONV),
    "ConvTranspose": Rule(
        convolution.conv_transpose, inputs=(0, 1, 2), versions=(11, 22), attributes=op_attributes.CONV_TRANSPOSE
    ),
    "Cos": Rule(unary.cos, versions=(7, 22)),
    "CumSum": Rule(indexing.cum_sum, versions=(14,), attributes={"exclusive": FLAG, "reverse": FLAG}),
    "DepthToSpace": Rule(shape.depth_to_space, versions=(13, 28), attributes=_BLOCKS),
    "Div": Rule(arithmetic.div, inputs=(0, 1), versions=(14,)),
    "Dropout": Rule(selection.dropout, versions=(13, 22), attributes={"seed": ANY}),
    "Elu": Rule(activation.elu, versions=(6, 22), attributes=ALPHA),
    "Erf": Rule(unary.erf, versions=(13,)),
    "Exp": Rule(unary.exp, versions=(13,)),
    "Expand": Rule(shape.expand, versions=(13,)),
    "EyeLike": Rule(unary.nothing, inputs=(), zero=(0,), versions=(9, 22), attributes={"dtype": ANY, "k": ANY}),
    "Flatten": Rule(shape.reshape, versions=(13, *_TYPES), attributes=AXIS),
    "Floor": Rule(unary.nothing, inputs=(), zero=(0,), versions=(13,)),
    "Gather": Rule(indexing.gather, versions=(13,), attributes=AXIS),
    "GatherElements": Rule(indexing.gather_elements, versions=(13,), attributes=AXIS),
    "GatherND": Rule(indexing.gather_nd, versions=(13,), attributes={"batch_dims": ANY}),
    "Gelu": Rule(activation.gelu, versions=(20,), attributes={"approximate": ("none", "tanh")}),
    "Gemm": Rule(
        matrix.gemm,
        inputs=(0, 1, 2),
        versions=(13,),
        attributes={"alpha": ANY, "beta": ANY, "transA": FLAG, "transB": FLAG},
    ),
    "GlobalAveragePool": Rule(reduction.reduce_mean, versions=(1, 22)),
    "GlobalMaxPool": Rule(reduction.reduce_extreme, versions=(1, 22)),
    "GroupNormalization": Rule(
        normalization.group_norm,
        inputs=(0, 1, 2),
        versions=(21,),
        attributes={"num_groups": ANY, **op_attributes.NORM},
    ),
    "HardSigmoid": Rule(activation.hard_sigmoid, versions=(6, 22), attributes={"alpha": ANY, "beta": ANY}),
    "HardSwish": Rule(activation.hard_swish, versions=(14, 22)),
    "Hardmax": Rule(unary.nothing, inputs=(), zero=(0,), versions=(13,), attributes=AXIS),
    "Identity": Rule(unary.identity, versions=(16, 19, *_TYPES)),
    "InstanceNormalization": Rule(
        normalization.instance_norm, inputs=(0, 1, 2), versions=(6, 22), attributes={"epsilon": ANY}
    ),
    "LRN": Rule(response.lrn, versions=(13,), attributes={"alpha": ANY, "beta": ANY, "bias": ANY, "size": ANY}),
    "LayerNormalization": Rule(
        normalization.layer_norm, inputs=(0, 1, 2), versions=(17,), attributes={**AXIS, **op_attributes.NORM}
    ),
    "LeakyRelu": Rule(activation.leaky_relu, versions=(16,), attributes=ALPHA),
    "Log": Rule(unary.log, versions=(13,)),
    "LogSoftmax": Rule(loss.log_softmax, versions=(13,), attributes=AXIS),
    "LpNormalization": Rule(response.lp_normalization, versions=(1, 22), attributes={**AXIS, "p": (1, 2)}),
    "MatMul": Rule(matrix.matmul, inputs=(0, 1), versions=(13,)),
    "Max": Rule(selection.extremum, inputs=None, versions=(13,)),
    "MaxPool": Rule(pooling.max_pool, versions=(12, 22), attributes=op_attributes.MAX_POOL),
    "Mean": Rule(arithmetic.mean, inputs=None, versions=(13,)),
    "Min": Rule(selection.extremum, inputs=None, versions=(13,)),
    "Mish": Rule(activation.mish, versions=(18, 22)),
    "Mul": Rule(arithmetic.mul, inputs=(0, 1), versions=(14,)),
    "Neg": Rule(unary.neg, versions=(13,)),
    "NegativeLogLikelihoodLoss": Rule(
        loss.negative_log_likelihood_loss, inputs=(0, 2), versions=(13, 22), attributes=LOSS
    ),
    "OneHot": Rule(creation.one_hot, inputs=(2,), zero=(0, 1), versions=(11, 28), attributes=AXIS),
    "PRelu": Rule(activation.prelu, inputs=(0, 1), versions=(16,)),
    "Pad": Rule(
        resampling.pad,
        inputs=(0, 2),
        versions=(18, 19, *_TYPES),
        attributes={"mode": ("constant", "reflect", "edge", "wrap")},
    ),
    "Pow": Rule(arithmetic.power, inputs=(0, 1), versions=(15,)),
    "RMSNormalization": Rule(
        normalization.rms_norm, inputs=(0, 1), versions=(23,), attributes={**AXIS, **op_attributes.NORM}
    ),
    "RandomNormalLike": Rule(
        unary.nothing,
        inputs=(),
        zero=(0,),
        versions=(1, 22),
        attributes={"mean": ANY, "scale": ANY, **op_attributes.RANDOM},
    ),
    "RandomUniformLike": Rule(
        unary.nothing,
        inputs=(),
        zero=(0,),
        versions=(1, 22),
        attributes={"high": ANY, "low": ANY, **op_attributes.RANDOM},
    ),
    "Range": Rule(creation.range_, inputs=(0, 2), zero=(1,), versions=(11, 27), attributes={"stash_type": ANY}),
    "Reciprocal": Rule(unary.reciprocal, versions=(13,)),
    "ReduceL1": Rule(reduction.reduce_l1, versions=(18,), attributes=REDUCTION),
    "ReduceL2": Rule(reduction.reduce_l2, versions=(18,), attributes=REDUCTION),
    "ReduceLogSum": Rule(reduction.reduce_log_sum, versions=(18, 28), attributes=REDUCTION),
    "ReduceLogSumExp": Rule(reduction.reduce_log_sum_exp, versions=(18, 28), attributes=REDUCTION),
    "ReduceMax": Rule(reduction.reduce_extreme, versions=(18, 20), attributes=REDUCTION),
    "ReduceMean": Rule(reduction.reduce_mean, versions=(18,), attributes=REDUCTION),
    "ReduceMin": Rule(reduction.reduce_extreme, versions=(18, 20), attributes=REDUCTION),
    "ReduceProd": Rule(reduction.reduce_prod, versions=(18,), attributes=REDUCTION),
    "ReduceSum": Rule(reduction.reduce_sum, versions=(13,), attributes=REDUCTION),
    "ReduceSumSquare": Rule(reduction.reduce_sum_square, versions=(18,), attributes=REDUCTION),
    "Relu": Rule(activation.relu, versions=(14,)),
    "Reshape": Rule(shape.reshape, versions=(14, 19, *_TYPES), attributes={"allowzero": FLAG}),
    "Resize": Rule(resampling.resize, versions=(18, 19), attributes=resize.ATTRIBUTES),
    "ReverseSequence": Rule(
        indexing.reverse_sequence, versions=(10, 28), attributes={"batch_axis": FLAG, "time_axis": FLAG}
    ),
    "Round": Rule(unary.nothing, inputs=(), zero=(0,), versions=(11, 22)),
    "ScatterElements": Rule(
        indexing.scatter_elements, inputs=(0, 2), versions=(18,), attributes={**AXIS, **SCATTER}
    ),
    "ScatterND": Rule(indexing.scatter_nd, inputs=(0, 2), versions=(18,), attributes=SCATTER),
    "Selu": Rule(activation.selu, versions=(6, 22), attributes={"alpha": ANY, "gamma": ANY}),
    "Sigmoid": Rule(activation.sigmoid, versions=(13,)),
    "Sign": Rule(unary.nothing, inputs=(), zero=(0,), versions=(13,)),
    "Sin": Rule(unary.sin, versions=(7, 22)),
    "Slice": Rule(indexing.slice_, versions=(13,)),
    "Softmax": Rule(loss.softmax, versions=(13,), attributes=AXIS),
    "SoftmaxCrossEntropyLoss": Rule(
        loss.softmax_cross_entropy_loss, inputs=(0, 2), versions=(13,), attributes=LOSS
    ),
    "Softplus": Rule(activation.softplus, versions=(1, 22)),
    "Softsign": Rule(activation.softsign, versions=(1, 22)),
    "SpaceToDepth": Rule(shape.space_to_depth, versions=(13, 28), attributes=_BLOCKS),
    "Split": Rule(shape.split, versions=(18,), attributes={**AXIS, "num_outputs": ANY}),
    "Sqrt": Rule(unary.sqrt, versions=(13,)),
    "Squeeze": Rule(shape.squeeze, versions=(13, *_TYPES)),
    "Sub": Rule(arithmetic.sub, inputs=(0, 1), versions=(14,)),
    "Sum": Rule(arithmetic.add, inputs=None, versions=(13,)),
    "Tanh": Rule(activation.tanh, versions=(13,)),
    "ThresholdedRelu": Rule(activation.thresholded_relu, versions=(10, 22), attributes=ALPHA),
    "Tile": Rule(shape.tile, versions=(13,)),
    "Transpose": Rule(shape.transpose, versions=(13, *_TYPES), attributes={"perm": ANY}),
    "Trilu": Rule(indexing.trilu, versions=(14,), attributes={"upper": FLAG}),
    "Unsqueeze": Rule(shape.unsqueeze, versions=(13, *_TYPES)),
    "Where": Rule(selection.where, inputs=(1, 2), versions=(16,)),
}

RULES: dict[tuple[str, str], Rule] = {
    **{("", op_type): rule for op_type, rule in _ONNX.items()},
    BATCH_NORM_INTERNAL: Rule(
        normalization.batch_norm_training,
        inputs=(0, 1, 2, 3, 4),
        attributes={"epsilon": ANY, "momentum": ANY, "training_mode": (1,)},
    ),
    (DOMAIN, "BatchNormalizationTraining"): Rule(
        normalization.batch_norm_of_ours,
        inputs=(0, 1, 2, 3, 4),
        attributes={"epsilon": ANY, "momentum": ANY, "unbiased_running_var": FLAG},
    ),
    (MICROSOFT, "BiasGelu"): Rule(activation.bias_gelu, inputs=(0, 1)),
    (MICROSOFT, "FastGelu"): Rule(activation.fast_gelu, inputs=(0, 1)),
    (MICROSOFT, "Gelu"): Rule(activation.gelu),
    (MICROSOFT, "QuickGelu"): Rule(activation.quick_gelu, attributes=ALPHA),
}
"""(domain, op type) -> its rule."""
