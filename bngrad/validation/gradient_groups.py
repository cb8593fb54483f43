"""Groups of gradients that are compared along one direction each, for networks of many weights.

A central difference takes two evaluations of the loss, whatever the number of weights that move. So a group of k
gradients costs as much as one, and an error of one of them counts for 1 / k of its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

SIZE = 64
"""The most gradients of a group."""

_LEAST_SHARE = 1e-3
"""The least part of the largest derivative of a group to which the others are reduced."""


def groups_of(derivatives: Mapping[str, float]) -> list[list[str]]:
    """Divides gradients into groups of derivatives of about one size.

    Args:
        derivatives: The upper bound of the derivative along each gradient's own direction, by name.
    """
    ordered = sorted(derivatives, key=lambda name: derivatives[name])
    count = -(-len(ordered) // SIZE)
    return [list(names) for names in np.array_split(np.array(ordered, object), count)] if count else []


def balanced(directions: Mapping[str, Array], gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Returns directions that are shortened until each gradient contributes as much to the derivative of the loss.

    Args:
        directions: The direction of each input of a group, by the input's name.
        gradients: The gradients, by the same names.
    """
    parts = {name: bound(gradients[name], direction) for name, direction in directions.items()}
    largest = max(parts.values())
    target = min(part for part in parts.values() if part >= _LEAST_SHARE * largest)
    return {
        name: direction * (target / parts[name]) if parts[name] > target else direction
        for name, direction in directions.items()
    }


def bound(gradient: Array, direction: Array) -> float:
    """Returns the upper bound of a derivative, the product of the lengths of gradient and direction."""
    return float(np.linalg.norm(gradient) * np.linalg.norm(direction))


def derivative(directions: Mapping[str, Array], gradients: Mapping[str, Array]) -> tuple[float, float]:
    """Returns the derivative of the loss along the directions together, and its upper bound."""
    value = sum(float(np.sum(gradients[name] * direction)) for name, direction in directions.items())
    return value, sum(bound(gradients[name], direction) for name, direction in directions.items())


def moved(values: Mapping[str, Array], directions: Mapping[str, Array], step: float) -> dict[str, Array]:
    """Returns the values at a step along their directions, in float64."""
    return {name: values[name].astype(np.float64) + step * direction for name, direction in directions.items()}
