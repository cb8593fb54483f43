"""The update of the weights by an optimizer, in ONNX.

With weight w, gradient g, learning rate lr and step count t (1 at the weight's first update), as in `torch.optim`:

SGD::

    g = g + weight_decay w
    momentum_buffer = momentum momentum_buffer + g
    d = g + momentum momentum_buffer       with Nesterov, else momentum_buffer; g without momentum
    w = w - lr d

Adam, AdamW, as the op AdamUpdate of ``bngrad``::

    g = g + weight_decay w                 Adam;      w = w (1 - lr weight_decay)      AdamW
    exp_avg = exp_avg + (1 - beta1) (g - exp_avg)
    exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g g
    w = w - lr / (1 - beta1^t) exp_avg / (sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.node_reader import dtype_of
from bngrad.training.optimizers import SGD, Adam, AdamW, Optimizer, WeightOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.graph.node_makers import NodesAtEnd

_DOUBLE = ir.DataType.DOUBLE


class Weight(NamedTuple):
    """A weight and its gradient, both of one type, and what the optimizer keeps for it."""

    value: ir.Value
    gradient: ir.Value
    slots: Sequence[ir.Value]
    options: WeightOptions


class Updates:
    """Makes the nodes that update weights.

    Args:
        make: Makes nodes.
        optimizer: The optimizer.
        learning_rate: A float or double scalar.
        step: The int64 scalar t of weights that are not behind.
        gradient_scale: A float or double scalar that all gradients are multiplied by; None for 1.
    """

    def __init__(
        self,
        make: NodesAtEnd,
        optimizer: Optimizer,
        learning_rate: ir.Value,
        step: ir.Value,
        gradient_scale: ir.Value | None = None,
    ) -> None:
        self._make = make
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        self._step = step
        self._gradient_scale = gradient_scale
        self._scalars: dict[tuple[object, ...], ir.Value] = {}

    def update(self, weight: Weight) -> list[ir.Value]:
        """Returns the new value of a weight, then those of its slots."""
        optimizer = self._optimizer
        return self._sgd(weight, optimizer) if isinstance(optimizer, SGD) else self._adam(weight, optimizer)

    def _sgd(self, weight: Weight, sgd: SGD) -> list[ir.Value]:
        typed, g = self._make.typed, self._penalized(weight)
        direction, slots = g, list[ir.Value]()
        if sgd.momentum:
            momentum = self._number(sgd.momentum, weight)
            buffer = typed("Add", typed("Mul", weight.slots[0], momentum), g)
            direction = typed("Add", g, typed("Mul", buffer, momentum)) if sgd.nesterov else buffer
            slots = [buffer]
        return [typed("Sub", weight.value, typed("Mul", direction, self._rate(weight))), *slots]

    def _adam(self, weight: Weight, adam: Adam) -> list[ir.Value]:
        new = self._make.bngrad(
            "AdamUpdate", weight.value, weight.gradient, *weight.slots, self._coefficients(adam, weight.options)
        )
        for value in new:
            value.type, value.shape = weight.value.type, weight.value.shape
        return list(new)

    def _penalized(self, weight: Weight) -> ir.Value:
        """The scaled gradient with the L2 penalty."""
        typed, g, decay = self._make.typed, weight.gradient, weight.options.weight_decay
        if self._gradient_scale is not None:
            g = typed("Mul", g, self._make.of_rank_of(self._scale_in(dtype_of(g)), weight.value))
        return typed("Add", g, typed("Mul", weight.value, self._number(decay, weight))) if decay else g

    # Scalars, each made once for the weights of a type and a group.

    def _number(self, value: float, weight: Weight) -> ir.Value:
        dtype = dtype_of(weight.value)
        number = self._once(("number", value, dtype), lambda: self._make.constant(value, dtype))
        return self._make.of_rank_of(number, weight.value)

    def _scale_in(self, dtype: ir.DataType) -> ir.Value:
        scale = self._gradient_scale
        assert scale is not None, "the caller has looked"  # noqa: S101
        return self._once(("scale", dtype), lambda: self._make.cast(scale, dtype))

    def _rate_in(self, dtype: ir.DataType, scale: float) -> ir.Value:
        def made() -> ir.Value:
            rate = self._make.cast(self._learning_rate, dtype)
            return rate if scale == 1 else self._make.typed("Mul", rate, self._make.constant(scale, dtype))

        return self._once(("rate", scale, dtype), made)

    def _rate(self, weight: Weight) -> ir.Value:
        rate = self._rate_in(dtype_of(weight.value), weight.options.learning_rate_scale)
        return self._make.of_rank_of(rate, weight.value)

    def _coefficients(self, adam: Adam, options: WeightOptions) -> ir.Value:
        """The coefficients of AdamUpdate, as Python's doubles are in PyTorch."""

        def made() -> ir.Value:
            make, decay = self._make, options.weight_decay
            rate, one = self._rate_in(_DOUBLE, options.learning_rate_scale), self._double(1)
            decoupled = isinstance(adam, AdamW) and decay
            shrunk = make.typed("Sub", one, make.typed("Mul", rate, self._double(decay))) if decoupled else one
            numbers = [
                one if self._gradient_scale is None else self._scale_in(_DOUBLE),
                self._double(0 if isinstance(adam, AdamW) else decay),
                shrunk,
                self._double(1 - adam.beta1),
                self._double(adam.beta2),
                self._double(1 - adam.beta2),
                make.typed("Div", rate, self._correction(adam.beta1, options.updates_behind)),
                make.typed("Sqrt", self._correction(adam.beta2, options.updates_behind)),
                self._double(adam.eps),
            ]
            axis = self._once(("axis",), lambda: make.int64([0]))
            vector = make.op("Concat", *(make.op("Unsqueeze", number, axis) for number in numbers), axis=0)
            vector.type, vector.shape = ir.TensorType(_DOUBLE), ir.Shape([len(numbers)])
            return vector

        return self._once(("coefficients", options), made)

    def _double(self, value: float) -> ir.Value:
        return self._once(("double", value), lambda: self._make.constant(value, _DOUBLE))

    def _correction(self, beta: float, behind: int) -> ir.Value:
        """1 - beta^t."""

        def made() -> ir.Value:
            make = self._make
            updates = make.typed("Sub", self._step, make.int64(behind)) if behind else self._step
            count = make.cast(updates, _DOUBLE)
            return make.typed("Sub", self._double(1), make.typed("Pow", self._double(beta), count))

        return self._once(("correction", beta, behind), made)

    def _once(self, key: tuple[object, ...], made: Callable[[], ir.Value]) -> ir.Value:
        if key not in self._scalars:
            self._scalars[key] = made()
        return self._scalars[key]


def clip_factor(make: NodesAtEnd, gradients: Sequence[ir.Value], max_norm: float) -> tuple[ir.Value, ir.Value]:
    """The factor that limits the global norm of gradients, as `torch.nn.utils.clip_grad_norm_` has it.

    It is min(max_norm / (norm + 1e-6), 1).

    Returns:
        The factor and the norm: scalars, double if any gradient is, else float.
    """
    dtype = _DOUBLE if any(dtype_of(gradient) == _DOUBLE for gradient in gradients) else ir.DataType.FLOAT
    squares = []
    for gradient in gradients:
        square = make.op("ReduceSumSquare", gradient, keepdims=0)
        square.type, square.shape = gradient.type, ir.Shape([])
        squares.append(make.cast(square, dtype))
    total = make.typed("Sum", *squares) if len(squares) > 1 else squares[0]
    norm = make.typed("Sqrt", total)
    shifted = make.typed("Add", norm, make.constant(1e-6, dtype))
    quotient = make.typed("Div", make.constant(max_norm, dtype), shifted)
    return make.typed("Min", quotient, make.constant(1, dtype)), norm
