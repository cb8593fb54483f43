"""The activations of LSTM, GRU and RNN, and their derivatives.

Each takes the next alpha and beta of the node if it has them, as ONNX says. ONNX Runtime's RNN takes those at the
number of the direction, and its defaults are not always ONNX's: a node for which that matters is refused.

At a kink the derivative is the one from the left; it is 0 at both limits of HardSigmoid, and 1 at those of clip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.graph.node_reader import dtype_of, like

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.graph.builder import NodeMaker


class Activation(NamedTuple):
    """An activation of a sum that may be clipped."""

    function: _Function
    numbers: tuple[float, ...]
    """Its alpha and beta, if it has them."""
    clip: float | None
    data: ir.Value
    """A value of the node's type."""

    @property
    def needs_sum(self) -> bool:
        """True if its derivative depends on more than its output."""
        return self.clip is not None or self.function.needs_sum

    def without_clip(self) -> Activation:
        """Returns the activation of a sum that is not clipped."""
        return self._replace(clip=None)

    def value(self, make: NodeMaker, x: ir.Value) -> ir.Value:
        """Returns the activation of a sum."""
        if self.clip is not None:
            x = make.op("Clip", x, *(like(make, limit, self.data) for limit in (-self.clip, self.clip)))
        return self.function.value(_Maker(make, self.data), x, *self.numbers)

    def slope(self, make: NodeMaker, x: ir.Value | None, y: ir.Value) -> ir.Value:
        """Returns the derivative for a sum, from that and the activation; 0 where the sum is clipped.

        Args:
            make: The maker of the nodes.
            x: The sum; not used if `needs_sum` is false.
            y: Its activation.
        """
        build = _Maker(make, self.data)
        slope = self.function.slope(build, y if x is None else x, y, *self.numbers)
        if x is None or self.clip is None:
            return slope
        inside = make.op("LessOrEqual", make.op("Abs", x), like(make, self.clip, self.data))
        return make.op("Mul", slope, build.number(inside))


class _Maker(NamedTuple):
    """A maker of nodes for values of one type."""

    make: NodeMaker
    data: ir.Value

    def op(self, op_type: str, *operands: ir.Value | float, **attributes: float) -> ir.Value:
        """Makes a node; numbers become constants."""
        values = [like(self.make, x, self.data) if isinstance(x, int | float) else x for x in operands]
        return self.make.op(op_type, *values, **attributes)

    def number(self, condition: ir.Value) -> ir.Value:
        """Returns 1 where a condition is true, else 0."""
        return self.make.op("Cast", condition, to=int(dtype_of(self.data)))

    def filled(self, number: float, x: ir.Value) -> ir.Value:
        """Returns a number in the shape of a value."""
        return self.op("Expand", number, self.make.op("Shape", x))


class _Function(NamedTuple):
    value: Callable[..., ir.Value]
    """A function of a maker, x, alpha and beta."""
    slope: Callable[..., ir.Value]
    """A function of a maker, x, y, alpha and beta."""
    defaults: tuple[float | None, ...] = ()
    """The defaults of alpha and beta, in LSTM and GRU; None where ONNX Runtime's is not ONNX's."""
    needs_sum: bool = True


def _bend(m: _Maker, _x: ir.Value, y: ir.Value) -> ir.Value:
    """Derivative of tanh: 1 - y^2."""
    return m.op("Sub", 1, m.op("Mul", y, y))


def _logistic_slope(m: _Maker, _x: ir.Value, y: ir.Value) -> ir.Value:
    """Derivative of the logistic function: y (1 - y)."""
    return m.op("Mul", y, m.op("Sub", 1, y))


def _scaled_bend(m: _Maker, x: ir.Value, _y: ir.Value, a: float, b: float) -> ir.Value:
    """Derivative of ScaledTanh: alpha beta (1 - tanh^2 (beta x))."""
    return m.op("Mul", _bend(m, x, m.op("Tanh", m.op("Mul", x, b))), a * b)


def _softsign_slope(m: _Maker, x: ir.Value, _y: ir.Value) -> ir.Value:
    """Derivative of Softsign: 1 / (1 + |x|)^2."""
    size = m.op("Add", m.op("Abs", x), 1)
    return m.op("Reciprocal", m.op("Mul", size, size))


def _inside(m: _Maker, _x: ir.Value, y: ir.Value, a: float, _b: float) -> ir.Value:
    """Derivative of HardSigmoid: alpha where 0 < y < 1, else 0."""
    inside = m.make.op("And", m.op("Greater", y, 0), m.op("Less", y, 1))
    return m.op("Mul", m.number(inside), a)


_FUNCTIONS: dict[str, _Function] = {
    "Affine": _Function(
        lambda m, x, a, b: m.op("Add", m.op("Mul", x, a), b), lambda m, x, _y, a, _b: m.filled(a, x), (None, None)
    ),
    "Elu": _Function(
        lambda m, x, a: m.op("Elu", x, alpha=a),
        lambda m, x, y, a: m.op("Where", m.op("Greater", x, 0), 1, m.op("Add", y, a)),
        (1.0,),
    ),
    "HardSigmoid": _Function(lambda m, x, a, b: m.op("HardSigmoid", x, alpha=a, beta=b), _inside, (0.2, 0.5)),
    "LeakyRelu": _Function(
        lambda m, x, a: m.op("LeakyRelu", x, alpha=a),
        lambda m, x, _y, a: m.op("Where", m.op("Greater", x, 0), 1, a),
        (0.01,),
    ),
    "Relu": _Function(
        lambda m, x: m.op("Relu", x), lambda m, _x, y: m.number(m.op("Greater", y, 0)), needs_sum=False
    ),
    "ScaledTanh": _Function(
        lambda m, x, a, b: m.op("Mul", m.op("Tanh", m.op("Mul", x, b)), a), _scaled_bend, (None, None)
    ),
    "Sigmoid": _Function(lambda m, x: m.op("Sigmoid", x), _logistic_slope, needs_sum=False),
    "Softplus": _Function(lambda m, x: m.op("Softplus", x), lambda m, x, _y: m.op("Sigmoid", x)),
    "Softsign": _Function(lambda m, x: m.op("Softsign", x), _softsign_slope),
    "Tanh": _Function(lambda m, x: m.op("Tanh", x), _bend, needs_sum=False),
    "ThresholdedRelu": _Function(
        lambda m, x, a: m.op("ThresholdedRelu", x, alpha=a),
        lambda m, x, _y, a: m.number(m.op("Greater", x, a)),
        (None,),
    ),
}
_BY_LOWER_NAME = {name.lower(): name for name in _FUNCTIONS}


def activations_of(back: Backward, default: Sequence[str], count: int) -> list[list[Activation]]:
    """Returns the activations of each direction of a node.

    Args:
        back: The node.
        default: Those of a direction if the node states none.
        count: The number of directions.
    """
    is_simple = back.node.op_type == "RNN"
    clip = back.attribute("clip", None)
    if clip is not None and clip <= 0:
        back.refuse(f"it has clip = {clip:g}; expected a positive number")
    names = list(map(str, back.attribute("activations", None) or list(default) * count))
    if is_simple and count == 1:
        names = names[:1] if len(names) == 2 else names  # the schema's own default has two
    if not is_simple:  # whose names ONNX Runtime compares without regard to case
        names = [_BY_LOWER_NAME.get(name.lower(), name) for name in names]
    if len(names) != count * len(default) or not set(names) <= _FUNCTIONS.keys():
        number = f"{len(default)} per direction" if len(default) > 1 else "one per direction"
        back.refuse(f"it has activations {', '.join(names)}; expected {number}, of {', '.join(_FUNCTIONS)}")
    numbers = _numbers(back, names, is_simple=is_simple)
    pairs = zip(names, numbers, strict=True)
    result = [Activation(_FUNCTIONS[name], own, clip, back.x(0)) for name, own in pairs]
    size = len(default)
    return [result[begin : begin + size] for begin in range(0, len(result), size)]


def _numbers(back: Backward, names: Sequence[str], *, is_simple: bool) -> list[tuple[float, ...]]:
    """Returns the alpha and beta of each activation: the next ones of the node, or the defaults."""
    stated = [list(back.attribute(f"activation_{word}", None) or ()) for word in ("alpha", "beta")]
    left = [list(numbers) for numbers in stated]
    results = []
    for index, name in enumerate(names):
        own = []
        for place, default in enumerate(_FUNCTIONS[name].defaults):
            number = left[place].pop(0) if left[place] else None if is_simple else default
            if number is None:
                back.refuse(
                    f"it leaves out alpha or beta of {name}, which ONNX Runtime takes to be 0; expected "
                    "activation_alpha and activation_beta to state them"
                )
            if is_simple and stated[place][index : index + 1] != [number]:
                back.refuse(
                    f"ONNX Runtime reads another alpha or beta of {name} than ONNX says; expected one for each "
                    "direction"
                )
            own.append(number)
        results.append(tuple(own))
    return results
