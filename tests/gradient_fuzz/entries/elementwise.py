"""Activations, arithmetic, and ops that choose among their operands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx

from gradient_fuzz.sketch import NotDrawableError, numpy_type

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value

MICROSOFT = "com.microsoft"
STEPS = ("Ceil", "Floor", "Round", "Sign")
NUMBERS = {
    "Celu": {"alpha": (0.5, 2.0, -1.5)},
    "Elu": {"alpha": (0.3, 2.0, -0.5, 0.0)},
    "HardSigmoid": {"alpha": (0.5, 1 / 6, -0.3), "beta": (0.1, 0.75, -0.2)},
    "LeakyRelu": {"alpha": (0.0, 0.3, 1.5, -0.4)},
    "Selu": {"alpha": (0.5, 2.0, -0.5), "gamma": (1.0, 0.5, 1.5)},
    "Shrink": {"bias": (0.5, -0.2, 1.0), "lambd": (0.0, 0.3, 1.0, -0.5)},
    "Swish": {"alpha": (1.0, 1.7, -0.5, 0.0)},
    "ThresholdedRelu": {"alpha": (0.3, 0.0, -0.5, 2.0)},
}


def step(b: Sketch, op_type: str) -> list[Value]:
    """A step function, most often times its argument: else there is nothing to differentiate."""
    x = b.any()
    (y,) = b.emit(op_type, [x])
    return b.emit("Mul", [x, y]) if b.draw.chance(0.8) else [y]


def with_numbers(b: Sketch, op_type: str) -> list[Value]:
    attributes = {name: b.maybe(b.draw.choice(some), 0.7) for name, some in NUMBERS[op_type].items()}
    return b.emit(op_type, [b.any()], **attributes)


def positive(b: Sketch, op_type: str) -> list[Value]:
    """Log and Sqrt; a graph that may have singular points cuts off elements that are not above 0."""
    x = b.any()
    if b.singular:
        small = b.scalar(b.draw.choice([0.0, 1e-3]))
        cut = b.one("Relu", x) if b.draw.chance(0.5) else b.one("Max", x, small)
        y = b.one("Sqrt", cut)
        condition = b.one("Greater", x, b.scalar(b.draw.choice([0.0, 0.1])))
        return b.emit("Where", [condition, y, b.draw.choice([x, b.scalar(0.5)])])
    return b.emit(op_type, [b.positive(x)])


def reciprocal(b: Sketch) -> list[Value]:
    return b.emit("Reciprocal", [away_from_zero(b, b.any())])


def away_from_zero(b: Sketch, x: Value) -> Value:
    if x.array.size and float(np.abs(x.array).min()) > 0.05:
        return x
    return b.positive(x)


def gelu(b: Sketch) -> list[Value]:
    return b.emit("Gelu", [b.any()], approximate=b.maybe(b.draw.choice(["none", "tanh"])))


def microsoft_gelu(b: Sketch) -> list[Value]:
    return b.emit("Gelu", [b.any()], domain=MICROSOFT)


def quick_gelu(b: Sketch) -> list[Value]:
    return b.emit("QuickGelu", [b.any()], domain=MICROSOFT, alpha=b.maybe(b.draw.choice([1.702, 1.0, 0.3])))


def biased(b: Sketch, op_type: str) -> list[Value]:
    x = b.any(1)
    bias = b.of_shape(x.shape[-1:])
    if op_type == "FastGelu" and b.draw.chance(0.4):
        bias = None
    return b.emit(op_type, [x, bias], domain=MICROSOFT)


def two(b: Sketch, op_type: str) -> list[Value]:
    x = b.any()
    y = x if b.draw.chance(0.1) else b.of_shape(b.broadcast_with(x.shape))
    if op_type == "Div":
        y = away_from_zero(b, y)
    return b.emit(op_type, [x, y] if op_type == "Div" or b.draw.chance(0.5) else [y, x])


def mod(b: Sketch) -> list[Value]:
    x = b.any()
    divisor = away_from_zero(b, b.of_shape(b.broadcast_with(x.shape)))
    # Below opset 28 floats have only the remainder with the sign of x.
    fmod = b.maybe(b.draw.choice([0, 1])) if b.opset >= 28 else 1
    return b.emit("Mod", [x, divisor], fmod=fmod)


def several(b: Sketch, op_type: str) -> list[Value]:
    x = b.any()
    others = [b.of_shape(b.broadcast_to(x.shape)) for _ in range(b.draw.choice([0, 1, 1, 2, 3]))]
    if others and b.draw.chance(0.15):
        others[0] = x
    operands = [x, *others]
    b.draw.shuffle(operands)
    return b.emit(op_type, operands)


def power(b: Sketch) -> list[Value]:
    kind = b.draw.randrange(5)
    x = b.any()
    if kind == 0:
        exponent = b.draw.choice([2.0, 3.0, 1.0, 0.0, 4.0])
        return b.emit("Pow", [x, b.scalar(exponent) if b.draw.chance(0.5) else b.constant([exponent], b.element)])
    if kind == 1 and b.opset >= 12:
        element = b.draw.choice([onnx.TensorProto.INT64, onnx.TensorProto.INT32])
        shape = b.broadcast_to(x.shape)
        return b.emit("Pow", [x, b.constant(b.rng.integers(0, 4, shape), element)])
    x = b.positive(x)
    if kind == 2:
        return b.emit("Pow", [x, b.scalar(b.draw.choice([0.5, -1.0, 2.5, -0.5, 1.5]))])
    if kind == 3 and b.opset >= 12 and b.element in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        other = {onnx.TensorProto.FLOAT: onnx.TensorProto.DOUBLE, onnx.TensorProto.DOUBLE: onnx.TensorProto.FLOAT}
        (exponent,) = b.emit(
            "Cast", [b.of_shape(b.broadcast_with(x.shape))], to=other[b.element], types=[other[b.element]]
        )
        return b.emit("Pow", [x, exponent])
    return b.emit("Pow", [x, b.of_shape(b.broadcast_with(x.shape))])


def prelu(b: Sketch) -> list[Value]:
    x = b.any()
    return b.emit("PRelu", [x, b.of_shape(b.broadcast_to(x.shape))])


def clip(b: Sketch) -> list[Value]:
    x = b.any()
    low, high = (
        None if b.draw.chance(0.25) else b.scalar(number) if b.draw.chance(0.4) else b.of_shape(())
        for number in (b.draw.choice([-1.0, -0.4, 0.0]), b.draw.choice([0.5, 1.0, -0.5]))
    )
    if low is not None and high is not None and low.array > high.array and b.draw.chance(0.8):
        low, high = high, low
    return b.emit("Clip", [x, low, high])


def where(b: Sketch) -> list[Value]:
    x = b.any()
    y = b.of_shape(b.broadcast_with(x.shape))
    shape = b.broadcast_to(np.broadcast_shapes(x.shape, y.shape))
    if b.draw.chance(0.5):
        condition = b.constant(b.rng.integers(0, 2, shape).astype(bool), onnx.TensorProto.BOOL)
    else:
        op_type = b.draw.choice(["Greater", "Less"])
        condition = b.one(op_type, b.of_shape(shape), b.scalar(b.draw.choice([0.1, -0.2])))
    return b.emit("Where", [condition, x, y] if b.draw.chance(0.5) else [condition, y, x])


def cast(b: Sketch) -> list[Value]:
    """A cast to another float type and back, because other nodes read the graph's type; sometimes to integers."""
    x = b.any()
    kinds = [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE]
    if b.draw.chance(0.15):
        integers = b.one("Cast", x, to=onnx.TensorProto.INT32)
        return b.emit("Add", [x, b.one("Cast", integers, to=b.element, types=[b.element])])
    to = b.draw.choice(kinds)
    if to == b.element:
        return b.emit("Cast", [x], to=to)
    (other,) = b.emit("Cast", [x], to=to, types=[to])
    (other,) = b.emit(b.draw.choice(["Neg", "Tanh", "Identity"]), [other], types=[to])
    return b.emit("Cast", [other], to=b.element, types=[b.element])


def cast_like(b: Sketch) -> list[Value]:
    x = b.any()
    to = b.draw.choice([onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE])
    (other,) = b.emit("CastLike", [x, b.constant(np.zeros(()), to)], types=[to])
    like = b.any()
    return b.emit("CastLike", [other, like], types=[b.element])


def dropout(b: Sketch) -> list[Value]:
    x = b.any()
    outputs = [True, True] if b.draw.chance(0.3) and b.opset >= 13 else 1
    if b.opset < 12:
        return b.emit("Dropout", [x], ratio=b.maybe(0.3))
    ratio = b.maybe(b.scalar(b.draw.choice([0.0, 0.3])), 0.7)
    training = None
    if b.draw.chance(0.6):
        # A mask that is drawn again in each run cannot be compared: nothing is dropped, or the node is off.
        on = ratio is not None and float(ratio.array) == 0 and b.draw.chance(0.7)
        training = b.constant(np.asarray(on), onnx.TensorProto.BOOL)
    return b.emit("Dropout", [x, ratio, training], outputs, seed=b.maybe(7))[:1]


def bernoulli(b: Sketch) -> list[Value]:
    """Bernoulli of probabilities that are 0 and depend on the inputs: nothing is random there."""
    if b.element not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE) or b.opset > 21:
        raise NotDrawableError("ONNX Runtime has no kernel")
    x = b.leaf(b.dims(b.draw.randint(0, 3)))
    probability = b.one("Sub", x, b.constant(x.array, b.element))
    return b.emit("Add", [b.one("Bernoulli", probability, seed=b.maybe(3.0)), x])


def hardmax(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank) if b.opset >= 13 else -1
    (y,) = b.emit("Hardmax", [x], axis=axis)
    return b.emit("Mul", [x, y])


def random_like(b: Sketch, op_type: str) -> list[Value]:
    """A random op of width 0, so that it is the same in every run."""
    x = b.any()
    width = {"mean": 0.5, "scale": 1e-30} if op_type == "RandomNormalLike" else {"low": 0.5, "high": 0.5}
    return b.emit("Mul", [x, b.one(op_type, x, seed=b.maybe(3.0), **width)])


def eye_like(b: Sketch) -> list[Value]:
    x = b.any(2, 2)
    return b.emit("Mul", [x, b.one("EyeLike", x, k=b.maybe(b.draw.choice([-1, 1])), dtype=b.maybe(b.element))])


def range_(b: Sketch) -> list[Value]:
    """Range with a limit between two elements, so that its length does not change."""
    start = b.of_shape(()) if b.draw.chance(0.5) else b.scalar(0.5)
    if not np.issubdtype(numpy_type(b.element), np.floating) or b.element == onnx.TensorProto.FLOAT16:
        raise NotDrawableError("Range has no 16-bit types")
    delta = b.scalar(b.draw.choice([0.5, 1.0, -0.25]))
    count = b.draw.randint(1, 4)
    limit = b.scalar(float(start.array) + float(delta.array) * (count - 0.5))
    return b.emit("Range", [start, limit, delta])


ENTRIES = {
    **{("", op_type): partial(step, op_type=op_type) for op_type in STEPS},
    **{("", op_type): partial(with_numbers, op_type=op_type) for op_type in NUMBERS},
    **{("", op_type): partial(two, op_type=op_type) for op_type in ("Add", "Div", "Mul", "Sub")},
    **{("", op_type): partial(several, op_type=op_type) for op_type in ("Max", "Mean", "Min", "Sum")},
    **{("", op_type): partial(positive, op_type=op_type) for op_type in ("Log", "Sqrt")},
    **{
        ("", op_type): partial(random_like, op_type=op_type)
        for op_type in ("RandomNormalLike", "RandomUniformLike")
    },
    ("", "Bernoulli"): bernoulli,
    ("", "Cast"): cast,
    ("", "CastLike"): cast_like,
    ("", "Clip"): clip,
    ("", "Dropout"): dropout,
    ("", "EyeLike"): eye_like,
    ("", "Gelu"): gelu,
    ("", "Hardmax"): hardmax,
    ("", "Mod"): mod,
    ("", "PRelu"): prelu,
    ("", "Pow"): power,
    ("", "Range"): range_,
    ("", "Reciprocal"): reciprocal,
    ("", "Where"): where,
    (MICROSOFT, "BiasGelu"): partial(biased, op_type="BiasGelu"),
    (MICROSOFT, "FastGelu"): partial(biased, op_type="FastGelu"),
    (MICROSOFT, "Gelu"): microsoft_gelu,
    (MICROSOFT, "QuickGelu"): quick_gelu,
}
