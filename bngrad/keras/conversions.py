"""Ops of TensorFlow that tf2onnx does not convert, or whose gradient it loses, as a rewriter of tf2onnx.

It writes ops of ONNX. Formulas that are inaccurate near 0 or in a tail get a correction through a StopGradient:
the gradient is that of the plain formula, which is accurate. 16-bit types are computed in float32, 8-bit and
16-bit integers in int32.
"""

from __future__ import annotations

from importlib import import_module
from math import inf, pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from bngrad.autodiff import stop_gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_FLOATS = (*_NARROW, TensorProto.FLOAT, TensorProto.DOUBLE)
_NARROW_INTEGERS = (TensorProto.INT8, TensorProto.INT16)
_INTEGERS = (*_NARROW_INTEGERS, TensorProto.INT32, TensorProto.INT64)
_SELECTS = ("Select", "SelectV2")
"""Ops that tf2onnx writes as products with 0 and 1, unless the other branch is declared not finite."""
_WIDER: Mapping[int, int] = {
    **dict.fromkeys(_NARROW, TensorProto.FLOAT),
    **dict.fromkeys(_NARROW_INTEGERS, TensorProto.INT32),
}
"""The type that a formula computes in."""
_ERFC = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)
"""ln(erfc(x) exp(x^2) / t) for t = 1 / (1 + x / 2) and x > 0, from t^0 on: Chebyshev, within 1.2e-7."""
_ERFINV_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
"""erfinv(x) / x as a polynomial of w - 2.5 for w = -ln(1 - x^2) < 5, the highest power first."""
_ERFINV_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
"""The same of sqrt(w) - 3 for larger w."""


class Conversions:
    """The argument ``custom_rewriter`` of ``tf2onnx.convert.from_function``.

    Handlers of ops would stay in tf2onnx for all later conversions.
    """

    def __init__(self) -> None:
        self.rewriters = [self._rewrite]
        self._error: Exception | None = None

    def finish(self) -> None:
        """Raises the error of a rewriter, which tf2onnx only logs."""
        if self._error is not None:
            raise self._error

    def _rewrite(self, context: Any, ops: Any) -> Any:  # noqa: ANN401
        try:
            for node in list(ops):  # which a formula changes
                if node.type == stop_gradient.NAME:
                    _stop(context, node)
                elif node.type in _FORMULAS and not _has_second_result(context, node):
                    _write(context, node, _FORMULAS[node.type])
                elif node.type in _INTEGER_FORMULAS and context.get_dtype(node.input[0]) in _INTEGERS:
                    _write(context, node, _INTEGER_FORMULAS[node.type])
                elif node.type in _SELECTS and context.get_dtype(node.output[0]) in _FLOATS:
                    node.set_attr("handles_nan", True)
        except Exception as error:
            self._error = error
            raise
        return context.get_nodes()


def _stop(context: Any, node: Any) -> None:  # noqa: ANN401
    """StopGradient of ``bngrad.autodiff``; of integers, which have no gradient, an Identity."""
    if context.get_dtype(node.input[0]) not in _FLOATS or _is_in_moments(context, node):
        node.type = "Identity"
    else:
        node.domain = stop_gradient.DOMAIN
    node.skip_conversion = True


def _has_second_result(context: Any, node: Any) -> bool:  # noqa: ANN401
    """Tests whether the gradient that a cross entropy also returns is read, as by a `tf.GradientTape`."""
    return any(context.find_output_consumers(name) or name in context.outputs for name in node.output[1:])


def _is_in_moments(context: Any, node: Any) -> bool:  # noqa: ANN401
    """Tests whether a node is in ``mean((x - stop_gradient(mean(x)))^2)``, where the gradient is 0 anyway.

    `tf.nn.moments` has it. Without it, batch norms in primitives are recognized.
    """
    mean = node.inputs[0]
    readers = context.find_output_consumers(node.output[0])
    if mean.type != "Mean" or not mean.get_attr_value("keep_dims") or not readers:
        return False
    for reader in readers:
        x = next((name for name in reader.input if name != node.output[0]), None)
        after = context.find_output_consumers(reader.output[0])
        if reader.type != "SquaredDifference" or x != mean.input[0] or not after:
            return False
        if any(consumer.type != "Mean" or _axes(consumer) != _axes(mean) for consumer in after):
            return False
    return True


def _axes(mean: Any) -> Any:  # noqa: ANN401
    axes = mean.inputs[1]
    return axes.get_tensor_value() if axes.is_const() else axes.name


def _write(context: Any, node: Any, formula: Callable[..., str]) -> None:  # noqa: ANN401
    name, shape, dtype = node.name, context.get_shape(node.output[0]), context.get_dtype(node.input[0])
    outputs, inputs = node.output[:1], node.input
    context.remove_node(name)
    make = _Maker(context, name, dtype)
    result = formula(make, *(make.wide(x) if context.get_dtype(x) == dtype else x for x in inputs))
    op_type, attributes = ("Cast", {"to": dtype}) if dtype in _WIDER else ("Identity", {})
    context.make_node(op_type, [result], attributes, outputs=outputs, name=name, shapes=[shape], dtypes=[dtype])


class _Maker:
    """Adds nodes to a graph of tf2onnx."""

    def __init__(self, context: Any, name: str, dtype: int) -> None:  # noqa: ANN401
        self._context, self._name = context, name
        self._wide = _WIDER.get(dtype, dtype)
        self._cast = dtype in _WIDER

    @property
    def is_double(self) -> bool:
        return self._wide == TensorProto.DOUBLE

    def wide(self, value: str) -> str:
        return self.cast(value) if self._cast else value

    def cast(self, value: str) -> str:
        return self._of("Cast", [value], to=self._wide)

    def constant(self, value: float) -> str:
        dtype = np.float64 if self.is_double else np.float32
        name = self._context.make_const(_fresh(self._name), np.array(value, dtype)).output[0]
        return str(name)

    def op(self, op_type: str, *inputs: str | float) -> str:
        return self._of(op_type, [self.constant(x) if isinstance(x, float) else x for x in inputs])

    def stop(self, value: str) -> str:
        return self._of(stop_gradient.NAME, [value], domain=stop_gradient.DOMAIN)

    def polynomial(self, x: str, coefficients: tuple[float, ...]) -> str:
        """Horner's rule, the highest power first."""
        result = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            result = self.op("Add", self.op("Mul", result, x), coefficient)
        return result

    def losses(self, logits: str, labels: str) -> str:
        """The cross entropy of each row, where tf2onnx takes logarithms of exponentials, which may be 0."""
        return self._of("SoftmaxCrossEntropyLoss", [logits, labels], reduction="none")

    def _of(self, op_type: str, inputs: list[str], domain: str = "", **attributes: int | str) -> str:
        shape = self._context.get_shape(inputs[0]) if op_type in (stop_gradient.NAME, "Cast") else None
        node = self._context.make_node(
            op_type,
            inputs,
            attributes,
            name=_fresh(self._name),
            domain=domain,
            shapes=None if shape is None else [shape],
            dtypes=[self._wide] if op_type in (stop_gradient.NAME, "Cast") else None,
        )
        return str(node.output[0])


def _fresh(name: str) -> str:
    return str(import_module("tf2onnx.utils").make_name(name))


def _log1p(make: _Maker, x: str) -> str:
    """Ln(u) for u = 1 + x, plus the effect of the rounding of u."""
    u = make.op("Add", x, 1.0)
    correction = make.op("Div", make.op("Sub", x, make.op("Sub", u, 1.0)), u)
    small = make.op("Less", make.op("Abs", x), 1.0)
    return make.op("Add", make.op("Log", u), make.stop(make.op("Where", small, correction, 0.0)))


def _expm1(make: _Maker, x: str) -> str:
    """exp(x) - 1; near 0 that is y x / ln(y + 1) for y = exp(x) - 1, whose roundings cancel."""
    exp = make.op("Exp", x)
    plain = make.op("Sub", exp, 1.0)
    quotient = make.op("Div", make.op("Mul", plain, x), make.op("Log", exp))
    accurate = make.op("Where", make.op("Equal", exp, 1.0), x, quotient)
    small = make.op("Less", make.op("Abs", x), 0.5)
    correction = make.op("Where", small, make.op("Sub", accurate, plain), 0.0)
    return make.op("Add", plain, make.stop(correction))


def _erfc(make: _Maker, x: str) -> str:
    """1 - erf(x); in the right tail, exp(-x^2) times a rational approximation."""
    plain = make.op("Sub", 1.0, make.op("Erf", x))
    if make.is_double:  # in which the approximation is worse, except far out
        return plain
    right = make.op("Max", x, 0.5)
    t = make.op("Div", 1.0, make.op("Add", make.op("Mul", right, 0.5), 1.0))
    power = make.op("Sub", make.polynomial(t, _ERFC[::-1]), make.op("Mul", right, right))
    tail = make.op("Mul", t, make.op("Exp", power))
    correction = make.op("Where", make.op("Greater", x, 0.5), make.op("Sub", tail, plain), 0.0)
    return make.op("Add", plain, make.stop(correction))


def _erfinv(make: _Maker, x: str) -> str:
    """Giles's approximation; the derivative is sqrt(pi) / 2 exp(erfinv(x)^2)."""
    product = make.op("Mul", make.op("Sub", 1.0, x), make.op("Add", 1.0, x))
    w = make.op("Neg", make.op("Log", product))
    near = make.polynomial(make.op("Sub", w, 2.5), _ERFINV_NEAR)
    far = make.polynomial(make.op("Sub", make.op("Sqrt", w), 3.0), _ERFINV_FAR)
    inside = make.op("Mul", x, make.op("Where", make.op("Less", w, 5.0), near, far))
    value = make.op("Where", make.op("Equal", product, 0.0), make.op("Mul", x, inf), inside)
    slope = make.op("Mul", make.op("Exp", make.op("Min", make.op("Mul", value, value), 80.0)), sqrt(pi) / 2)
    difference = make.op("Sub", x, make.stop(x))  # 0, with the gradient 1
    return make.op("Add", make.stop(value), make.op("Mul", difference, make.stop(slope)))


def _xlogy(make: _Maker, x: str, y: str) -> str:
    return _unless_zero(make, x, lambda: make.op("Mul", x, make.op("Log", _where_used(make, x, y))))


def _xlog1py(make: _Maker, x: str, y: str) -> str:
    return _unless_zero(make, x, lambda: make.op("Mul", x, _log1p(make, _where_used(make, x, y))))


def _xdivy(make: _Maker, x: str, y: str) -> str:
    return _unless_zero(make, x, lambda: make.op("Div", x, _where_used(make, x, y)))


def _unless_zero(make: _Maker, x: str, result: Callable[[], str]) -> str:
    """0 where x is 0, also as a gradient."""
    return make.op("Where", make.op("Equal", x, 0.0), 0.0, result())


def _where_used(make: _Maker, x: str, y: str) -> str:
    """Y, and 1 where x is 0: an infinite derivative there would become NaN."""
    return make.op("Where", make.op("Equal", x, 0.0), 1.0, y)


def _floor_mod(make: _Maker, x: str, y: str) -> str:
    return make.op("Mod", x, y)


def _floor_div(make: _Maker, x: str, y: str) -> str:
    """The quotient that is rounded to 0, less 1 where the remainder is not that of a division to -infinity."""
    quotient = make.op("Div", x, y)
    rest = make.op("Sub", x, make.op("Mul", quotient, y))
    return make.op("Sub", quotient, make.cast(make.op("Not", make.op("Equal", rest, make.op("Mod", x, y)))))


_FORMULAS: Mapping[str, Callable[..., str]] = {
    "Log1p": _log1p,
    "Expm1": _expm1,
    "Erfc": _erfc,
    "Erfinv": _erfinv,
    "SparseSoftmaxCrossEntropyWithLogits": _Maker.losses,
    "Xlogy": _xlogy,
    "Xlog1py": _xlog1py,
    "Xdivy": _xdivy,
}
_INTEGER_FORMULAS: Mapping[str, Callable[..., str]] = {"FloorDiv": _floor_div, "FloorMod": _floor_mod}
"""Of signed integers, whose quotient tf2onnx rounds to 0."""
