"""Checks that the terms of a loss add up over the parts of a batch, by running the model.

`loss_terms` takes a term for a sum or a mean over the batch by its last node. That is wrong if its summands
depend on several samples: in a contrastive loss, after a layer that normalizes over the batch and is not a batch
norm, or where the batch is reduced twice. So each term is computed for a batch and for two parts of it, in
inference mode, on random data: a sum must be the sum of those of the parts, a mean their weighted mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime

from bngrad.autodiff.loss_terms import Combination, Independent, LossTerms, Mean, Sum, terms_of
from bngrad.errors import BngradError, ModelError
from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.graph.nodes import describe
from bngrad.opset.known_shapes import known_shape
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.session import session
from bngrad.training.evaluation import evaluation_graph, state_dtype
from bngrad.training.to_inference import random_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from bngrad.autodiff.loss_terms import Term

    Array = NDArray[Any]
    Run = Callable[[Mapping[str, Array]], dict[str, Array]]

_ROWS, _FIRST = 5, 2
"""Of the batch, and of its first part; one row may have no deviation from a mean."""
_SIZES = (8, 32, 64, 224, 1)
"""The sizes tried for other symbolic dimensions: a model may need images of some size."""
_TOLERANCE = 1e-4
"""Of a term: far above the rounding of float, and far below the contribution of pairs of samples."""


class _Draw(NamedTuple):
    """A distribution of random data."""

    scale: float
    positive: bool


_DRAWS = (_Draw(1.0, positive=True), _Draw(0.01, positive=True), _Draw(3.0, positive=False))
"""Large numbers may overflow in a network that is not trained, small ones may stay below a term's thresholds."""


def check_separable(model: ir.Model, values: Mapping[str, Array], loss: str) -> str | None:
    """Checks that the terms of a loss add up over the parts of a batch in inference mode.

    Args:
        model: The forward model; it is not changed.
        values: The weights and running statistics, by the names of the training graph's inputs.
        loss: The name of the loss.

    Returns:
        The reason why it could not be checked; None if it was.

    Raises:
        ModelError: A term does not add up.
    """
    try:
        evaluation = InferTypesPass()(evaluation_graph(model, values, loss, batch_statistics=True)).model
        graph = evaluation.graph
        all_terms = terms_of(LossTerms(graph, list(values)), next(v for v in graph.outputs if v.name == loss))
        terms = {value: term for value, term in all_terms.items() if not isinstance(term, Combination)}
        _require_comparable(evaluation)
        data = [value for value in graph.inputs if value.name not in values]
        was_fixed = _free_batch(graph, data)
        run = _runner(evaluation, [value for pair in terms.items() for value in _read_for(*pair)], values)
        draws = list(_of_random_data(run, data))
    except BngradError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime has no class for a model that it cannot run
        return " ".join(str(error).split())
    for value, term in terms.items():
        wholes = [_whole(loss, value, term, parts) for parts in draws]
        if not np.isfinite(wholes).any():
            return "the loss of random data is not finite"
        if not isinstance(term, Independent) and not np.nansum(np.abs(wholes)):
            return f"its term {value.name!r} is 0 for random data"
        if was_fixed and isinstance(term, Sum):
            return f"its term {value.name!r} is a sum over a batch of fixed size, by which it may be divided"
    return None


def _require_comparable(evaluation: ir.Model) -> None:
    if any(value.dtype in SIXTEEN_BITS for node in evaluation.graph for value in node.outputs):
        raise ModelError("numbers of 16 bits round off more than pairs of samples may contribute")
    for node in random_nodes(evaluation):
        raise ModelError(f"{describe(node)} is random in inference mode, too")


def _free_batch(graph: ir.Graph, data: list[ir.Value]) -> bool:
    """Makes the first dimension of the data symbolic if the model fixes it; returns whether it was fixed."""
    if any(_takes_rows(value) for value in data):
        return False
    for value in data:
        if shape := known_shape(value):
            value.shape = ir.Shape(["bngrad_batch", *shape[1:]])
    for value in (value for node in graph for value in node.outputs):
        value.shape = None
    return True


def _takes_rows(value: ir.Value) -> bool:
    shape = known_shape(value)
    return shape is not None and len(shape) > 0 and isinstance(shape[0], str)


def _read_for(value: ir.Value, term: Term) -> list[ir.Value]:
    """Returns the values needed for a term: its own, and those that its weight is computed from."""
    if not isinstance(term, Mean):
        return [value]
    if term.loss is not None:
        return [value, *(operand for operand in term.loss.inputs[1:] if operand is not None)]
    return [value, *(operand for operand in (term.of, term.total, term.sum) if operand is not None)]


def _runner(evaluation: ir.Model, outputs: list[ir.Value], values: Mapping[str, Array]) -> Run:
    """Returns a function that computes values of the graph by their names."""
    graph = evaluation.graph
    generator = np.random.default_rng(1)
    fixed = {str(v.name): v.const_value.numpy() for v in graph.initializers.values() if v.const_value is not None}
    for name, array in values.items():
        number = array.astype(state_dtype(array.dtype))
        # With weights of 0 a layer hides dependences between samples.
        noise = generator.uniform(0, 1, array.shape)
        moved = number * (1 + 0.1 * noise).astype(number.dtype) + np.where(number == 0, 0.01 * noise, 0)
        fixed[name] = np.asarray(moved, number.dtype)  # NumPy converts a scalar array to a number
    computed = [value for value in dict.fromkeys(outputs) if value.producer() is not None]
    graph.outputs[:] = computed
    run = session(evaluation)
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4  # sizes that the model does not take are expected
    inputs, names = {value.name for value in run.get_inputs()}, [str(value.name) for value in computed]

    def values_of(data: Mapping[str, Array]) -> dict[str, Array]:
        feeds = fixed | dict(data)
        results = run.run(names, {name: array for name, array in feeds.items() if name in inputs}, quiet)
        return feeds | dict(zip(names, results, strict=True))

    return values_of


def _of_random_data(run: Run, data: list[ir.Value]) -> Iterator[list[dict[str, Array]]]:
    """Yields the values for a batch and for its parts, for each draw of random data that the model takes."""
    rows = {str(value.name) for value in data if _takes_rows(value)}
    reason: Exception | None = None
    for size in _SIZES:
        try:
            for draw in _DRAWS:
                generator = np.random.default_rng(0)
                whole = {str(value.name): _drawn(value, generator, size, draw) for value in data}
                yield [
                    run({name: array[part] if name in rows else array for name, array in whole.items()})
                    for part in (slice(None), slice(_FIRST), slice(_FIRST, None))
                ]
        except Exception as error:  # noqa: BLE001 - see above
            reason = error
        else:
            return
    if reason is not None:
        raise reason


def _drawn(value: ir.Value, generator: np.random.Generator, size: int, draw: _Draw) -> Array:
    """Draws random data: labels and indices are 0 or 1, which every model with classes or a vocabulary has."""
    shape = known_shape(value)
    if shape is None or value.dtype is None:
        raise ModelError(f"input {value.name!r} has no known rank or type")
    sizes = [dim if isinstance(dim, int) else (size if axis else _ROWS) for axis, dim in enumerate(shape)]
    dtype = value.dtype.numpy()
    if dtype.kind in "iub":
        return generator.integers(0, 2, sizes).astype(dtype)
    drawn = generator.uniform(0.1, 1.0, sizes) if draw.positive else generator.standard_normal(sizes)
    return np.asarray(draw.scale * drawn).astype(dtype)


def _weight(term: Term, values: Mapping[str, Array]) -> float:
    """Returns the weight of a part in a mean."""
    if not isinstance(term, Mean):
        return 1.0
    if term.total is not None:
        return float(values[str(term.total.name)].item())
    if term.of is not None:
        return float(values[str(term.of.name)].size)
    assert term.loss is not None, "one of the three is there"  # noqa: S101
    labels, *class_weight = (values[str(value.name)] for value in term.loss.inputs[1:] if value is not None)
    ignored = term.loss.attributes.get("ignore_index")
    labels = labels.ravel() if ignored is None else labels[labels != ignored.as_int()]
    return float(class_weight[0][labels].sum() if class_weight else labels.size)


def _whole(loss: str, value: ir.Value, term: Term, values: list[dict[str, Array]]) -> float:
    """Returns a term of the batch, which must follow from its parts; NaN if it is not finite.

    Raises:
        ModelError: It does not.
    """
    whole = float(values[0][str(value.name)].item())
    divided = term.sum if isinstance(term, Mean) else None
    parts = [float(results[str((divided or value).name)].item()) for results in values[1:]]
    is_sum = isinstance(term, Sum)
    weights = np.array([1.0 if is_sum else _weight(term, results) for results in values[1:]])
    counted = np.array(parts) if divided is not None else np.where(weights == 0, 0, parts) * weights
    with np.errstate(all="ignore"):
        counted = counted / (1 if is_sum else weights.sum())
    expected = counted.sum()
    if not np.isfinite([whole, expected]).all():
        return np.nan
    if abs(whole - expected) > _TOLERANCE * max(abs(whole), np.abs(counted).sum()):
        where = "" if value.name == loss else f" in its term {value.name!r}"
        raise ModelError(
            f"loss {loss!r} depends on more than single samples{where} in inference mode: {whole:.6g} for a "
            f"batch, and a {'sum' if is_sum else 'mean'} of {expected:.6g} over its parts; with --sync (sync=), "
            "expected a loss and layers that look at each sample on its own, except batch norms"
        )
    return whole
