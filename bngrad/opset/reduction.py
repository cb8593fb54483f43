"""Reductions in float64 over the axes of the ops, and checks of the shapes of their inputs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import InputError
from bngrad.opset.axes import parameter_shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


def moments(x: Array, reduced: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns mean and biased variance over ``reduced``, keeping those dimensions with size 1."""
    with ieee_warnings_off():
        count = np.float64(reduced_count(x, reduced))
        mean = reduce_sum(x, reduced) / count
        return mean, reduce_sum(np.square(x - mean), reduced) / count


def reduce_sum(values: Array, reduced: tuple[int, ...]) -> Array:
    """Returns the sum over ``reduced``, keeping those dimensions with size 1.

    NumPy's pairwise summation works along the last, contiguous dimension only; it sums other dimensions one
    element at a time, which loses digits for many terms.
    """
    last = np.ascontiguousarray(np.moveaxis(values, reduced, range(-len(reduced), 0)))
    kept = values.ndim - len(reduced)
    total = last.reshape(*last.shape[:kept], reduced_count(values, reduced)).sum(axis=-1)
    return np.expand_dims(total, reduced)


def reduced_count(x: Array, reduced: tuple[int, ...]) -> int:
    """Returns the number of elements that are reduced to one."""
    count = 1
    for axis in reduced:
        count *= x.shape[axis]
    return count


def float64(value: ArrayLike) -> Array:
    """Returns an array in float64."""
    return np.asarray(value, dtype=np.float64)


def expand_parameters(x: Array, reduced: tuple[int, ...], **values: ArrayLike) -> list[Array]:
    """Checks each parameter's shape and expands it to X's rank, so that it broadcasts.

    Raises:
        InputError: A parameter does not have X's shape without ``reduced``.
    """
    expected = parameter_shape(x.shape, reduced)
    result = []
    for name, value in values.items():
        array = float64(value)
        expect_shape(name, array, expected, x, reduced)
        result.append(np.expand_dims(array, reduced))
    return result


def expect_shape(name: str, got: Array, expected: tuple[int, ...], x: Array, reduced: tuple[int, ...]) -> None:
    """Checks the shape of an array.

    Raises:
        InputError: The shape is not the expected one.
    """
    if got.shape != expected:
        raise InputError(
            f"{name} has shape {list(got.shape)}; expected {list(expected)} for X of shape {list(x.shape)} "
            f"and axes {list(reduced)}"
        )


@contextlib.contextmanager
def ieee_warnings_off() -> Iterator[None]:
    """Suppresses NumPy's warnings: NaN and infinity are valid results, as of an empty batch or infinite inputs."""
    with np.errstate(all="ignore"):
        yield
