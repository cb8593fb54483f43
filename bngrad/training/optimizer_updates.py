"""The update of the weights by an optimizer, in ONNX.

With weight w, gradient g, learning rate lr and step count t (1 at the first update), as in `torch.optim`:

SGD::

    g = g + weight_decay w
    momentum_buffer = momentum momentum_buffer + g
    d = g + momentum momentum_buffer       with Nesterov, else momentum_buffer; g without momentum
    w = w - lr d

Adam, AdamW::

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
    from collections.abc import Callable, Mapping, Sequence

    from bngrad.training.node_makers import NodesAtEnd

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
        step: The int64 scalar t.
    """

    def __init__(self, make: NodesAtEnd, optimizer: Optimizer, learning_rate: ir.Value, step: ir.Value) -> None:
        self._make = make
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        self._step = step
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
        typed, w = self._make.typed, weight.value
        exp_avg, exp_avg_sq = weight.slots
        if isinstance(adam, AdamW):
            g, decay = weight.gradient, weight.options.weight_decay
            w = typed("Mul", w, self._decay_factor(decay, weight)) if decay else w
        else:
            g = self._penalized(weight)
        exp_avg = typed(
            "Add", exp_avg, typed("Mul", typed("Sub", g, exp_avg), self._number(1 - adam.beta1, weight))
        )
        exp_avg_sq = typed(
            "Add",
            typed("Mul", exp_avg_sq, self._number(adam.beta2, weight)),
            typed("Mul", typed("Mul", g, g), self._number(1 - adam.beta2, weight)),
        )
        root = typed("Div", typed("Sqrt", exp_avg_sq), self._root_of_correction(adam.beta2, weight))
        quotient = typed("Div", exp_avg, typed("Add", root, self._number(adam.eps, weight)))
        return [typed("Sub", w, typed("Mul", quotient, self._step_size(adam.beta1, weight))), exp_avg, exp_avg_sq]

    def _penalized(self, weight: Weight) -> ir.Value:
        """The gradient with the L2 penalty."""
        decay = weight.options.weight_decay
        if not decay:
            return weight.gradient
        typed = self._make.typed
        return typed("Add", weight.gradient, typed("Mul", weight.value, self._number(decay, weight)))

    # Scalars, each made once for the weights of a type and a group.

    def _number(self, value: float, weight: Weight) -> ir.Value:
        dtype = dtype_of(weight.value)
        return self._once(("number", value, dtype), lambda: self._make.constant(value, dtype))

    def _rate_in(self, dtype: ir.DataType, scale: float) -> ir.Value:
        def made() -> ir.Value:
            rate = self._make.cast(self._learning_rate, dtype)
            return rate if scale == 1 else self._make.typed("Mul", rate, self._make.constant(scale, dtype))

        return self._once(("rate", scale, dtype), made)

    def _rate(self, weight: Weight) -> ir.Value:
        return self._rate_in(dtype_of(weight.value), weight.options.learning_rate_scale)

    def _decay_factor(self, decay: float, weight: Weight) -> ir.Value:
        def made() -> ir.Value:
            make, one = self._make, self._make.constant(1, _DOUBLE)
            penalty = make.typed(
                "Mul", self._rate_in(_DOUBLE, weight.options.learning_rate_scale), make.constant(decay, _DOUBLE)
            )
            return make.cast(make.typed("Sub", one, penalty), dtype_of(weight.value))

        return self._once(("decay", decay, weight.options.learning_rate_scale, dtype_of(weight.value)), made)

    def _correction(self, beta: float) -> ir.Value:
        """1 - beta^t in double."""

        def made() -> ir.Value:
            make = self._make
            count = make.cast(self._step, _DOUBLE)
            power = make.typed("Pow", make.constant(beta, _DOUBLE), count)
            return make.typed("Sub", make.constant(1, _DOUBLE), power)

        return self._once(("correction", beta), made)

    def _root_of_correction(self, beta: float, weight: Weight) -> ir.Value:
        dtype = dtype_of(weight.value)
        return self._once(
            ("root", beta, dtype),
            lambda: self._make.cast(self._make.typed("Sqrt", self._correction(beta)), dtype),
        )

    def _step_size(self, beta: float, weight: Weight) -> ir.Value:
        scale, dtype = weight.options.learning_rate_scale, dtype_of(weight.value)

        def made() -> ir.Value:
            size = self._make.typed("Div", self._rate_in(_DOUBLE, scale), self._correction(beta))
            return self._make.cast(size, dtype)

        return self._once(("step size", beta, scale, dtype), made)

    def _once(self, key: tuple[object, ...], made: Callable[[], ir.Value]) -> ir.Value:
        if key not in self._scalars:
            self._scalars[key] = made()
        return self._scalars[key]


def clipped(
    make: NodesAtEnd, gradients: Mapping[str, ir.Value], max_norm: float
) -> tuple[dict[str, ir.Value], ir.Value]:
    """Scales gradients so that their global norm is at most ``max_norm``, as `torch.nn.utils.clip_grad_norm_`.

    The factor is min(max_norm / (norm + 1e-6), 1).

    Returns:
        The scaled gradients, and the norm before: a scalar, double if any gradient is, else float.
    """
    types = dict.fromkeys(dtype_of(gradient) for gradient in gradients.values())
    dtype = _DOUBLE if _DOUBLE in types else ir.DataType.FLOAT
    squares = []
    for gradient in gradients.values():
        square = make.op("ReduceSumSquare", gradient, keepdims=0)
        square.type, square.shape = gradient.type, ir.Shape([])
        squares.append(make.cast(square, dtype))
    total = make.typed("Sum", *squares) if len(squares) > 1 else squares[0]
    norm = make.typed("Sqrt", total)
    shifted = make.typed("Add", norm, make.constant(1e-6, dtype))
    quotient = make.typed("Div", make.constant(max_norm, dtype), shifted)
    factor = make.typed("Min", quotient, make.constant(1, dtype))
    factors = {kind: make.cast(factor, kind) for kind in types}
    scaled = {name: make.typed("Mul", g, factors[dtype_of(g)]) for name, g in gradients.items()}
    return scaled, norm
