"""Checks that the loss of a batch is made of terms of single samples, by running the model.

A loss that compares samples with each other, such as a contrastive one, or a layer that normalizes over the batch
and is no batch norm, gives each rank of a distributed run another loss than the whole batch has. With the halves a
and c, b and d of batches, in inference mode, terms of single samples cancel in::

    loss(a, b) - loss(a, d) - loss(c, b) + loss(c, d)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.loss_terms import LossTerms, weighing_inputs
from bngrad.errors import BngradError, ModelError
from bngrad.opset.known_shapes import known_shape
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.session import session
from bngrad.training.evaluation import evaluation_graph, state_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

_SIXTEEN_BITS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_ROWS = 4
"""Of a batch, if the model does not fix it."""
_SIZES = (8, 32, 64, 224, 1)
"""What is tried for other symbolic dimensions: a model may need images of some size."""
_SCALES = (1.0, 0.01)
"""Of the data: large ones may overflow in a network that is not trained."""
_TOLERANCE = 1e-4
"""Of the largest loss: far above the rounding of a float loss, and far below what pairs of samples contribute."""


def check_separable(model: ir.Model, values: Mapping[str, Array], loss: str) -> str | None:
    """Checks that samples contribute to a loss independently of each other in inference mode.

    Args:
        model: The forward model; it is not changed.
        values: The weights and running statistics, by the names of the training graph's inputs.
        loss: The name of the loss.

    Returns:
        Why it could not be checked; None if it was.

    Raises:
        ModelError: Samples contribute in pairs.
    """
    try:
        evaluation = InferTypesPass()(evaluation_graph(model, values, loss)).model
        if any(value.dtype in _SIXTEEN_BITS for node in evaluation.graph for value in node.outputs):
            return "numbers of 16 bits round off more than pairs of samples may contribute"
        data = [value for value in evaluation.graph.inputs if value.name not in values]
        fixed = _fixed(evaluation, values, loss)
    except BngradError as error:
        return str(error)
    varied = [value for value in data if str(value.name) not in fixed]
    if not varied:
        return "all data decide on the weights of the samples"
    reason = "its inputs have no known shapes"
    for size in _SIZES:
        for scale in _SCALES:
            try:
                losses = _losses(evaluation, values, loss, data, varied, size=size, scale=scale)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime has no class for a model that it cannot run
                reason = " ".join(str(error).split())
                continue
            if losses is not None and np.isfinite(losses).all():
                _require_cancelled(losses, loss)
                return None
            reason = "the loss of random data is not finite" if losses is not None else reason
        if all(isinstance(d, int) for value in data for d in (known_shape(value) or (None,))[1:]):
            break  # no other size to try
    return reason


def _fixed(evaluation: ir.Model, values: Mapping[str, Array], loss: str) -> set[str]:
    """The inputs that decide how much samples count, such as labels that may be ignored."""
    graph = evaluation.graph
    value = next(one for one in graph.outputs if one.name == loss)
    return weighing_inputs(LossTerms(graph, list(values)), value)


def _losses(
    evaluation: ir.Model,
    values: Mapping[str, Array],
    loss: str,
    data: list[ir.Value],
    varied: list[ir.Value],
    *,
    size: int,
    scale: float,
) -> Array | None:
    """The losses of four batches; None if the batch has one row."""
    generator = np.random.default_rng(0)
    first, second = ({str(v.name): _drawn(v, generator, size, scale) for v in data} for _ in range(2))
    rows = min(len(array) for array in first.values() if array.ndim)
    if rows < 2:
        return np.zeros(4)
    run = session(evaluation)
    state = {name: array.astype(state_dtype(array.dtype)) for name, array in values.items()}
    half, losses = rows // 2, []
    for head, tail in ((first, first), (first, second), (second, first), (second, second)):
        feeds = dict(first)
        for value in varied:
            name = str(value.name)
            if first[name].ndim and len(first[name]) == rows:
                feeds[name] = np.concatenate([head[name][:half], tail[name][half:]])
        known = {one.name for one in run.get_inputs()}
        feeds = {name: array for name, array in (feeds | state).items() if name in known}
        losses.append(float(run.run([loss], feeds)[0].item()))
    return np.array(losses)


def _drawn(value: ir.Value, generator: np.random.Generator, size: int, scale: float) -> Array:
    """Random data: labels and indices are 0 or 1, which every model with classes or a vocabulary has."""
    shape = known_shape(value)
    if shape is None or value.dtype is None:
        raise ModelError(f"input {value.name!r} has no known rank or type")
    sizes = [one if isinstance(one, int) else (size if axis else _ROWS) for axis, one in enumerate(shape)]
    dtype = value.dtype.numpy()
    if dtype.kind in "iub":
        return generator.integers(0, 2, sizes).astype(dtype)
    return np.asarray(scale * generator.uniform(0.1, 1.0, sizes)).astype(dtype)


def _require_cancelled(losses: Array, loss: str) -> None:
    rest = abs(losses[0] - losses[1] - losses[2] + losses[3])
    if rest > _TOLERANCE * np.abs(losses).max():
        raise ModelError(
            f"loss {loss!r} depends on pairs of samples in inference mode: terms of single samples would cancel, "
            f"and {rest:.1e} of {np.abs(losses).max():.1e} is left; with --sync (sync=), expected a loss and "
            "layers that look at each sample on its own, but for batch norms"
        )
