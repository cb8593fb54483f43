"""The differences between what two forward models compute in inference mode, measured on data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.autodiff.prepare_forward import make_inputs
from bngrad.autodiff.running_statistics import is_given, is_of_onnx
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.session import session
from bngrad.training.finalize import inlined_copy, losses, running_outputs, to_inference_model
from bngrad.training.step_errors import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class OutputError:
    """The difference between an output of two models over all data."""

    output: str
    """The output."""
    max_error: float
    """The largest absolute difference; infinite if only one is finite."""
    mean_error: float
    """The mean absolute difference."""
    relative_error: float
    """The largest absolute difference, divided by the largest absolute value."""


def inference_model(model: ir.Model) -> ir.Model:
    """Returns a copy of a forward model in inference mode, without losses if it has other outputs.

    Raises:
        ModelError: It has no float output, or one depends on a random node.
    """
    copy = inlined_copy(model)
    InferTypesPass()(copy)
    graph = copy.graph
    computed = [value for value in graph.outputs if value not in running_outputs(copy)]
    outputs = [value for value in computed if value not in losses(graph)] or computed
    names = [str(value.name) for value in outputs if value.dtype in (None, *SUPPORTED_DTYPES)]
    if not names:
        raise ModelError("the model has no float output to compare; give no --data")
    result = to_inference_model(copy, {}, outputs=names, batch_statistics=True).model
    parameters = [value for node in filter(is_of_onnx, result.graph) for value in node.inputs[1:5]]
    # ONNX Runtime does not fold a batch norm whose parameters may be fed.
    make_inputs(result.graph, [value for value in parameters if value is not None and is_given(value)])
    return result


def output_errors(before: ir.Model, after: ir.Model, batches: Iterable[Mapping[str, Array]]) -> list[OutputError]:
    """Returns the errors of each output.

    Args:
        before: The first model, as `inference_model` returns it.
        after: The second one, with the same inputs and outputs.
        batches: Batches, with an array for each input.

    Raises:
        InputError: ONNX Runtime refuses the data.
    """
    sessions = session(before), session(after)
    names = [str(value.name) for value in before.graph.outputs]
    largest, total, count, scale = (dict.fromkeys(names, 0.0) for _ in range(4))
    for batch in batches:
        try:
            results = [model.run(names, dict(batch)) for model in sessions]
        except Exception as error:
            raise refused(error) from error
        for name, first, second in zip(names, *results, strict=True):
            old, new = np.asarray(first, np.float64), np.asarray(second, np.float64)
            with np.errstate(invalid="ignore"):
                errors = np.where((old == new) | (np.isnan(old) & np.isnan(new)), 0, np.abs(old - new))
            errors[np.isnan(errors)] = np.inf
            largest[name] = max(largest[name], float(errors.max(initial=0)))
            scale[name] = max(scale[name], float(np.abs(old[np.isfinite(old)]).max(initial=0)))
            total[name] += float(errors.sum())
            count[name] += errors.size
    return [
        OutputError(
            name,
            largest[name],
            total[name] / max(count[name], 1),
            largest[name] / scale[name] if scale[name] else largest[name],
        )
        for name in names
    ]
