"""Results and docstrings of the functions that compute the ops in Python: `reference` and `runtime.native`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bngrad.opset.quantities import ATTRIBUTES, QUANTITIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

_Function = TypeVar("_Function", bound="Callable[..., tuple[Any, ...]]")


class Gradients(NamedTuple):
    """The outputs of BatchNormalizationGrad."""

    dX: Array
    dscale: Array
    dbias: Array


class SecondGradients(NamedTuple):
    """The outputs of BatchNormalizationGradGrad."""

    d_dY: Array
    d_X: Array
    d_scale: Array


class Normalized(NamedTuple):
    """The outputs of BatchNormalizationTraining."""

    Y: Array
    new_running_mean: Array
    new_running_var: Array
    saved_mean: Array
    saved_inv_std: Array


class Statistics(NamedTuple):
    """The outputs of BatchNormalizationStatistics."""

    mean: Array
    inv_std: Array


class Updated(NamedTuple):
    """The outputs of AdamUpdate."""

    new_weight: Array
    new_exp_avg: Array
    new_exp_avg_sq: Array


class Moments(NamedTuple):
    """The output of BatchNormalizationMoments."""

    moments: Array


class Merged(NamedTuple):
    """The outputs of BatchNormalizationMergeMoments."""

    new_running_mean: Array
    new_running_var: Array
    batch_mean: Array
    batch_inv_std: Array
    batch_count: Array


class Applied(NamedTuple):
    """The output of BatchNormalizationApply."""

    Y: Array


class GradSums(NamedTuple):
    """The outputs of BatchNormalizationGradSums."""

    sums: Array
    dscale: Array
    dbias: Array


class GradApplied(NamedTuple):
    """The output of BatchNormalizationGradApply."""

    dX: Array


class Gathered(NamedTuple):
    """The output of AllGather."""

    gathered: Array


class Reduced(NamedTuple):
    """The output of AllReduce."""

    total: Array


def returns(outputs: type[tuple[Any, ...]]) -> Callable[[_Function], _Function]:
    """Decorates the function of an op: adds the sections Args, Returns and Raises to its docstring.

    Args:
        outputs: The named tuple that the function returns. Its fields, and the function's parameters, are names of
            `QUANTITIES` and `ATTRIBUTES`.
    """

    def describe(names: list[str]) -> str:
        return "".join(f"\n    {n}: {QUANTITIES[n].doc if n in QUANTITIES else ATTRIBUTES[n]}." for n in names)

    def add(function: _Function) -> _Function:
        arguments = describe(list(inspect.signature(function).parameters))
        results = describe(list(outputs._fields))  # type: ignore[attr-defined]
        raises = "InputError: Shapes do not match, or axes are invalid."
        summary = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = f"{summary}\n\nArgs:{arguments}\n\nReturns:{results}\n\nRaises:\n    {raises}"
        return function

    return add
