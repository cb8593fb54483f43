"""Inputs for a training graph: what the caller gave, and the rest drawn from a seed by what each is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.nodes import all_nodes
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL, MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]

DEFAULT_DIM = 4
"""The extent of a symbolic dimension that nobody gave: the batch size, mostly."""


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape)


def _he_weight(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """He et al. 2015: keeps the size of activations through a ReLU network."""
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
"""How the input at an index of an op is drawn; anything else is normal."""

_LABELS = {
    ("", "SoftmaxCrossEntropyLoss"): (1, 0),
    ("", "NegativeLogLikelihoodLoss"): (1, 0),
    (MICROSOFT, "SoftmaxCrossEntropyLossGrad"): (2, 1),
}
"""The index of a loss's labels, and of the input whose dimension 1 is the number of classes."""


def bind_dimensions(model: ir.Model, dims: Mapping[str, int], given: Mapping[str, Array]) -> None:
    """Gives every symbolic dimension of a model's inputs an extent, wherever the model names it.

    ORT's AveragePoolGrad takes the shape of its output from the model: with a symbolic batch it divides by zero.

    Args:
        model: The model; its values' shapes are changed.
        dims: Extents by name; others are taken from a given array, or are `DEFAULT_DIM`.
        given: Arrays by input name.

    Raises:
        InputError: A dimension or an array belongs to no input, or an extent is not positive.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    symbols = symbolic_dimensions(model)
    for name in given:
        if name not in inputs:
            raise InputError(f"there is no input {name!r}; the model's inputs are {', '.join(inputs)}")
    for name, extent in dims.items():
        if name not in symbols:
            known = ", ".join(sorted(symbols)) or "none"
            raise InputError(f"there is no symbolic dimension {name!r} among the inputs; there are: {known}")
        if extent < 1:
            raise InputError(f"dimension {name!r} is {extent}; expected 1 or more")
    sizes = dict.fromkeys(symbols, DEFAULT_DIM) | _extents_of_given(inputs, given) | dict(dims)
    for value in _all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([sizes.get(_symbol(extent), extent) for extent in value.shape])


def symbolic_dimensions(model: ir.Model) -> set[str]:
    """Returns the names of the symbolic dimensions that a model's inputs have."""
    return {symbol for value in model.graph.inputs for d in value.shape or () if (symbol := _symbol(d))}


def _extents_of_given(inputs: Mapping[str, ir.Value], given: Mapping[str, Array]) -> dict[str, int]:
    return {
        symbol: actual
        for name, array in given.items()
        for extent, actual in zip(inputs[name].shape or (), array.shape, strict=False)
        if (symbol := _symbol(extent))
    }


def draw_inputs(model: ir.Model, *, given: Mapping[str, Array] | None = None, seed: int = 0) -> dict[str, Array]:
    """Returns an array for every input of a model.

    Labels are within the class count, variances and scales positive, weights of convolutions and linear layers
    scaled after He et al., other floats normal. An input with a default (an initializer of its name) keeps it.

    Args:
        model: The model, its dimensions bound; shapes of what feeds a loss must be known if labels are drawn.
        given: Arrays by input name, taken as they are.
        seed: For what is drawn.

    Raises:
        InputError: A given array does not fit its input, or there is no way to draw one.
    """
    given = dict(given or {})
    draws, classes = _roles(model)
    generator = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.inputs:
        name = str(value.name)
        shape = _extents(name, value)
        dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
        if name in given:
            feeds[name] = _check_given(name, given[name], shape, dtype)
        elif value.const_value is not None:
            feeds[name] = value.const_value.numpy()
        elif dtype.kind in "iu":
            feeds[name] = np.asarray(generator.integers(0, _class_count(name, classes), shape)).astype(dtype)
        elif dtype.kind == "b":
            feeds[name] = np.asarray(generator.random(shape) < 0.5)
        elif value.dtype in (None, *SUPPORTED_DTYPES):
            feeds[name] = np.asarray(draws.get(name, _normal)(generator, shape)).astype(dtype)
        else:
            raise InputError(f"input {name!r} is {dtype}, which is not drawn; give it with --inputs")
    return feeds


def feeds_of(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Returns those of some arrays that are inputs of a model."""
    names = {str(value.name) for value in model.graph.inputs}
    return {name: array for name, array in feeds.items() if name in names}


def _roles(model: ir.Model) -> tuple[dict[str, Draw], dict[str, int | None]]:
    """How each value is drawn, and for labels the number of classes (None: not known)."""
    draws: dict[str, Draw] = {}
    classes: dict[str, int | None] = {}
    for node in all_nodes(model):
        kind = (node.domain, node.op_type)
        for index, draw in _DRAWS.get(kind, {}).items():
            if index < len(node.inputs) and node.inputs[index] is not None:
                draws.setdefault(str(node.inputs[index].name), draw)  # type: ignore[union-attr]
        if kind in _LABELS:
            labels, logits = (node.inputs[index] for index in _LABELS[kind])
            extent = logits.shape[1] if logits is not None and logits.shape is not None else None
            if labels is not None:
                known = classes.get(str(labels.name))  # the loss may tell what its gradient does not
                classes[str(labels.name)] = extent if isinstance(extent, int) else known
    return draws, classes


def _class_count(name: str, classes: Mapping[str, int | None]) -> int:
    if name not in classes:
        raise InputError(f"input {name!r} holds integers that are no labels of a loss; give it with --inputs")
    count = classes[name]
    if count is None:
        raise InputError(
            f"input {name!r} holds labels, but the number of classes is not known; give it with --inputs"
        )
    return count


def _symbol(extent: int | ir.SymbolicDim) -> str:
    """The name of an extent that is not known; empty if it has none, or is known."""
    return "" if isinstance(extent, int) or extent.value is None else str(extent.value)


def _all_values(model: ir.Model) -> set[ir.Value]:
    values = {value for node in all_nodes(model) for value in (*node.inputs, *node.outputs) if value is not None}
    return values | set(model.graph.inputs) | set(model.graph.outputs)


def _extents(name: str, value: ir.Value) -> tuple[int, ...]:
    if value.shape is None:
        raise InputError(f"input {name!r} has no shape in the model; give the model's inputs shapes")
    return tuple(extent if isinstance(extent, int) else DEFAULT_DIM for extent in value.shape)


def _check_given(name: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if array.shape != shape:
        raise InputError(f"input {name!r} was given with shape {list(array.shape)}; expected {list(shape)}")
    if array.dtype != dtype:
        raise InputError(f"input {name!r} was given as {array.dtype}; expected {dtype}")
    return array
