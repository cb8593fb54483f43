"""DeformConv."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def deform_conv(b: Sketch) -> list[Value]:
    if b.opset < 19:
        raise NotDrawableError("DeformConv")
    group, offset_group = b.draw.choice([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)])
    channels = 2 if max(group, offset_group) > 1 else b.draw.randint(1, 2)
    kernel = [b.draw.randint(1, 2), b.draw.randint(1, 2)]
    strides, dilations = ([b.draw.choice([1, 1, 2]) for _ in range(2)] for _ in range(2))
    pads = [b.draw.randint(0, 1) for _ in range(4)]
    out = [b.draw.randint(1, 2) for _ in range(2)]
    spatial = [
        (n - 1) * s + (k - 1) * d + 1 - pads[axis] - pads[axis + 2] + b.draw.randint(0, s - 1)
        for axis, (n, s, k, d) in enumerate(zip(out, strides, kernel, dilations, strict=True))
    ]
    if min(spatial) < 1:
        raise NotDrawableError("nothing is left")
    n, count = b.dim(1, 2), offset_group * kernel[0] * kernel[1]
    x = b.of_shape((n, channels, *spatial), computed=0.3)
    outputs = group * b.draw.randint(1, 2)
    w = b.of_shape((outputs, channels // group, *kernel), computed=0.3)
    # Away from where two elements meet: there the op has a kink.
    offset = b.one("Mul", b.one("Tanh", b.of_shape((n, 2 * count, *out))), b.scalar(0.4))
    offset = b.one("Add", offset, b.scalar(b.draw.choice([-1.5, -0.5, 0.5])))
    bias = b.of_shape((outputs,)) if b.draw.chance(0.5) else None
    mask = b.of_shape((n, count, *out)) if b.draw.chance(0.5) else None
    return b.emit(
        "DeformConv",
        [x, w, offset, bias, mask],
        group=group if group > 1 else b.maybe(1),
        offset_group=offset_group if offset_group > 1 else b.maybe(1),
        kernel_shape=b.maybe(kernel),
        strides=strides if max(strides) > 1 else b.maybe(strides),
        dilations=dilations if max(dilations) > 1 else b.maybe(dilations),
        pads=pads if any(pads) else b.maybe(pads),
    )


ENTRIES = {("", "DeformConv"): deform_conv}
