"""Conv and ConvTranspose of one to three spatial dimensions."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from torch.nn import functional

from bngrad.graph.window_axes import split_padding, window_axes
from bngrad.torch.autograd.table import UnsupportedFormError, op
from bngrad.torch.autograd.windows import padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_CONV_TRANSPOSE = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


@op("Conv")
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """The convolution of the padded data."""
    rank = _rank(x)
    kernel = kernel_shape or w.shape[2:]
    along = window_axes(x.shape[2:], kernel, auto_pad=auto_pad, dilations=dilations, pads=pads, strides=strides)
    stride, dilation = [axis.stride for axis in along], [axis.dilation for axis in along]
    return _CONV[rank](padded(x, along, 0.0), w, b, stride, 0, dilation, group)


@op("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,  # noqa: ARG001 - that of w
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """The transposed convolution without pads, of which the pads are cut off."""
    rank = _rank(x)
    stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
    added = list(output_padding or [0] * rank)
    whole = _CONV_TRANSPOSE[rank](x, w, None, stride, 0, 0, group, dilation)
    sizes = [size + more for size, more in zip(whole.shape[2:], added, strict=True)]
    if output_shape is not None or auto_pad.startswith("SAME"):
        same = [size * step for size, step in zip(x.shape[2:], stride, strict=True)]
        targets = same if output_shape is None else output_shape[-rank:]
        begin, end = [], []
        for size, target in zip(sizes, targets, strict=True):
            first, _ = split_padding(size - target, upper=auto_pad == "SAME_UPPER")
            begin.append(first)
            end.append(size - target - first)
    else:
        padding = list(pads or []) if auto_pad in ("NOTSET", "") else []
        begin, end = padding[:rank] or [0] * rank, padding[rank:] or [0] * rank
    cut = [(-begin[axis], added[axis] - end[axis]) for axis in reversed(range(rank))]
    y = functional.pad(whole, list(chain.from_iterable(cut)))
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def _rank(x: Tensor) -> int:
    rank: int = x.ndim - 2
    if rank not in _CONV:
        raise UnsupportedFormError(f"it has {rank} spatial dimensions, and PyTorch's convolutions have 1 to 3")
    return rank
