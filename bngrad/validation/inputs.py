"""Inputs of a training graph: given arrays, and random values suitable for the role of each other input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.nodes import all_nodes
from bngrad.graph.same_values import SAME_VALUES
from bngrad.graph.shapes import known_dimension
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL, MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]

DEFAULT_DIM = 4
"""The default size of symbolic dimensions, such as the batch size."""


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape)


def _he_weight(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draws weights as He et al., 2015: the variance of activations stays through a ReLU network."""
    fan_in = max(int(np.prod(shape[1:], dtype=np.int64)), 1)
    return np.asarray(generator.standard_normal(shape) * np.sqrt(2.0 / fan_in))


def _positive(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.uniform(0.5, 1.5, shape)


def _small(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return 0.1 * generator.standard_normal(shape)


_BATCH_NORM: dict[int, Draw] = {1: _positive, 2: _small, 3: _small, 4: _positive}
_DRAWS: dict[tuple[str, str], dict[int, Draw]] = {
    ("", "BatchNormalization"): _BATCH_NORM,
    BATCH_NORM_INTERNAL: _BATCH_NORM,
    BATCH_NORM_GRAD: {2: _positive, 3: _small, 4: _positive},
    (DOMAIN, "BatchNormalizationTraining"): _BATCH_NORM,
    (DOMAIN, "BatchNormalizationGrad"): {2: _positive, 3: _small, 4: _positive},
    (DOMAIN, "BatchNormalizationReluGrad"): {3: _positive, 4: _small, 5: _positive},
    ("", "Conv"): {1: _he_weight, 2: _small},
    ("", "ConvTranspose"): {1: _he_weight, 2: _small},
    ("", "Gemm"): {1: _he_weight, 2: _small},
    ("", "MatMul"): {1: _he_weight},
}
"""The distribution of an op's inputs, by index; all others are standard normal."""

_LABELS = {
    ("", "SoftmaxCrossEntropyLoss"): (1, 0),
    ("", "NegativeLogLikelihoodLoss"): (1, 0),
    (MICROSOFT, "SoftmaxCrossEntropyLossGrad"): (2, 1),
}
"""The index of a loss's labels, and of the input whose dimension 1 is the number of classes."""

_MOVES_LABELS = {
    **dict.fromkeys((*SAME_VALUES, "Slice", "Split"), slice(1)),
    **dict.fromkeys(("Add", "Sub"), slice(2)),
    "Where": slice(1, 3),
}
"""Ops between labels and the inputs that they are computed from, with the inputs that have labels."""


def bind_dimensions(
    model: ir.Model, dims: Mapping[str, int], arrays: Mapping[str, Array], batch_size: int | None = None
) -> None:
    """Replaces the symbolic dimensions of a model's inputs by sizes, in all shapes of the model.

    This is needed because ORT's AveragePoolGrad takes its output's shape from the model; with a symbolic batch
    size it divides by zero.

    Args:
        model: The model. The shapes of its values are modified.
        dims: Sizes by dimension name; others are taken from ``arrays``, or are `DEFAULT_DIM`.
        arrays: Arrays by input name.
        batch_size: The size of the first dimension of inputs without a default, where it is symbolic and neither
            ``dims`` nor an array states it; fixed sizes stay.

    Raises:
        InputError: There is no such dimension or input, or a size is not positive.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    symbols = symbolic_dimensions(model)
    for name in arrays:
        if name not in inputs:
            raise InputError(f"there is no input {name!r}; the model's inputs are {', '.join(inputs)}")
    for name, size in dims.items():
        if name not in symbols:
            names = ", ".join(sorted(symbols)) or "none"
            raise InputError(
                f"there is no symbolic dimension {name!r} among the inputs; there are: {names} (--batch-size is "
                "that of the first one, whatever its name)"
            )
        if size < 1:
            raise InputError(f"dimension {name!r} is {size}; expected 1 or more")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"the batch size is {batch_size}; expected 1 or more")
    batches = (
        {} if batch_size is None else dict.fromkeys(_bind_batches(inputs.values(), arrays, batch_size), batch_size)
    )
    sizes = dict.fromkeys(symbols, DEFAULT_DIM) | batches | _sizes_of_given(inputs, arrays) | dict(dims)
    for value in _all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([sizes.get(_symbol(dim), dim) for dim in value.shape])


def _bind_batches(inputs: Iterable[ir.Value], arrays: Mapping[str, Array], size: int) -> Iterator[str]:
    """Yields the names of first dimensions; those without a name get the size."""
    for value in inputs:
        if value.const_value is not None or not value.shape or isinstance(value.shape[0], int):
            continue
        if name := _symbol(value.shape[0]):
            yield name
        elif value.name not in arrays:
            value.shape = ir.Shape([size, *value.shape[1:]])


def symbolic_dimensions(model: ir.Model) -> set[str]:
    """Returns the names of the symbolic dimensions of a model's inputs."""
    return {symbol for value in model.graph.inputs for d in value.shape or () if (symbol := _symbol(d))}


def _sizes_of_given(inputs: Mapping[str, ir.Value], arrays: Mapping[str, Array]) -> dict[str, int]:
    return {
        symbol: size
        for name, array in arrays.items()
        for dim, size in zip(inputs[name].shape or (), array.shape, strict=False)
        if (symbol := _symbol(dim))
    }


def draw_inputs(model: ir.Model, *, arrays: Mapping[str, Array] | None = None, seed: int = 0) -> dict[str, Array]:
    """Returns an array for every input of a model.

    Labels are below the number of classes, indices below the number of rows, variances and scales are positive,
    weights of convolutions and linear layers are scaled as by He et al., and other floats are standard normal. An
    input with a default keeps it.

    Args:
        model: The model, without symbolic dimensions. For random labels, the shape of the loss's scores must be
            known.
        arrays: Arrays by input name, which are used unchanged.
        seed: Seed of the random values.

    Raises:
        InputError: The shape or type of a given array is wrong, or random values of an input are not supported.
    """
    arrays = dict(arrays or {})
    draws, classes = _roles(model)
    generator = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.inputs:
        name = str(value.name)
        shape = _sizes(name, value)
        dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
        if name in arrays:
            feeds[name] = _check_given(name, arrays[name], shape, dtype)
        elif value.const_value is not None:
            feeds[name] = value.const_value.numpy()
        elif dtype.kind in "iu":
            feeds[name] = np.asarray(generator.integers(0, _class_count(name, classes), shape)).astype(dtype)
        elif dtype.kind == "b":
            feeds[name] = np.asarray(generator.random(shape) < 0.5)
        elif value.dtype in (None, *SUPPORTED_DTYPES):
            feeds[name] = np.asarray(draws.get(name, _normal)(generator, shape)).astype(dtype)
        else:
            raise InputError(
                f"input {name!r} is {dtype}, for which there are no random values; pass it with --inputs"
            )
    return feeds


def feeds_of(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Returns those arrays that are inputs of a model."""
    names = {str(value.name) for value in model.graph.inputs}
    return {name: array for name, array in feeds.items() if name in names}


def _roles(model: ir.Model) -> tuple[dict[str, Draw], dict[str, int | None]]:
    """Returns the distribution of each value, and the number of classes of labels (None if unknown)."""
    draws: dict[str, Draw] = {}
    classes: dict[str, int | None] = {}
    for node in all_nodes(model):
        kind = (node.domain, node.op_type)
        for index, draw in _DRAWS.get(kind, {}).items():
            if index < len(node.inputs) and node.inputs[index] is not None:
                draws.setdefault(str(node.inputs[index].name), draw)  # type: ignore[union-attr]
        if kind in _LABELS or kind == ("", "Gather"):
            labels, rows, axis = (*_LABELS[kind], 1) if kind in _LABELS else (1, 0, _axis(node))
            count = None if (table := node.inputs[rows]) is None else known_dimension(table, axis)
            for value in _made_of(node.inputs[labels]):
                limit = classes.get(str(value.name))  # may be known for the loss but not for its gradient
                classes[str(value.name)] = min((n for n in (count, limit) if n is not None), default=None)
    return draws, classes


def _axis(gather: ir.Node) -> int:
    return gather.attributes.get_int("axis", 0)


def _made_of(labels: ir.Value | None) -> list[ir.Value]:
    """Returns the graph inputs that labels are moved, cast or shifted from, or that they are."""
    values: dict[ir.Value, None] = {}
    waiting = [labels]
    while waiting:
        value = waiting.pop()
        if value is None or value in values:
            continue
        values[value] = None
        maker = value.producer()
        if maker is not None and maker.op_type in _MOVES_LABELS and not maker.domain:
            waiting += maker.inputs[_MOVES_LABELS[maker.op_type]]
    return [value for value in values if value.is_graph_input()]


def _class_count(name: str, classes: Mapping[str, int | None]) -> int:
    if name not in classes:
        raise InputError(
            f"input {name!r} has integers that are not labels of a loss or indices; pass it with --inputs"
        )
    count = classes[name]
    if count is None:
        raise InputError(f"input {name!r} has labels, but the number of classes is unknown; pass it with --inputs")
    return count


def _symbol(dim: int | ir.SymbolicDim) -> str:
    """Returns the name of a symbolic dimension; empty for others."""
    return "" if isinstance(dim, int) or dim.value is None else str(dim.value)


def _all_values(model: ir.Model) -> set[ir.Value]:
    values = {value for node in all_nodes(model) for value in (*node.inputs, *node.outputs) if value is not None}
    return values | set(model.graph.inputs) | set(model.graph.outputs)


def _sizes(name: str, value: ir.Value) -> tuple[int, ...]:
    if isinstance(value.type, ir.SequenceType):
        raise InputError(f"input {name!r} is a sequence of tensors; expected only tensors")
    if value.shape is None:
        raise InputError(f"the rank of input {name!r} is unknown; add shape information to the model")
    return tuple(dim if isinstance(dim, int) else DEFAULT_DIM for dim in value.shape)


def _check_given(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if array.shape != shape:
        raise InputError(f"input {name!r} has shape {list(array.shape)}; expected {list(shape)}")
    if array.dtype != dtype:
        raise InputError(f"input {name!r} has dtype {array.dtype}; expected {dtype}")
    return array
