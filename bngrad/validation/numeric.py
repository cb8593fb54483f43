"""Gradients against central differences of the loss in float64: an oracle that no framework's mistakes reach.

For an input w and a random direction v: (loss(w + h v) - loss(w - h v)) / (2 h) has to be the sum of
w_grad * v. The error of the difference is of order h^2, and of 1e-16 / h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.validation.double import too_large
from bngrad.validation.float64 import evaluate
from bngrad.validation.report import Check, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx
    from numpy.typing import NDArray

    Array = NDArray[Any]

STEP = 1e-6
"""Relative to a direction as long as the input itself: small, for a ReLU may change sides within it."""

LIMIT = 1e-5
"""Relative to |w_grad| |v|, the most that the sum could be."""


MAX_ELEMENTS = 600_000
"""Fewer than for a single evaluation: every gradient costs two."""


def central_differences(
    rewritten: onnx.ModelProto,
    feeds: Mapping[str, Array],
    *,
    loss: str,
    seed: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Compares every output ``<input>_grad`` of a training graph with central differences of its loss.

    Args:
        rewritten: The training graph, with the functions of the ops of ``bngrad``.
        feeds: The inputs.
        loss: The output to differentiate.
        seed: For the directions.
        progress: Called with the number of gradients done, and of all.

    Raises:
        ModelError: There is no such output.
    """
    check = Check("central differences", unit="relative", limit=LIMIT)
    check.skipped = too_large(feeds, MAX_ELEMENTS)
    if check.skipped:
        return check
    model = ir.from_proto(rewritten)
    outputs = [str(value.name) for value in model.graph.outputs]
    if loss not in outputs:
        raise ModelError(f"there is no output {loss!r} to differentiate; the outputs are {', '.join(outputs)}")
    gradients = [name for name in outputs if name.endswith("_grad") and name.removesuffix("_grad") in feeds]
    forward = _forward(model, loss)
    generator = np.random.default_rng(seed)
    try:
        results = evaluate(rewritten, feeds, gradients)
        for done, name in enumerate(gradients, start=1):
            check.rows.append(_row(forward, feeds, loss, name, results[name], generator))
            progress(done, len(gradients))
    except UnsupportedNodeError as error:
        check.skipped = str(error)
    return check


def _forward(model: ir.Model, loss: str) -> onnx.ModelProto:
    """The part of a training graph that computes the loss, with all its inputs."""
    graph = ir.convenience.extract(model.graph, [str(v.name) for v in model.graph.inputs], [loss])
    functions = [function.clone() for function in model.functions.values()]
    return ir.to_proto(ir.Model(graph, ir_version=model.ir_version, functions=functions))


def _row(
    forward: onnx.ModelProto,
    feeds: Mapping[str, Array],
    loss: str,
    name: str,
    gradient: Array,
    generator: np.random.Generator,
) -> Row:
    wrt = name.removesuffix("_grad")
    value = feeds[wrt].astype(np.float64)
    direction = generator.standard_normal(value.shape)
    # As long as the input, but for one that is zero: a bias that has not been trained.
    direction *= max(float(np.linalg.norm(value)), 1.0) / float(np.linalg.norm(direction))
    ahead, behind = (
        float(evaluate(forward, {**feeds, wrt: value + sign * STEP * direction}, [loss])[loss]) for sign in (1, -1)
    )
    want = (ahead - behind) / (2 * STEP)
    got = float(np.sum(gradient * direction))
    scale = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
    # The loss itself has 16 digits, so its difference has 16 less those of STEP.
    measure = abs(got - want) / max(scale, abs(want), 1e-3 * abs(ahead))
    relative = abs(got - want) / abs(want) if want else float(got != want)
    return Row(
        name,
        name,
        "gradient",
        "rewritten, function",
        "differences",
        abs(got - want),
        relative,
        measure,
        measure <= LIMIT,
    )
