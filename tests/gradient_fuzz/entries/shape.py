"""Ops that only move or copy elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def concat(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    pieces = [x]
    for _ in range(b.draw.choice([0, 1, 1, 2])):
        shape = list(x.shape)
        shape[axis] = b.dim(1, 3)
        pieces.append(x if b.draw.chance(0.2) else b.of_shape(shape))
    b.draw.shuffle(pieces)
    return b.emit("Concat", pieces, axis=axis)


def split(b: Sketch) -> list[Value]:
    x = b.any(1)
    axis = b.axis(x.rank)
    size = x.shape[axis]
    parts = b.draw.randint(1, 3)
    outputs = [b.draw.chance(0.75) for _ in range(parts)]
    if not any(outputs):
        outputs[-1] = True
    axis_attribute = b.maybe(axis, 0.5) if axis in (0, -x.rank) else axis
    if b.draw.chance(0.5) or b.opset < 13:
        cuts = sorted(b.draw.randint(0, size) for _ in range(parts - 1))
        lengths = [end - begin for begin, end in zip([0, *cuts], [*cuts, size], strict=True)]
        if b.opset < 13:
            return b.emit("Split", [x], outputs, axis=axis_attribute, split=lengths)
        return b.emit("Split", [x, b.shape_of(lengths)], outputs, axis=axis_attribute)
    if b.opset >= 18:
        if (parts - 1) * -(-size // parts) > size:
            raise NotDrawableError("more parts than elements")
        return b.emit("Split", [x], outputs, axis=axis_attribute, num_outputs=parts)
    if size % parts:
        raise NotDrawableError("no equal parts")
    return b.emit("Split", [x], outputs, axis=axis_attribute)


def reshape(b: Sketch) -> list[Value]:
    x = b.any(0)
    total = x.array.size
    sizes: list[int] = []
    rest = total
    for _ in range(b.draw.randint(0, 3)):
        factors = [f for f in range(1, rest + 1) if rest and rest % f == 0] or [0]
        sizes.append(b.draw.choice(factors))
        rest = rest // sizes[-1] if sizes[-1] else 0
    sizes.append(rest)
    if total == 0:
        sizes = list(x.shape[::-1])
    numbers, allowzero = list(sizes), None
    if total and b.draw.chance(0.4):
        numbers[b.draw.randrange(len(numbers))] = -1
    if total and b.draw.chance(0.3):
        same = [axis < x.rank and x.shape[axis] == size for axis, size in enumerate(sizes)]
        numbers = [0 if keep and n != -1 else n for keep, n in zip(same, numbers, strict=True)]
    if 0 in sizes:
        if b.opset < 14:
            raise NotDrawableError("a size of 0")
        allowzero = 1
    elif b.opset >= 14 and 0 not in numbers:
        allowzero = b.maybe(b.draw.choice([0, 1]), 0.3)
    return b.emit("Reshape", [x, b.shape_of(numbers)], allowzero=allowzero)


def flatten(b: Sketch) -> list[Value]:
    x = b.any(0)
    axis = b.draw.randint(-x.rank, x.rank)
    return b.emit("Flatten", [x], axis=axis if axis != 1 else b.maybe(1) if x.rank >= 1 else 0)


def squeeze(b: Sketch) -> list[Value]:
    x = b.any(1, 3)
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if not ones:
        x = (
            b.leaf((*x.shape[:1], 1, *x.shape[1:]))
            if x.rank < 4 and b.draw.chance(0.5)
            else unsqueezed(b, x, [0, 2])
        )
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if b.draw.chance(0.25):
        return b.emit("Squeeze", [x])
    chosen = [axis for axis in ones if b.draw.chance(0.7)] or ones[:1]
    axes = [axis - x.rank if b.draw.chance(0.4) else axis for axis in chosen]
    b.draw.shuffle(axes)
    return b.emit("Squeeze", [x], axes=axes) if b.opset < 13 else b.emit("Squeeze", [x, b.shape_of(axes)])


def unsqueezed(b: Sketch, x: Value, axes: list[int]) -> Value:
    return b.one("Unsqueeze", x, axes=axes) if b.opset < 13 else b.one("Unsqueeze", x, b.shape_of(axes))


def unsqueeze(b: Sketch) -> list[Value]:
    x = b.any(0, 3)
    count = b.draw.randint(1, 2)
    rank = x.rank + count
    axes = [axis - rank if b.draw.chance(0.4) else axis for axis in b.draw.sample(range(rank), count)]
    return [unsqueezed(b, x, axes)]


def transpose(b: Sketch) -> list[Value]:
    x = b.any(0)
    perm = b.draw.sample(range(x.rank), x.rank)
    return b.emit("Transpose", [x], perm=perm if b.draw.chance(0.8) and perm else None)


def expand(b: Sketch) -> list[Value]:
    x = b.any(0)
    sizes = [size if size != 1 or b.draw.chance(0.4) else b.dim(1, 3) for size in x.shape]
    numbers = [1 if b.draw.chance(0.3) else size for size in sizes]
    if b.draw.chance(0.4):
        numbers = [b.dim(1, 3), *numbers]
    elif numbers and b.draw.chance(0.2):
        numbers = numbers[1:]
    return b.emit("Expand", [x, b.shape_of(numbers)])


def tile(b: Sketch) -> list[Value]:
    x = b.any(1)
    repeats = [b.draw.choice([1, 1, 2, 3, 0] if b.empty else [1, 1, 2, 3]) for _ in x.shape]
    return b.emit("Tile", [x, b.shape_of(repeats)])


def depth_to_space(b: Sketch) -> list[Value]:
    block = b.draw.randint(1, 3)
    x = b.of_shape((b.dim(1, 2), block * block * b.draw.randint(1, 2), b.dim(1, 2), b.dim(1, 3)), computed=0.3)
    return b.emit("DepthToSpace", [x], blocksize=block, mode=b.maybe(b.draw.choice(["DCR", "CRD"]), 0.7))


def space_to_depth(b: Sketch) -> list[Value]:
    block = b.draw.randint(1, 3)
    x = b.of_shape((b.dim(1, 2), b.draw.randint(1, 3), block * b.dim(1, 2), block * b.dim(1, 2)), computed=0.3)
    mode = b.maybe(b.draw.choice(["DCR", "CRD"])) if b.opset >= 28 else None
    return b.emit("SpaceToDepth", [x], blocksize=block, mode=mode)


def pad(b: Sketch) -> list[Value]:
    x = b.any(1)
    modes = ["constant", "constant", "edge", "reflect", *(["wrap"] if b.opset >= 19 else [])]
    mode = b.draw.choice(modes)
    axes = None
    if b.opset >= 18 and b.draw.chance(0.4):
        axes = b.draw.sample(range(x.rank), b.draw.randint(1, x.rank))
    chosen = axes if axes is not None else list(range(x.rank))
    ends = []
    for _ in range(2):
        for axis in chosen:
            most = 2 if mode == "constant" else max(0, min(2, x.shape[axis] - (mode == "reflect")))
            negative = mode == "constant" and x.shape[axis] > 2
            ends.append(b.draw.choice([0, b.draw.randint(0, most), -1 if negative else 0]))
    value = None
    if mode == "constant" and b.draw.chance(0.6):
        value = b.scalar(b.draw.choice([0.0, 0.5])) if b.draw.chance(0.4) else b.of_shape(())
    written = None if axes is None else b.ints(*(a - x.rank if b.draw.chance(0.3) else a for a in axes))
    return b.emit("Pad", [x, b.shape_of(ends), value, written], mode=b.maybe(mode) if mode == "constant" else mode)


ENTRIES = {
    ("", "Concat"): concat,
    ("", "DepthToSpace"): depth_to_space,
    ("", "Expand"): expand,
    ("", "Flatten"): flatten,
    ("", "Pad"): pad,
    ("", "Reshape"): reshape,
    ("", "SpaceToDepth"): space_to_depth,
    ("", "Split"): split,
    ("", "Squeeze"): squeeze,
    ("", "Tile"): tile,
    ("", "Transpose"): transpose,
    ("", "Unsqueeze"): unsqueeze,
}
