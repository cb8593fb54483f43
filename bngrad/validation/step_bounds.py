"""Elementwise error bounds for the outputs of a correct step, in float.

With unit roundoff u and sums of K terms:

* Sums of products t of the inputs: 8 sqrt(K) u times the root of sum t^2, or times the result if that is larger,
  because rounding errors behave like a random walk over the partial sums. The sum of t^2 is the step's result for
  the squares of its inputs, without those that MaxPoolInputGrad only compares.
* The gradient of a parameter that was folded into a batch norm, a sum of products of dscale and dbias that may
  cancel: (8 + sqrt(K)) u times the step's result for inputs that make all terms positive; see `bounds`.
* Other steps: a few roundings of the largest element. If the step has ops of ``bngrad``, whose sums may cancel,
  also a multiple of the change when the inputs are perturbed by one ulp.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.opset import max_pool_grad
from bngrad.validation.noise import one_ulp_away

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bngrad.validation.steps import Step

    Array = NDArray[Any]
    Run = Callable[[Mapping[str, Array]], dict[str, Array]]

_UNIT = float(np.finfo(np.float32).eps) / 2

_SUMS_OF_PRODUCTS = {
    *(
        "AveragePoolGrad",
        "BroadcastGradientArgs",
        "ConcatTraining",
        "ConvGrad",
        "ConvTransposeGrad",
        "DropoutGrad",
    ),
    *("GatherElementsGrad", "GatherGrad", "GatherNDGrad", "MaxPoolGrad", "ReluGrad", "ResizeGrad", "Scale"),
    *("SliceGrad", "SplitTraining"),
    *("Add", "Cast", "Concat", "Expand", "FusedMatMul", "Gemm", "Identity", "MatMul", "Mul", "Neg", "Pad"),
    *("ReduceSum", "Reshape", "Split", "Squeeze", "Sum", "Transpose", "Unsqueeze"),
}
"""The ops that compute sums of products of their inputs, with coefficients of at most one."""

_STATISTICS = {"BatchNormalizationGrad": (1, 3), "BatchNormalizationReluGrad": (2, 4)}
"""The indices of X and mean among the inputs of batch-norm gradients."""


def bounds(
    step: Step,
    run: Run,
    feeds: Mapping[str, Array],
    captured: Mapping[str, Array],
    results: Mapping[str, Array],
) -> dict[str, Array]:
    """Returns the error bounds of the outputs of a step, by name.

    Args:
        step: A step of the graph under test.
        run: Computes the step's outputs.
        feeds: The values that the step reads.
        captured: The values of its outputs in the original graph.
        results: What `run` returns for `feeds`.
    """
    names = list(step.outputs.values())
    pools = [node for node in step.own_nodes if node.op_type == max_pool_grad.NAME]
    if len(pools) == len(step.own_nodes) and step.node.op_type in _SUMS_OF_PRODUCTS:
        compared = {str(node.inputs[1].name) for node in pools if node.inputs[1] is not None}
        squares = run(
            {
                name: np.asarray(np.square(a)) if a.dtype.kind == "f" and name not in compared else a
                for name, a in feeds.items()
            }
        )
        factor = 8 * math.sqrt(_terms(feeds)) * _UNIT
        return {
            name: factor * np.maximum(np.sqrt(np.abs(squares[name]).astype(np.float64)), np.abs(captured[name]))
            for name in names
        }
    folded = _with_positive_terms(step, feeds, captured)
    if folded is not None:
        count, inputs = folded
        terms = run(inputs)
        return {name: (8 + math.sqrt(count)) * _UNIT * terms[name].astype(np.float64) for name in names}
    roundings = 64 if step.own_nodes else 16
    largest = {name: _UNIT * float(np.max(np.abs(captured[name]), initial=0.0)) for name in names}
    if step.own_nodes:
        generator = np.random.default_rng(0)
        perturbed = run({name: one_ulp_away(array, generator) for name, array in feeds.items()})
        for name, value in results.items():
            largest[name] = max(largest[name], float(np.max(np.abs(perturbed[name] - value), initial=0.0)))
    return {name: np.asarray(roundings * bound) for name, bound in largest.items()}


def _terms(feeds: Mapping[str, Array]) -> int:
    """Estimates the number of terms of a sum: the size of the largest input without its second dimension."""
    arrays = [array for array in feeds.values() if array.dtype.kind == "f" and array.size]
    counts = [a.size // a.shape[1] if a.ndim > 1 else a.size for a in arrays]
    return max([16, *counts])


def _with_positive_terms(
    step: Step, feeds: Mapping[str, Array], captured: Mapping[str, Array]
) -> tuple[int, dict[str, Array]] | None:
    """Returns the number of terms of a batch norm's sums, and inputs with |dY| and |xhat| instead of dY and xhat.

    The result is None unless the step computes only gradients of parameters, with one batch norm over dimension 1.
    """
    if len(step.own_nodes) != 1 or step.own_nodes[0].op_type not in _STATISTICS:
        return None
    (node,) = step.own_nodes
    names = [str(node.inputs[i].name) for i in _STATISTICS[node.op_type]]  # type: ignore[union-attr]
    if not all(name in feeds for name in names):
        return None
    X, mean = (feeds[name] for name in names)
    if X.ndim < 2 or mean.shape != X.shape[1:2] or not mean.size:
        return None
    if any(captured[name].size > mean.size for name in step.outputs.values()):
        return None
    centered = X - mean.reshape(-1, *[1] * (X.ndim - 2))
    inputs = {**feeds, names[0]: centered, names[1]: np.zeros_like(mean)}
    return X.size // mean.size, {n: np.asarray(np.abs(a)) if a.dtype.kind == "f" else a for n, a in inputs.items()}
