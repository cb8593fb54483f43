"""One batch norm with its inputs, its results in float64, and the error bound of each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.validation import bounds
from bngrad.validation.bounds import Expected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Float64 = NDArray[np.float64]

INPUTS = ("X", "dY", "scale", "bias", "running_mean", "running_var")
OUTPUTS = ("Y", "new_running_mean", "new_running_var", "dX", "dscale", "dbias")


def like(output: str) -> str:
    """Returns the input that has the type and shape of an output."""
    return {"Y": "X", "dX": "X", "dscale": "scale", "dbias": "bias"}.get(output, "running_mean")


@dataclass(frozen=True)
class Case:
    """A batch norm over dimension 1 of X, and the gradients of sum(Y * dY)."""

    name: str
    pitfall: str
    """The error that implementations make."""
    arrays: Mapping[str, Array]
    """The arrays by the names of `INPUTS`."""
    epsilon: float = float(np.float32(1e-5))
    """Added to the variance. Attributes of ONNX are floats; the same for ``momentum``."""
    momentum: float = float(np.float32(0.9))
    """The weight of the old running statistics."""
    training_mode: bool = True
    parts: tuple[int, ...] = ()
    """The numbers of samples in the parts of X; empty for one part."""
    joint: bool = False
    """True if the parts are those of ranks that have common statistics. False if the layer is called with one part
    after the other."""

    @property
    def outputs(self) -> list[str]:
        """The names of the results; frozen statistics stay as they are."""
        return [name for name in OUTPUTS if self.training_mode or not name.startswith("new_")]

    def expected(self) -> dict[str, Expected]:
        """Returns the exact value and the error bound of each output.

        The bounds hold for sums in float (for double in double) of differences from a value of the channel, and
        for results that are rounded to their own types. The statistics that the gradients start from have the
        type of the running ones.
        """
        inputs = {name: array.astype(np.float64) for name, array in self.arrays.items()}
        ends = [] if self.joint else list(np.cumsum(self.parts)[:-1])
        calls: list[dict[str, Expected]] = []
        for X, dY in zip(*(np.split(inputs[name], ends) for name in ("X", "dY")), strict=True):
            calls.append(self._call({**inputs, "X": X, "dY": dY}, calls[-1] if calls else {}))
        types = {name: self.arrays[like(name)].dtype for name in self.outputs}
        return {
            name: rounded(_joined(name, [call[name] for call in calls]), dtype) for name, dtype in types.items()
        }

    def _call(self, inputs: dict[str, Float64], before: dict[str, Expected]) -> dict[str, Expected]:
        """Returns the results of a call of the layer, after another one that changed its running statistics."""
        unit = float(np.finfo(np.float64 if self.arrays["X"].dtype == np.float64 else np.float32).eps) / 2
        X, dY, scale, bias, *running = (inputs[name] for name in INPUTS)
        carried = [np.zeros_like(scale)] * 2
        if before:
            running, carried = map(list, zip(before["new_running_mean"], before["new_running_var"], strict=True))
        if self.training_mode:
            Y, *new, mean, inv_std = bounds.normalized(
                X, scale, bias, *running, epsilon=self.epsilon, momentum=self.momentum, unit=unit, shifted=True
            )
            new = [n._replace(bound=n.bound + self.momentum * old) for n, old in zip(new, carried, strict=True)]
            mean, inv_std = (rounded(value, self.arrays["running_mean"].dtype) for value in (mean, inv_std))
        else:
            new = []
            mean = Expected(running[0], carried[0])
            root = 1 / np.sqrt(running[1] + self.epsilon)
            inv_std = Expected(root, 3 * unit * root)
            kept = (-1, *[1] * (X.ndim - 2))
            scaled = (X - running[0].reshape(kept)) * (scale * root).reshape(kept)
            Y = Expected(scaled + bias.reshape(kept), 8 * unit * (np.abs(scaled) + np.abs(bias).reshape(kept)))

        def gradients(mean: Float64, inv_std: Float64) -> list[Expected]:
            axes = bounds.channel_axes(X.ndim)
            mode = self.training_mode
            return bounds.gradients(dY, X, scale, mean, inv_std, axes, training_mode=mode, unit=unit)

        # The statistics that the gradient starts from have errors of their own.
        exact = gradients(mean.value, inv_std.value)
        moved = (
            gradients(mean.value + mean.bound, inv_std.value),
            gradients(mean.value, inv_std.value + inv_std.bound),
        )
        for index, gradient in enumerate(exact):
            errors = [np.abs(others[index].value - gradient.value) for others in moved]
            exact[index] = gradient._replace(bound=gradient.bound + errors[0] + errors[1])
        return dict(zip(self.outputs, (Y, *new, *exact), strict=True))


def rounded(result: Expected, dtype: np.dtype[Any]) -> Expected:
    """Returns a result in the range of a type, with the error of rounding to it added to the bound."""
    limits = np.finfo(dtype)
    value = np.where(np.abs(result.value) > float(limits.max), np.copysign(np.inf, result.value), result.value)
    error = float(limits.eps) / 2 * np.abs(result.value) + float(limits.smallest_subnormal)
    return Expected(value, result.bound + error)


def _joined(name: str, calls: Sequence[Expected]) -> Expected:
    """Returns the result of all calls: data of all samples, the sum of gradients, or the last statistics."""
    if name in ("Y", "dX"):
        return Expected(*map(np.concatenate, zip(*calls, strict=True)))
    if name in ("dscale", "dbias"):
        return Expected(*(np.sum(parts, axis=0) for parts in zip(*calls, strict=True)))
    return calls[-1]
