"""Forms of MaxPoolInputGrad: windows, models of one node and their inputs."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from bngrad.opset.domain import DOMAIN
from bngrad.opset.max_pool_grad import NAME, function_proto
from bngrad.validation.training_ops.pooling import max_pool

TYPES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}
LONG = 600
"""Elements of a row with more windows than are compared together."""
WINDOWS = {
    "3x3, stride 2": ((7, 8), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    "3x3, stride 2, padded": ((9, 12), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "3x3, stride 1": ((5, 6), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "2x2": ((6, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "2x2, a remainder": ((7, 9), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "gaps": ((8, 9), {"kernel_shape": [2, 1], "strides": [3, 4]}),
    "whole image": ((4, 5), {"kernel_shape": [4, 5]}),
    "wider than the image": ((2, 2), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "1x1": ((4, 5), {"kernel_shape": [1, 1]}),
    "5x4, pads differ": ((7, 8), {"kernel_shape": [5, 4], "strides": [2, 3], "pads": [0, 2, 1, 1]}),
    "dilated": ((9, 11), {"kernel_shape": [3, 3], "dilations": [2, 3]}),
    "dilated, padded": ((7, 8), {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [1, 2, 2, 1]}),
    "ceil": ((6, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "ceil, no empty window": (
        (4, 4),
        {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1},
    ),
    "1-D": ((9,), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    "1-D, long": ((LONG,), {"kernel_shape": [3], "pads": [1, 1]}),
    "2-D, long": ((4, 2 * LONG), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "long, any kernel": ((3, LONG), {"kernel_shape": [2, 5], "strides": [1, 1]}),
    "3-D": ((4, 6, 4), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    "3-D, overlap": ((4, 5, 5), {"kernel_shape": [2, 3, 3], "strides": [1, 2, 1], "pads": [0, 1, 1, 1, 0, 1]}),
    "3-D, dilated": ((6, 5, 6), {"kernel_shape": [2, 2, 2], "dilations": [3, 2, 2]}),
    "3-D, 3x3x3": ((5, 5, 6), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "pads": [1] * 6}),
}


def complete(attributes):
    """All attributes of the op."""
    rank = len(attributes["kernel_shape"])
    ones = [1] * rank
    return {"ceil_mode": 0, "dilations": ones, "pads": [0] * 2 * rank, "strides": ones, **attributes}


def model_of(attributes, dtype=np.float32, *, opset=17, function=True, rank=None):
    """One node, whose inputs have free dimensions."""
    shape = [None] * (rank or 2 + len(attributes["kernel_shape"]))
    element = TYPES.get(dtype, dtype)
    dY, X, dX = (helper.make_tensor_value_info(name, element, shape) for name in ("dY", "X", "dX"))
    node = helper.make_node(NAME, ["dY", "X"], ["dX"], "the_node", domain=DOMAIN, **attributes)
    return helper.make_model(
        helper.make_graph([node], "g", [dY, X], [dX]),
        functions=[function_proto(opset)] if function else [],
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        ir_version=8,
    )


def feeds_of(x, attributes, rng):
    y = max_pool(np.zeros((1, *x.shape[1:])), **attributes)[0]
    return {"dY": rng.standard_normal((len(x), *y.shape[1:])).astype(x.dtype), "X": x}
