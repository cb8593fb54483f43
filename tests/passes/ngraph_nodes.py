"""nGraph's batch norms for the tests: nodes, inputs, and its kernels in float64 and its own terms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.ngraph import ImportNgraphPass
from dialects import node_model, rewritten, run, worst_error
from ort_values import DTYPES, IMPLEMENTATIONS, TOLERANCES
from pass_models import content, proto

FORWARD = "BatchNormTraining"
BACKPROP = "BatchNormTrainingBackprop"
BACKPROP_OUTPUTS = ["input_delta", "gamma_delta", "beta_delta"]
FORWARD_OUTPUTS = ["output", "batch_mean", "batch_variance"]


# ---- nGraph's kernels, in float64 and its own terms ----


def per_channel(values, rank):
    return np.asarray(values, np.float64).reshape([1, -1] + [1] * (rank - 2))


def backprop(gamma, beta, input, mean, variance, delta, eps):  # noqa: A002, ARG001
    """nGraph's reference kernel: through gamma / sqrt(variance + eps), the mean, and the variance."""
    rank, others = input.ndim, tuple(d for d in range(input.ndim) if d != 1)
    per_mean = input.size // input.shape[1]
    delta, centered = delta.astype(np.float64), input.astype(np.float64) - per_channel(mean, rank)
    var_eps = np.asarray(variance, np.float64) + np.float64(np.float32(eps))
    inv_sqrt = 1 / np.sqrt(var_eps)
    gamma = np.asarray(gamma, np.float64)
    delta_gammad = (centered * delta).sum(axis=others)
    delta_centered = delta * per_channel(gamma * inv_sqrt, rank)
    if per_mean == 0:
        return delta_centered, delta_gammad, delta.sum(axis=others)
    delta_mean = -delta_centered.sum(axis=others, keepdims=True)
    delta_variance = -gamma * delta_gammad * inv_sqrt / (2 * var_eps)
    through_variance = centered * per_channel(2 * delta_variance / per_mean, rank)
    return (
        delta_centered + delta_mean / per_mean + through_variance,
        delta_gammad * inv_sqrt,
        delta.sum(axis=others),
    )


def training(gamma, beta, input, eps):  # noqa: A002
    rank, others = input.ndim, tuple(d for d in range(input.ndim) if d != 1)
    x = input.astype(np.float64)
    mean = x.mean(axis=others)
    centered = x - per_channel(mean, rank)
    variance = np.square(centered).mean(axis=others)
    scale = per_channel(np.asarray(gamma, np.float64) / np.sqrt(variance + np.float64(np.float32(eps))), rank)
    return centered * scale + per_channel(beta, rank), mean, variance


def draw(shape, dtype, rng, *, offset=0.0):
    """All six inputs; mean and variance are not those of the input, for nGraph takes any."""
    c, dtype = shape[1], DTYPES[dtype]
    drawn = {
        "gamma": rng.uniform(0.5, 2, c),
        "beta": rng.standard_normal(c),
        "input": rng.standard_normal(shape) + offset,
        "mean": rng.standard_normal(c) * 0.3 + offset,
        "variance": rng.uniform(0.5, 2, c),
        "delta": rng.standard_normal(shape),
    }
    return {name: value.astype(dtype) for name, value in drawn.items()}


def forward_inputs(inputs):
    return {name: inputs[name] for name in ("gamma", "beta", "input")}


def check(model, inputs, want, tolerance, terms=0.0):
    """Runs a model after the pass.

    Args:
        model: The model.
        inputs: What it is fed.
        want: Outputs by name.
        tolerance: The largest error over the largest value of an output, or over ``terms``.
        terms: How large the terms are that may cancel in a sum.
    """
    result = rewritten(model, ImportNgraphPass())
    for implementation in IMPLEMENTATIONS:
        got = run(result, inputs, implementation)
        for name, value in want.items():
            assert got[name].dtype == inputs["input"].dtype
            allowed = tolerance * max(1.0, terms / (np.max(np.abs(value), initial=0.0) or 1.0))
            assert worst_error(got[name], value) <= allowed, (implementation, name)
    return result


def check_backprop(shape, dtype, rng, *, eps=1e-3, op_type=BACKPROP, attribute="eps", **options):
    inputs = draw(shape, dtype, rng)
    model = node_model(op_type, inputs, BACKPROP_OUTPUTS, **{attribute: eps}, **options)
    want = dict(zip(BACKPROP_OUTPUTS, backprop(**inputs, eps=eps), strict=True))
    return check(model, inputs, want, TOLERANCES[dtype])


def check_training(shape, dtype, rng, *, eps=1e-3, attribute="eps", **options):
    inputs = forward_inputs(draw(shape, dtype, rng))
    model = node_model(FORWARD, inputs, FORWARD_OUTPUTS, **{attribute: eps}, **options)
    want = dict(zip(FORWARD_OUTPUTS, training(**inputs, eps=eps), strict=True))
    terms = np.max(np.abs(inputs["input"]), initial=0.0)  # what the batch_mean is a sum of
    return check(model, inputs, want, TOLERANCES[dtype], terms=terms)


def of_unknown_rank(op_type, inputs):
    """A model whose data goes through a Reshape, to a shape that it is fed; and those feeds.

    Behind the node the data is flat again, for a graph output has to have a rank.
    """
    backward = op_type == BACKPROP
    kind = next(name for name, dtype in DTYPES.items() if dtype == inputs["input"].dtype)
    names = ["gamma", "beta", "input", "mean", "variance", "delta"] if backward else ["gamma", "beta", "input"]
    outputs = BACKPROP_OUTPUTS if backward else FORWARD_OUTPUTS
    data = [name for name in names if name in ("input", "delta")]
    parameters = ", ".join(f"{kind}[{'K' if name in data else 3}] {name}" for name in names)
    reshapes = "\n".join(f"{name}_whole = Reshape<allowzero = 1>({name}, to)" for name in data)
    arguments = ", ".join(f"{name}_whole" if name in data else name for name in names)
    text = f"""g ({parameters}, int64[R] to) => ({kind}[K] {outputs[0]}, {outputs[1]}, {outputs[2]}) {{
        {reshapes}
        whole, {outputs[1]}, {outputs[2]} = {op_type}<eps = 0.001>({arguments})
        flat = Constant<value = int64[1] {{-1}}>()
        {outputs[0]} = Reshape(whole, flat) }}"""
    feeds = {name: value.ravel() for name, value in inputs.items()}
    return ir.from_proto(proto(text)), {**feeds, "to": np.array(inputs["input"].shape, np.int64)}


# ---- nodes as text, and refusals ----

NCHW = (4, 3, 2, 2)
DATA, C = "float[N,3,H,W]", "float[3]"
NODE = "BatchNormTrainingBackprop<eps: float = 0.001>(gamma, beta, input, mean, variance, delta)"
SIGNATURE = f"bool c, {DATA} input, {C} gamma, {C} beta, {C} mean, {C} variance, {DATA} delta"


def refused(model, reason):
    before = content(model)
    with pytest.raises(UnsupportedNodeError) as error:
        ImportNgraphPass()(model)
    assert "node 'foreign' (outputs" in str(error.value)
    assert f"cannot be rewritten: {reason}" in str(error.value)
    assert content(model) == before
