"""DFT and STFT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def _number(b: Sketch, number: int) -> Value:
    element = b.draw.choice([onnx.TensorProto.INT32, onnx.TensorProto.INT64])
    return b.constant(np.asarray(number), element)


def dft(b: Sketch) -> list[Value]:
    if b.opset < 17:
        raise NotDrawableError("DFT")
    inverse, onesided = b.draw.choice([(0, 0), (0, 0), (1, 0), (0, 1), (0, 1), (1, 1)])
    parts = {(0, 1): 1, (1, 1): 2}.get((inverse, onesided), b.draw.randint(1, 2))
    rank = b.draw.randint(2, 4)
    axis = b.draw.randint(0, rank - 2)
    sizes = [b.dim(1, 3) for _ in range(rank - 1)]
    sizes[axis] = b.draw.randint(2, 6)
    x = b.of_shape((*sizes, parts), computed=0.5)
    length = None
    if b.draw.chance(0.5):
        numbers = 2 * sizes[axis] - b.draw.choice([1, 2]) if inverse and onesided else b.draw.randint(1, 8)
        length = _number(b, numbers)
    named = axis - rank if b.draw.chance(0.3) else axis
    flags = {
        "inverse": inverse or b.maybe(0),
        "onesided": onesided or b.maybe(0),
    }
    if b.opset < 20:
        return b.emit("DFT", [x, length], axis=None if named == 1 and b.draw.chance(0.5) else named, **flags)
    by_default = axis == rank - 2 and b.draw.chance(0.5)
    return b.emit("DFT", [x, length, None if by_default else b.constant(np.asarray(named))], **flags)


def stft(b: Sketch) -> list[Value]:
    if b.opset < 17:
        raise NotDrawableError("STFT")
    frame = b.draw.randint(2, 5)
    onesided = b.draw.choice([None, 0, 1])
    parts = b.draw.randint(1, 2) if onesided == 0 else 1
    x = b.of_shape((b.dim(1, 2), frame + b.draw.randint(0, 5), parts), computed=0.5)
    window = b.of_shape((frame,)) if b.draw.chance(0.6) else None
    length = _number(b, frame) if window is None or b.draw.chance(0.3) else None
    step = b.constant(np.asarray(b.draw.randint(1, 3)), length.type if length else onnx.TensorProto.INT64)
    return b.emit("STFT", [x, step, window, length], onesided=onesided)


ENTRIES = {("", "DFT"): dft, ("", "STFT"): stft}
