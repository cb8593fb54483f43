"""Models with one ``bngrad`` op, their inputs and their expected outputs."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import onnx
from onnx import TensorProto, helper

from bngrad.opset import reference
from bngrad.opset.axes import normalize_axes, parameter_shape
from bngrad.opset.functions import CALLS, DOMAIN, VERSION, function_proto
from bngrad.opset.quantities import COEFFICIENTS, QUANTITIES
from bngrad.opset.schemas import signature

GRAD = "BatchNormalizationGrad"
RELU_GRAD = "BatchNormalizationReluGrad"
GRAD_GRAD = "BatchNormalizationGradGrad"
TRAINING = "BatchNormalizationTraining"
STATISTICS = "BatchNormalizationStatistics"
ADAM = "AdamUpdate"
MOMENTS = "BatchNormalizationMoments"
MERGE_MOMENTS = "BatchNormalizationMergeMoments"
APPLY = "BatchNormalizationApply"
GRAD_SUMS = "BatchNormalizationGradSums"
RELU_GRAD_SUMS = "BatchNormalizationReluGradSums"
GRAD_APPLY = "BatchNormalizationGradApply"
RELU_GRAD_APPLY = "BatchNormalizationReluGradApply"
ALL_GATHER = "AllGather"
ALL_REDUCE = "AllReduce"

EPSILON = float(np.float32(1e-3))
MOMENTUM = float(np.float32(0.9))
CASES = {
    "grad-training": (GRAD, {"training_mode": 1}),
    "grad-frozen": (GRAD, {"training_mode": 0}),
    "relu-grad-training": (RELU_GRAD, {"training_mode": 1}),
    "relu-grad-frozen": (RELU_GRAD, {"training_mode": 0}),
    "grad-grad-training": (GRAD_GRAD, {"training_mode": 1}),
    "grad-grad-frozen": (GRAD_GRAD, {"training_mode": 0}),
    "training-biased": (TRAINING, {"epsilon": EPSILON, "momentum": MOMENTUM, "unbiased_running_var": 0}),
    "training-unbiased": (TRAINING, {"epsilon": EPSILON, "momentum": MOMENTUM, "unbiased_running_var": 1}),
    "statistics": (STATISTICS, {"epsilon": EPSILON}),
    "moments": (MOMENTS, {}),
    "merge-moments-biased": (MERGE_MOMENTS, {"epsilon": EPSILON, "momentum": MOMENTUM, "unbiased_running_var": 0}),
    "merge-moments-unbiased": (
        MERGE_MOMENTS,
        {"epsilon": EPSILON, "momentum": MOMENTUM, "unbiased_running_var": 1},
    ),
    "apply": (APPLY, {}),
    "grad-sums": (GRAD_SUMS, {}),
    "relu-grad-sums": (RELU_GRAD_SUMS, {}),
    "grad-apply": (GRAD_APPLY, {}),
    "relu-grad-apply": (RELU_GRAD_APPLY, {}),
    "all-gather": (ALL_GATHER, {"key": "a key"}),
    "all-reduce": (ALL_REDUCE, {"key": "a key"}),
    "adam": (ADAM, {}),
}
"""Every op in every mode, with attributes that are exact in float32."""

ELEMENT_TYPES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}
TOLERANCES = {np.float32: 3e-5, np.float64: 1e-12}
"""Absolute and relative tolerances for inputs of about 1 and inv_std up to 1 / sqrt(EPSILON)."""

FIXED_TYPES = {"tensor(int64)": TensorProto.INT64, "tensor(double)": TensorProto.DOUBLE}
"""The type constraints that are types."""

EXTENTS = (2, 3, 2, 4, 2, 1, 3, 2)


def subsets(rank):
    """Returns all sets of axes for a rank, including the empty set."""
    return [axes for k in range(rank + 1) for axes in itertools.combinations(range(rank), k)]


def op_model(op, attributes, *, dtype=np.float32, opset=17, function=True, shape=None, axes=None, types=None):
    """Returns a model with one op.

    Without ``shape`` and ``axes``, it takes data of every rank and any axes. ``types`` overrides the element types
    of inputs. An op without axes ignores them.
    """
    inputs, outputs, _ = signature(op)
    element_type = ELEMENT_TYPES[dtype]
    parameter = None
    if shape is not None and axes is not None:
        parameter = parameter_shape(shape, normalize_axes(axes, len(shape)))
    coefficients = None if shape is None else [COEFFICIENTS]
    channels = "C" if parameter is None else math.prod(parameter)
    shapes = {
        "data": shape,
        "parameter": parameter,
        "axes": ["k"],
        "coefficients": coefficients,
        "scalar": [],
        "moments": [3, channels],
        "gathered_moments": ["R", 3, channels],
        "sums": [2, channels],
        "gathered_sums": ["R", 2, channels],
        "gathered": None if shape is None else ["R", *shape],
    }
    values = {
        name: helper.make_tensor_value_info(
            name,
            (types or {}).get(name, FIXED_TYPES.get(QUANTITIES[name].type_constraint, element_type)),
            shapes[QUANTITIES[name].shape],
        )
        for name in inputs + outputs
    }
    nodes = [helper.make_node(op, inputs, outputs, name="bn", domain=DOMAIN, **attributes)]
    if axes is not None and "axes" in inputs:
        del values["axes"]
        tensor = helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)
        nodes.insert(0, helper.make_node("Constant", [], ["axes"], value=tensor))
    graph = helper.make_graph(
        nodes, "one_op", [values[n] for n in inputs if n in values], [values[n] for n in outputs]
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, VERSION)],
        functions=functions(op, opset, double=dtype == np.float64) if function else [],
        ir_version=8,
    )


def functions(op, opset=17, *, double=False):
    """Returns the function of an op after those that it calls, as onnx's evaluator requires."""
    return [function_proto(name, opset, double=double) for name in (*CALLS.get(op, ()), op)]


def op_feeds(op, shape, axes, rng, dtype=np.float32):
    """Draws inputs of about 1 for an op; variances and inv_std are positive."""
    inputs, _, _ = signature(op)
    parameter = parameter_shape(shape, normalize_axes(axes, len(shape)))
    channels, count = math.prod(parameter), math.prod(shape[axis] for axis in axes)
    feeds = {}
    for name in inputs:
        if name == "axes":
            feeds[name] = np.array(axes, np.int64)
        elif name == "batch_count":
            feeds[name] = np.array(3.0 * count)
        elif name == "gathered_sums":
            feeds[name] = rng.standard_normal((3, 2, channels))
        elif name == "gathered_moments":
            # The parts of three ranks, the second of which has none.
            counts = np.array([count, 0, 2 * count], np.float64)[:, np.newaxis] * np.ones(channels)
            means, squares = rng.standard_normal((3, channels)), rng.uniform(0.5, 2, (3, channels)) * counts
            feeds[name] = np.stack([counts, np.where(counts, means, 0), squares], axis=1)
        elif name == "coefficients":
            feeds[name] = np.array([0.5, 0.125, 0.75, 0.25, 0.875, 0.125, 0.5, 0.25, 0.0625])  # exact in float
        else:
            extents = shape if QUANTITIES[name].shape == "data" else parameter
            positive = name in ("inv_std", "batch_inv_std", "running_var", "exp_avg_sq")
            drawn = rng.uniform(0.5, 2, extents) if positive else rng.standard_normal(extents)
            double = QUANTITIES[name].type_constraint in FIXED_TYPES
            feeds[name] = np.asarray(drawn).astype(np.float64 if double else dtype)
    return feeds


def expected(op, feeds, attributes):
    """Returns the outputs of the float64 reference by name."""
    function = getattr(reference, re.sub(r"(?<!^)(?=[A-Z])", "_", op).lower())
    return dict(zip(signature(op)[1], function(**feeds, **attributes), strict=True))


def assert_dtypes(got, dtype):
    """Asserts that outputs by name have the dtype of the data, or the one that they always have."""
    for name, value in got.items():
        assert value.dtype == (np.float64 if QUANTITIES[name].type_constraint in FIXED_TYPES else dtype), name


def assert_matches(got, want, tolerance, what=""):
    """Asserts that outputs by name have equal shapes and close values, with NaN equal to NaN."""
    assert set(got) == set(want), what
    for name, value in want.items():
        assert got[name].shape == value.shape, f"{name} {what}"
        np.testing.assert_allclose(
            got[name], value, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=f"{name} {what}"
        )


def opset_versions():
    """Returns all ai.onnx opsets from the oldest that supports the functions to the newest of onnx."""
    return range(15, onnx.defs.onnx_opset_version() + 1)


def changed_opsets(op_types, versions):
    """Returns the first and the last of some opsets, and those in which the schema of one of some ops changes."""

    def changes(version):
        since = (onnx.defs.get_schema(op_type, version, "").since_version for op_type in op_types)
        return version in (versions[0], versions[-1]) or version in since

    return [version for version in versions if changes(version)]


def function_opsets(op):
    """Returns the opsets in which the function of an op means something else, see `changed_opsets`."""
    nodes = [node for name in (op, *CALLS.get(op, ())) for node in function_proto(name, 15).node]
    return changed_opsets({node.op_type for node in nodes if not node.domain}, opset_versions())
