"""The gradients of MIOpen's ten activations in ops of standard ONNX.

============= ========================================== =====================================================
activ_mode    y = f(u), with a, b and c for activ_alpha, g, the gradient with respect to u
              activ_beta and activ_gamma
============= ========================================== =====================================================
PASTHRU       u                                          dy
LOGISTIC      1 / (1 + exp(-u))                          dy * y * (1 - y)
TANH          b * tanh(a * u)                            dy * a * (b - y * y / b), 0 if b is 0
RELU          max(u, 0)                                  dy where u > 0, else 0
SOFTRELU      log(1 + exp(u))                            dy / (1 + exp(-u))
ABS           max(u, -u)                                 dy * sign(u)
POWER         (a + b * u)^c where the base is > 1e-6,    dy * b * c * y / (a + b * u) where the base is > 1e-6,
              else 0                                     else 0
CLIPPEDRELU   min(max(u, 0), a)                          dy where 0 < u <= a, else 0
LEAKYRELU     u where u > 0, else a * u                  dy where u > 0, else a * dy
ELU           u where u > 0, else a * (exp(u) - 1)       dy where u > 0, else dy * (y + a)
============= ========================================== =====================================================

Two gradients differ from MIOpen, which is wrong: its POWER omits dy, and its ABS returns -dy where u is 0. As in
MIOpen, a formula with y uses the given y, so that the gradient belongs to the y of the forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from bngrad.passes.replace import Emitter


class ActivationInputs(NamedTuple):
    """The inputs of an activation's gradient."""

    emit: Emitter
    dtype: ir.DataType
    """The type of dy, u and y."""
    dy: ir.Value
    u: ir.Value
    given_y: ir.Value | None
    """The activation's output, or None to compute it."""
    a: float
    b: float
    c: float

    def op(self, op_type: str, *operands: ir.Value | float) -> ir.Value:
        """Inserts a node; numbers become constants."""
        values = [self.emit.constant(v, self.dtype) if isinstance(v, float | int) else v for v in operands]
        return self.emit.op(op_type, *values)

    def where_positive(self, then: ir.Value | float, otherwise: ir.Value | float) -> ir.Value:
        """Selects ``then`` where u > 0; unlike a product with 0, this discards an infinite dy elsewhere."""
        return self.op("Where", self.op("Greater", self.u, 0), then, otherwise)


class Activation(NamedTuple):
    """The gradient of an activation."""

    gradient: Callable[[ActivationInputs], ir.Value]
    coefficients: tuple[str, ...] = ()
    """The attributes that the activation requires."""


_POWER_THRESHOLD = 1e-6
"""MIOpen's POWER is 0 if its base is not larger than this."""


def _logistic(at: ActivationInputs) -> ir.Value:
    y = at.given_y or at.op("Sigmoid", at.u)
    return at.op("Mul", at.dy, at.op("Mul", y, at.op("Sub", 1, y)))


def _tanh(at: ActivationInputs) -> ir.Value:
    if at.b == 0:  # y is constant, and y / b would be NaN
        return at.where_positive(0, 0)
    y = at.given_y or at.op("Mul", at.op("Tanh", at.op("Mul", at.u, at.a)), at.b)
    slope = at.op("Mul", at.op("Sub", at.b, at.op("Div", at.op("Mul", y, y), at.b)), at.a)
    return at.op("Mul", at.dy, slope)


def _power(at: ActivationInputs) -> ir.Value:
    base = at.op("Add", at.op("Mul", at.u, at.b), at.a)
    y = at.given_y or at.op("Pow", base, at.c)
    slope = at.op("Mul", at.op("Div", y, base), at.b * at.c)
    return at.op("Where", at.op("Greater", base, _POWER_THRESHOLD), at.op("Mul", at.dy, slope), 0)


def _clipped_relu(at: ActivationInputs) -> ir.Value:
    return at.op("Where", at.op("LessOrEqual", at.u, at.a), at.where_positive(at.dy, 0), 0)


def _elu(at: ActivationInputs) -> ir.Value:
    y = at.given_y or at.op("Mul", at.op("Sub", at.op("Exp", at.u), 1), at.a)
    return at.where_positive(at.dy, at.op("Mul", at.dy, at.op("Add", y, at.a)))


ACTIVATIONS = {
    "PASTHRU": Activation(lambda at: at.dy),
    "LOGISTIC": Activation(_logistic),
    "TANH": Activation(_tanh, ("activ_alpha", "activ_beta")),
    "RELU": Activation(lambda at: at.where_positive(at.dy, 0)),
    "SOFTRELU": Activation(lambda at: at.op("Mul", at.dy, at.op("Sigmoid", at.u))),
    "ABS": Activation(lambda at: at.op("Mul", at.dy, at.op("Sign", at.u))),
    "POWER": Activation(_power, ("activ_alpha", "activ_beta", "activ_gamma")),
    "CLIPPEDRELU": Activation(_clipped_relu, ("activ_alpha",)),
    "LEAKYRELU": Activation(lambda at: at.where_positive(at.dy, at.op("Mul", at.dy, at.a)), ("activ_alpha",)),
    "ELU": Activation(_elu, ("activ_alpha",)),
}
"""The activations by name, in the order of miopenActivationMode_t."""


def activation_name(mode: str | int) -> str:
    """Returns the key of an activation in `ACTIVATIONS`.

    Args:
        mode: The key, or the name or value of MIOpen's enumerator.

    Raises:
        InputError: There is no such activation.
    """
    names = list(ACTIVATIONS)
    if isinstance(mode, int) and 0 <= mode < len(names):
        return names[mode]
    name = str(mode).removeprefix("miopenActivation")
    if name not in ACTIVATIONS:
        raise InputError(
            f"mode {mode!r} does not exist; expected one of {', '.join(names)}, or 0 to {len(names) - 1}"
        )
    return name
