"""Nodes that the updates of optimizers are built from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.node_reader import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.graph.node_makers import NodesAtEnd
    from bngrad.training.optim.groups import WeightOptions

_DOUBLE = ir.DataType.DOUBLE


class Weight(NamedTuple):
    """A weight and its gradient, both of one type, and its state in the optimizer."""

    value: ir.Value
    gradient: ir.Value
    slots: Sequence[ir.Value]
    options: WeightOptions


class UpdateNodes:
    """Makes the nodes that update weights, and scalars, each once for the weights of a type and a group.

    Args:
        make: Makes nodes.
        learning_rate: A float or double scalar.
        step: The int64 scalar t of weights that are not behind; None for an optimizer that does not read it.
        gradient_scale: A float or double scalar that all gradients are multiplied by; None for 1.
    """

    def __init__(
        self,
        make: NodesAtEnd,
        learning_rate: ir.Value,
        step: ir.Value | None = None,
        gradient_scale: ir.Value | None = None,
    ) -> None:
        self.op = make.typed
        """Makes an elementwise node; its output has the type and shape of its first input."""
        self._make = make
        self._learning_rate = learning_rate
        self._step = step
        self._gradient_scale = gradient_scale
        self._scalars: dict[tuple[object, ...], ir.Value] = {}

    # Values in the type and rank of a weight.

    def gradient(self, weight: Weight, l2_penalty: float = 0.0) -> ir.Value:
        """Returns the scaled gradient of a weight, with an L2 penalty."""
        g = weight.gradient
        if self._gradient_scale is not None:
            g = self.op("Mul", g, self._make.of_rank_of(self._scale_in(dtype_of(g)), weight.value))
        if not l2_penalty:
            return g
        return self.op("Add", g, self.op("Mul", weight.value, self.number(l2_penalty, weight)))

    def number(self, value: float, weight: Weight) -> ir.Value:
        """Returns a constant."""
        dtype = dtype_of(weight.value)
        number = self._once(("number", value, dtype), lambda: self._make.constant(value, dtype))
        return self._make.of_rank_of(number, weight.value)

    def rate(self, weight: Weight) -> ir.Value:
        """Returns the learning rate of a weight."""
        rate = self._rate_in(dtype_of(weight.value), weight.options.learning_rate_scale)
        return self._make.of_rank_of(rate, weight.value)

    def minus(self, weight: Weight, direction: ir.Value) -> ir.Value:
        """Returns the weight less the learning rate times a direction."""
        return self.op("Sub", weight.value, self.op("Mul", direction, self.rate(weight)))

    def scalars(self, weight: Weight) -> list[ir.Value]:
        """Returns the learning rate of a weight, and the number that its gradient is multiplied by, as scalars."""
        dtype = dtype_of(weight.value)
        if self._gradient_scale is None:
            scale = self._once(("unit", dtype), lambda: self._make.constant(1, dtype))
        else:
            scale = self._scale_in(dtype)
        return [self._rate_in(dtype, weight.options.learning_rate_scale), scale]

    # Double scalars, as Python's numbers are in PyTorch.

    def double(self, value: float) -> ir.Value:
        """Returns a constant."""
        return self._once(("double", value), lambda: self._make.constant(value, _DOUBLE))

    def double_rate(self, options: WeightOptions) -> ir.Value:
        """Returns the learning rate."""
        return self._rate_in(_DOUBLE, options.learning_rate_scale)

    def double_gradient_scale(self) -> ir.Value:
        """Returns the number that gradients are multiplied by."""
        return self.double(1) if self._gradient_scale is None else self._scale_in(_DOUBLE)

    def bias_correction(self, beta: float, options: WeightOptions) -> ir.Value:
        """Returns 1 - beta^t."""
        behind = options.updates_behind

        def correction() -> ir.Value:
            assert self._step is not None, "the optimizer reads it"  # noqa: S101
            updates = self.op("Sub", self._step, self._make.int64(behind)) if behind else self._step
            count = self._make.cast(updates, _DOUBLE)
            return self.op("Sub", self.double(1), self.op("Pow", self.double(beta), count))

        return self._once(("correction", beta, behind), correction)

    def coefficients(self, weight: Weight, make: Callable[[], Sequence[ir.Value]]) -> ir.Value:
        """Returns a vector for the weights of a group.

        Args:
            weight: One of them.
            make: Makes the double scalars that it consists of.
        """

        def vector() -> ir.Value:
            numbers = make()
            axis = self._once(("axis",), lambda: self._make.int64([0]))
            result = self._make.op("Concat", *(self._make.op("Unsqueeze", n, axis) for n in numbers), axis=0)
            result.type, result.shape = ir.TensorType(_DOUBLE), ir.Shape([len(numbers)])
            return result

        return self._once(("coefficients", weight.options), vector)

    def adam_update(self, weight: Weight, coefficients: ir.Value) -> list[ir.Value]:
        """Makes the op AdamUpdate, and returns the new weight and moments."""
        new = self._make.bngrad("AdamUpdate", weight.value, weight.gradient, *weight.slots, coefficients)
        for value in new:
            value.type, value.shape = weight.value.type, weight.value.shape
        return list(new)

    def _scale_in(self, dtype: ir.DataType) -> ir.Value:
        scale = self._gradient_scale
        assert scale is not None, "the caller has looked"  # noqa: S101
        return self._once(("scale", dtype), lambda: self._make.cast(scale, dtype))

    def _rate_in(self, dtype: ir.DataType, scale: float) -> ir.Value:
        def rate() -> ir.Value:
            cast = self._make.cast(self._learning_rate, dtype)
            return cast if scale == 1 else self.op("Mul", cast, self._make.constant(scale, dtype))

        return self._once(("rate", scale, dtype), rate)

    def _once(self, key: tuple[object, ...], build: Callable[[], ir.Value]) -> ir.Value:
        if key not in self._scalars:
            self._scalars[key] = build()
        return self._scalars[key]
