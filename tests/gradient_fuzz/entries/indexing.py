"""Ops that pick elements by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value

FAR = 2**63 - 1


def positions(b: Sketch, size: int, shape: tuple[int, ...], *, element: int = onnx.TensorProto.INT64) -> Value:
    """Indices along a dimension, some counted from its end."""
    if size == 0 and int(np.prod(shape)):
        raise NotDrawableError("nothing to pick from")
    low = -size if b.draw.chance(0.4) else 0
    return b.constant(b.rng.integers(low, max(size, low + 1), shape), element)


def gather(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    shape = b.dims(b.draw.randint(0, 2))
    element = b.draw.choice([onnx.TensorProto.INT64, onnx.TensorProto.INT32])
    indices = positions(b, x.shape[axis], shape, element=element)
    return b.emit("Gather", [x, indices], axis=b.maybe(axis) if axis == 0 else axis)


def gather_elements(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    shape = [b.draw.randint(min(1, size), size) for size in x.shape]
    shape[axis] = b.dim(1, 4)
    return b.emit(
        "GatherElements", [x, positions(b, x.shape[axis], tuple(shape))], axis=b.maybe(axis) if axis == 0 else axis
    )


def points(b: Sketch, shape: tuple[int, ...], batch: tuple[int, ...], *, distinct: bool = False) -> np.ndarray:
    """Indices of a number of the dimensions of a shape, each once where they are distinct."""
    count = b.draw.randint(1, len(shape))
    within = shape[:count]
    if 0 in within:
        raise NotDrawableError("nothing to pick from")
    lead = (*batch, b.dim(1, 4))
    number = int(np.prod(lead))
    most = int(np.prod(within))
    if distinct:
        number = min(number, most)
        lead = (number,)
        flat = b.rng.permutation(most)[:number]
    else:
        flat = b.rng.integers(0, most, number)
    indices = np.stack(np.unravel_index(flat, within), axis=-1)
    if b.draw.chance(0.3):
        indices = indices - np.asarray(within)
    return indices.reshape(*lead, count)


def gather_nd(b: Sketch) -> list[Value]:
    x = b.any(1)
    batch_dims = b.draw.choice([0, 0, 1]) if x.rank > 1 and b.opset >= 12 else 0
    indices = points(b, x.shape[batch_dims:], x.shape[:batch_dims])
    return b.emit("GatherND", [x, b.constant(indices)], batch_dims=batch_dims or None)


def scatter_elements(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    at = axis % x.rank
    reduction = drawn_reduction(b)
    shape = [b.draw.randint(min(1, size), size) for size in x.shape]
    if reduction not in (None, "none") and x.shape[at]:
        shape[at] = b.draw.randint(1, 3)
        indices = b.rng.integers(-x.shape[at], x.shape[at], shape)
    else:
        # Of several updates at one place, ONNX does not define which one stays.
        lines = np.moveaxis(np.zeros(shape, np.int64), at, -1)
        for place in np.ndindex(lines.shape[:-1]):
            lines[place] = b.rng.permutation(x.shape[at])[: shape[at]]
        indices = np.moveaxis(lines, -1, at)
        if b.draw.chance(0.3):
            indices = indices - x.shape[at]
    updates = b.of_shape(shape)
    return b.emit(
        "ScatterElements",
        [x, b.constant(indices), updates],
        axis=b.maybe(axis) if axis == 0 else axis,
        reduction=reduction,
    )


def scatter_nd(b: Sketch) -> list[Value]:
    x = b.any(1)
    reduction = drawn_reduction(b)
    indices = points(b, x.shape, (), distinct=reduction in (None, "none"))
    shape = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    return b.emit("ScatterND", [x, b.constant(indices), b.of_shape(shape)], reduction=reduction)


def tensor_scatter(b: Sketch) -> list[Value]:
    x = b.any(2)
    axis = b.draw.randrange(1, x.rank)
    length = b.draw.randint(min(1, x.shape[axis]), x.shape[axis])
    circular = b.draw.chance(0.5)
    most = x.shape[axis] if circular else x.shape[axis] - length + 1
    begin = b.constant(b.rng.integers(0, max(most, 1), x.shape[0])) if b.draw.chance(0.8) else None
    update = b.of_shape((*x.shape[:axis], length, *x.shape[axis + 1 :]))
    counted = axis - x.rank if b.draw.chance(0.5) else axis
    return b.emit(
        "TensorScatter",
        [x, update, begin],
        axis=b.maybe(counted) if counted == -2 else counted,
        mode="circular" if circular else b.maybe("linear"),
    )


def drawn_reduction(b: Sketch) -> str | None:
    reductions = ["none"]
    if b.opset >= 16 and b.element in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        reductions += ["add", "add", "mul"]
    if b.opset >= 18 and len(reductions) > 1:
        reductions += ["max", "min"]
    return b.maybe(b.draw.choice(reductions), 0.7) if b.opset >= 16 else None


def slice_(b: Sketch) -> list[Value]:
    x = b.any(1)
    axes = b.draw.sample(range(x.rank), b.draw.randint(1, x.rank))
    without = b.draw.chance(0.2)
    if without:
        axes = list(range(len(axes)))
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        step = b.draw.choice([1, 1, 2, -1, -2, 3])
        if b.draw.chance(0.15):
            begin, end = (0, FAR) if step > 0 else (-1, -FAR - 1)
        else:
            begin, end = b.draw.randint(-size - 1, size + 1), b.draw.randint(-size - 1, size + 1)
        starts.append(begin)
        ends.append(end)
        steps.append(step)
    one_step = b.draw.chance(0.3)
    axes_in = None if without else b.ints(*(a - x.rank if b.draw.chance(0.3) else a for a in axes))
    if one_step:
        pairs = [(min(s, e), max(s, e)) for s, e in zip(starts, ends, strict=True)]
        starts, ends = [p[0] for p in pairs], [p[1] for p in pairs]
    steps_in = None if one_step else b.shape_of(steps)
    outputs = b.emit("Slice", [x, b.shape_of(starts), b.shape_of(ends), axes_in, steps_in])
    if outputs[0].array.size == 0 and not b.empty:
        raise NotDrawableError("an empty slice")
    return outputs


def top_k(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    # Without sorted, the order is that of the runtime.
    return b.emit(
        "TopK",
        [x, b.ints(b.draw.randint(0 if b.empty else 1, max(x.shape[axis], 1)))],
        2,
        axis=b.maybe(axis) if axis == -1 else axis,
        largest=b.maybe(b.draw.choice([0, 1])),
        sorted=b.maybe(1),
    )[:1]


def compress(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.maybe(b.axis(x.rank))
    size = x.array.size if axis is None else x.shape[axis]
    condition = b.rng.random(b.draw.randint(min(1, size), size)) < 0.6
    if not condition.any() and not b.empty:
        raise NotDrawableError("nothing is kept")
    return b.emit("Compress", [x, b.constant(condition, onnx.TensorProto.BOOL)], axis=axis)


def unique(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.maybe(b.axis(x.rank))
    # onnx's reference fails without sorted and axis where X is no vector.
    is_sorted = b.draw.choice([0, 1]) if axis is not None or x.rank == 1 else 1
    outputs = b.emit("Unique", [x], b.draw.choice([1, 2, 4]), axis=axis, sorted=b.maybe(1) if is_sorted else 0)
    if outputs[0].array.size != x.array.size:
        raise NotDrawableError("of equal elements, the number of results changes with each")
    return outputs[:1]


def cum_sum(b: Sketch) -> list[Value]:
    x = b.any(1)
    element = b.draw.choice([onnx.TensorProto.INT64, onnx.TensorProto.INT32])
    axis = b.constant(np.asarray(b.axis(x.rank)), element)
    return b.emit(
        "CumSum", [x, axis], exclusive=b.maybe(b.draw.choice([0, 1])), reverse=b.maybe(b.draw.choice([0, 1]))
    )


def reverse_sequence(b: Sketch) -> list[Value]:
    x = b.any(2)
    batch = b.draw.choice([0, 1])
    lengths = b.rng.integers(1, max(x.shape[1 - batch], 1) + 1, (x.shape[batch],))
    explicit = batch == 0 or b.draw.chance(0.5)
    return b.emit(
        "ReverseSequence",
        [x, b.constant(lengths)],
        batch_axis=batch if explicit else None,
        time_axis=1 - batch if explicit else None,
    )


def trilu(b: Sketch) -> list[Value]:
    x = b.any(2)
    k = b.maybe(b.constant(np.asarray(b.draw.randint(-2, 2))), 0.7)
    return b.emit("Trilu", [x, k], upper=b.maybe(b.draw.choice([0, 1])))


def one_hot(b: Sketch) -> list[Value]:
    depth = b.dim(1, 4)
    shape = b.dims(b.draw.randint(0, 2))
    indices = b.constant(
        b.rng.integers(-depth, depth + 1, shape), b.draw.choice([onnx.TensorProto.INT64, b.element])
    )
    count = b.constant(np.asarray(depth if b.draw.chance(0.5) else [depth], np.int64))
    axis = b.maybe(b.draw.randint(-len(shape) - 1, len(shape)))
    return b.emit("OneHot", [indices, count, b.of_shape((2,))], axis=axis)


ENTRIES = {
    ("", "Compress"): compress,
    ("", "CumSum"): cum_sum,
    ("", "Gather"): gather,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "OneHot"): one_hot,
    ("", "ReverseSequence"): reverse_sequence,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
    ("", "Slice"): slice_,
    ("", "TensorScatter"): tensor_scatter,
    ("", "TopK"): top_k,
    ("", "Trilu"): trilu,
    ("", "Unique"): unique,
}
