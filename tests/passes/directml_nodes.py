"""DirectML's batch-norm gradient for the tests: nodes, inputs, and its formulas in float64 and its own terms."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.directml import ImportDirectmlPass
from dialects import node_model, rewritten, run, worst_error
from ort_values import DTYPES, IMPLEMENTATIONS, TOLERANCES
from pass_models import content, model

OP = "DML_BATCH_NORMALIZATION_GRAD"
INPUTS = ["Input", "InputGradient", "Mean", "Variance", "Scale"]
OUTPUTS = ["OutputGradient", "OutputScaleGradient", "OutputBiasGradient"]


# ---- DirectML's formulas, in float64 and its own terms ----


def gradients(Input, InputGradient, Mean, Variance, Scale, Epsilon):
    """The three outputs, with sums "across the set of dimensions for which [the parameters'] sizes equal one"."""
    x, dy, mean, variance, scale = (
        np.asarray(value, np.float64) for value in (Input, InputGradient, Mean, Variance, Scale)
    )
    std = np.sqrt(variance + np.float64(np.float32(Epsilon)))
    summed = tuple(d for d, size in enumerate(mean.shape) if size == 1)
    return (
        dy * (scale / std),
        np.sum(dy * (x - mean) / std, axis=summed, keepdims=True),
        np.sum(dy, axis=summed, keepdims=True),
    )


def draw(shape, summed, dtype, rng):
    """All five inputs; their averages are not 0, so that no sum cancels."""
    parameters = [1 if d in summed else extent for d, extent in enumerate(shape)]
    drawn = {
        "Input": rng.standard_normal(shape) + 1,
        "InputGradient": rng.standard_normal(shape) + 1,
        "Mean": rng.standard_normal(parameters) * 0.3,
        "Variance": rng.uniform(0.5, 2, parameters),
        "Scale": rng.uniform(0.5, 2, parameters),
    }
    return {name: value.astype(DTYPES[dtype]) for name, value in drawn.items()}


def check(original, inputs, want, tolerance, feeds=None, terms=0.0):
    """Runs a model after the pass.

    Args:
        original: The model.
        inputs: The node's inputs.
        want: All outputs by name.
        tolerance: The largest error over the largest value of an output, or over ``terms``.
        feeds: What the model is fed, if not the node's inputs.
        terms: How large the terms are that may cancel in a sum.
    """
    result = rewritten(original, ImportDirectmlPass())
    for implementation in IMPLEMENTATIONS:
        got = run(result, feeds or inputs, implementation)
        assert set(got) == set(want)
        for name, value in want.items():
            assert got[name].dtype == inputs["Input"].dtype
            allowed = tolerance * max(1.0, terms / (np.max(np.abs(value), initial=0.0) or 1.0))
            assert worst_error(got[name], value) <= allowed, (implementation, name)
    return result


def check_node(shape, summed, dtype, rng, *, epsilon=1e-3, spelled="Epsilon", op_type=OP, **options):
    inputs = draw(shape, summed, dtype, rng)
    want = dict(zip(OUTPUTS, gradients(**inputs, Epsilon=epsilon), strict=True))
    original = node_model(op_type, inputs, OUTPUTS, **{spelled: epsilon}, **options)
    return check(original, inputs, want, TOLERANCES[dtype])


# ---- nodes of which not everything is known ----

X, P = "float[N,3,H,W]", "float[1,3,1,1]"
NODE = f"{OP}<Epsilon: float = 0.001>({', '.join(INPUTS)})"
GIVEN = f"{X} Input, {X} InputGradient, {P} Mean, {P} Variance, {P} Scale"


def of_shapes(data=("?", "?"), parameters=("?", "?", "?"), outputs=("", "", "")):
    """A node whose inputs and outputs have these shapes, as text; "?" and "" are shapes that are not known."""
    names = [*zip(INPUTS, (*data, *parameters), strict=True)]
    inputs = ", ".join(f"float{shape} {name}" for name, shape in names if shape != "?")
    hidden = [name for name, shape in names if shape == "?"]
    flat = ", ".join(f"float[K] {name}_flat, int64[R] {name}_shape" for name in hidden)
    reshapes = "\n".join(f"{name} = Reshape({name}_flat, {name}_shape)" for name in hidden)
    declared = ", ".join(f"float{shape} {name}" for name, shape in zip(OUTPUTS, outputs, strict=True))
    inputs = ", ".join(filter(None, (inputs, flat)))
    result = model(f"g ({inputs}) => ({declared}) {{ {reshapes}\n [foreign] {', '.join(OUTPUTS)} = {NODE} }}")
    for value, shape in zip(result.graph.outputs, outputs, strict=True):
        if not shape:
            value.shape = None
    return result


ADVICE = "give MeanTensor, VarianceTensor or ScaleTensor a static shape; inline functions, whose values have none"


def refused(original, reason):
    before = content(original)
    with pytest.raises(UnsupportedNodeError) as error:
        ImportDirectmlPass()(original)
    assert "node 'foreign' (outputs" in str(error.value)
    assert f"cannot be rewritten: {reason}" in str(error.value)
    assert content(original) == before
    return str(error.value)
