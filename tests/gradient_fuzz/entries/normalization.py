"""Batch norms in all modes, and their relatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value

EPSILONS = (1e-5, 1e-3, 0.1)


def batch_norm(b: Sketch) -> list[Value]:
    """A BatchNormalization in inference or training mode, by its attribute or an option."""
    x = b.any(2, 5)
    return _batch_norm(b, x, training=b.opset >= 14 and b.draw.chance(0.4))


def batch_norm_training(b: Sketch) -> list[Value]:
    return _batch_norm(b, b.any(2, 5), training=True)


def _batch_norm(b: Sketch, x: Value, *, training: bool) -> list[Value]:
    if b.opset < 9:
        raise NotDrawableError("the attribute spatial")
    channels = (x.shape[1],)
    if training and x.array.size and x.array.size // x.shape[1] < 2:
        raise NotDrawableError("one element a channel")
    if training:
        _require_variance(x, tuple(axis for axis in range(x.rank) if axis != 1))
    scale, bias = b.of_shape(channels, positive=b.draw.chance(0.3)), b.of_shape(channels)
    statistics = [_statistic(b, channels), _statistic(b, channels, positive=True)]
    if b.draw.chance(0.1) and bias not in (*b.inputs, *b.initializers):
        statistics[0] = bias
    if b.draw.chance(0.1):
        statistics[1] = statistics[0] = _statistic(b, channels, positive=True)
    if not training and b.draw.chance(0.2) and x.array.size:
        statistics = _computed_statistics(b, x)
    name = b.fresh("bn")
    # The mode of the attribute, and the mode by the options.
    written = training
    if b.opset >= 14 and b.draw.chance(0.25):
        written = not training
        (b.training if training else b.frozen).append(name)
    outputs: list[bool] = [True]
    if written and b.draw.chance(0.6):
        outputs = [True, b.draw.chance(0.6), True]
    elif written and b.opset < 18:
        # onnx's version converter does not restore them from fewer.
        outputs = [True, True, True]
    return b.emit(
        "BatchNormalization",
        [x, scale, bias, *statistics],
        outputs,
        name=name,
        epsilon=b.maybe(b.draw.choice(EPSILONS)),
        momentum=b.maybe(b.draw.choice([0.5, 0.9, 0.0, 1.0])),
        training_mode=int(written) if written or (b.opset >= 14 and b.draw.chance(0.5)) else None,
    )


def batch_norm_of_ours(b: Sketch) -> list[Value]:
    """A batch norm as `rewrite` writes those of other systems: over any axes except the channels."""
    x = b.any(2, 5)
    channel = b.draw.choice([1, x.rank - 1])
    axes = [axis for axis in range(x.rank) if axis != channel]
    channels = (x.shape[channel],)
    if x.array.size:
        if x.array.size // channels[0] < 2:
            raise NotDrawableError("one element a channel")
        _require_variance(x, tuple(axes))
    y, *others = b.emit(
        "BatchNormalizationTraining",
        [
            x,
            b.of_shape(channels),
            b.of_shape(channels),
            _constant(b, channels),
            _constant(b, channels),
            b.ints(*axes),
        ],
        5,
        domain="bngrad",
        name=b.fresh("bn"),
        epsilon=b.draw.choice(EPSILONS),
        momentum=b.draw.choice([0.5, 0.9]),
        unbiased_running_var=b.draw.choice([0, 1]),
    )
    if b.draw.chance(0.95):
        b.values = [value for value in b.values if value not in others]  # a loss that reads them is refused
    return [y]


def _constant(b: Sketch, channels: tuple[int, ...]) -> Value:
    return b.constant(b.numbers(channels, positive=True), b.element)


def _statistic(b: Sketch, channels: tuple[int, ...], *, positive: bool = False) -> Value:
    """A statistic: most often an initializer that nothing else reads, as in a training run; else any value."""
    if b.draw.chance(0.25):
        value = b.of_shape(channels, positive=positive)
        if value not in (*b.inputs, *b.initializers):
            return value
        # A statistic that is also a weight becomes an input of its own, which changes the function of the weight.
    return b.constant(b.numbers(channels, positive=positive), b.element)


def _computed_statistics(b: Sketch, x: Value) -> list[Value | None]:
    """The statistics of the batch, as exporters write them."""
    over = [axis for axis in range(x.rank) if axis != 1]
    mean = b.reduce("ReduceMean", x, over, keepdims=1)
    centered = b.one("Sub", x, mean)
    variance = b.reduce("ReduceMean", b.one("Mul", centered, centered), over, keepdims=0)
    flat = b.reduce("ReduceMean", x, over, keepdims=0)
    return [flat, variance]


def instance_norm(b: Sketch) -> list[Value]:
    x = b.any(3, 5)
    if x.array.size and x.array.size // (x.shape[0] * x.shape[1]) < 2:
        raise NotDrawableError("one element")
    channels = (x.shape[1],)
    _require_variance(x, tuple(range(2, x.rank)))
    return b.emit(
        "InstanceNormalization",
        [x, b.of_shape(channels), b.of_shape(channels)],
        epsilon=b.maybe(b.draw.choice(EPSILONS)),
    )


def _require_variance(x: Value, over: tuple[int, ...]) -> None:
    if x.array.size and float(x.array.var(axis=over).min()) < 1e-3:
        raise NotDrawableError("no variance")


def group_norm(b: Sketch) -> list[Value]:
    groups = b.draw.randint(1, 3)
    channels = groups * b.draw.randint(1, 2)
    x = b.of_shape((b.dim(1, 2), channels, *b.dims(b.draw.randint(1, 2))), computed=0.4)
    if x.array.size:
        _require_variance(type(x)(x.name, x.array.reshape(x.shape[0], groups, -1), x.type, x.moving), (2,))
    width = (channels,) if b.opset >= 21 else (groups,)
    return b.emit(
        "GroupNormalization",
        [x, b.of_shape(width), b.of_shape(width)],
        num_groups=groups,
        epsilon=b.maybe(b.draw.choice(EPSILONS)),
        stash_type=b.maybe(b.draw.choice([1, 11])) if b.opset >= 21 else None,
    )


def layer_norm(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    shape = x.shape[axis:]
    if int(np.prod(shape)) < 2 and x.array.size:
        raise NotDrawableError("one element")
    _require_variance(x, tuple(range(axis % x.rank, x.rank)))
    outputs = b.draw.choice([1, 1, [True, True, True], [True, False, True], [True, True]])
    bias = b.maybe(b.of_shape(_repeated(b, shape, x)), 0.6)
    return b.emit(
        "LayerNormalization",
        [x, b.of_shape(_repeated(b, shape, x)), bias],
        outputs,
        axis=b.maybe(axis, 0.3) if axis == -1 else axis,
        epsilon=b.maybe(b.draw.choice(EPSILONS)),
        stash_type=b.maybe(1, 0.3),
    )


def _repeated(b: Sketch, shape: tuple[int, ...], x: Value) -> tuple[int, ...]:
    """A shape for a scale or a bias, sometimes one that is repeated to the shape of the data."""
    return b.broadcast_to(b.draw.choice([shape, x.shape])) if b.draw.chance(0.25) else shape


def rms_norm(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    shape = x.shape[axis:]
    return b.emit(
        "RMSNormalization",
        [x, b.of_shape(_repeated(b, shape, x))],
        axis=b.maybe(axis, 0.3) if axis == -1 else axis,
        epsilon=b.maybe(b.draw.choice(EPSILONS)),
        stash_type=b.maybe(1, 0.3),
    )


def lrn(b: Sketch) -> list[Value]:
    x = b.any(2, 4) if b.draw.chance(0.2) else b.any(4, 4)
    return b.emit(
        "LRN",
        [x],
        size=b.draw.randint(1, 5),
        alpha=b.maybe(b.draw.choice([0.5, 2.0, 1e-4])),
        beta=b.maybe(b.draw.choice([0.5, 1.0, 0.25])),
        bias=b.maybe(b.draw.choice([1.0, 2.0])),
    )


def mean_variance_normalization(b: Sketch) -> list[Value]:
    if b.element != onnx.TensorProto.FLOAT:
        raise NotDrawableError("onnx's definition adds a float")
    x = b.any(4, 4) if b.draw.chance(0.3) else b.any(2)
    axes = [
        axis - x.rank if b.draw.chance(0.3) else axis
        for axis in b.draw.sample(range(x.rank), b.draw.randint(1, x.rank))
    ]
    axes = None if x.rank == 4 and b.draw.chance(0.3) else axes
    over = tuple(axes or (0, 2, 3))
    if np.prod([x.shape[axis] for axis in over]) in (1, 2):
        raise NotDrawableError("its result is constant: the gradient is 0 except for rounding")
    if x.array.size and float(x.array.std(axis=over).min()) < 0.05:
        raise NotDrawableError("a deviation of 0")
    return b.emit("MeanVarianceNormalization", [x], axes=axes)


def lp_normalization(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    if x.array.size and float(np.abs(x.array).sum(axis=axis).min()) < 0.05:
        raise NotDrawableError("a length of 0")
    return b.emit(
        "LpNormalization", [x], p=b.maybe(b.draw.choice([1, 2])), axis=b.maybe(axis) if axis == -1 else axis
    )


ENTRIES = {
    ("", "BatchNormalization"): batch_norm,
    ("", "GroupNormalization"): group_norm,
    ("", "InstanceNormalization"): instance_norm,
    ("", "LRN"): lrn,
    ("", "LayerNormalization"): layer_norm,
    ("", "LpNormalization"): lp_normalization,
    ("", "MeanVarianceNormalization"): mean_variance_normalization,
    ("", "RMSNormalization"): rms_norm,
    ("bngrad", "BatchNormalizationTraining"): batch_norm_of_ours,
    ("com.microsoft", "BatchNormInternal"): batch_norm_training,
}
