"""The positions of a node's windows, from its attributes and the shapes that are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import raise_refusals
from bngrad.graph.window_axes import split_padding, window_count
from bngrad.passes.lower.shapes import spatial_sizes
from bngrad.passes.lower.windows import Axis, Windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Known


def windows_of(site: Site, x: ir.Value | None, y: ir.Value | None, kernel: Sequence[Known]) -> Windows:
    """The windows of a Conv or a pool.

    Args:
        site: A node with the op's attributes.
        x: The data; None if it is unknown.
        y: The tensor with an element for each window.
        kernel: The size of the kernel in each dimension.
    """
    rank = len(kernel)
    same, upper = _auto_pad(site)
    ceil = bool(site.attribute("ceil_mode", 0))
    strides, dilations = _ints(site, "strides", rank), _ints(site, "dilations", rank)
    dimensions = zip(_sizes(x, rank), _sizes(y, rank), kernel, strides, dilations, strict=True)
    axes: list[Axis] = []
    for (size, out, kernel_size, stride, dilation), (before, after) in zip(
        dimensions, declared_pads(site, rank), strict=True
    ):
        length = None if kernel_size is None else (kernel_size - 1) * dilation + 1
        number: Known
        if same:
            number = out if size is None else -(-size // stride)
            surplus = _surplus(size, number, length, stride)
            if stride == 1 and length is not None:
                surplus = length - 1  # as many windows as elements, even if the number is unknown
            begin = None if surplus is None else split_padding(surplus, upper=upper)[0]
        else:
            number = out
            if size is not None and length is not None:
                # Not y's: below opset 22 onnx counts one too many where ceil_mode's last window would be empty.
                number = window_count(size, length, stride, before, after, ceil=ceil)
                # ceil_mode may have one more, for an empty window.
                if out is not None and out != number and not (ceil and out == number + 1):
                    has = f"it has {number} windows along dimension {len(axes) + 2}, and a gradient for {out}"
                    raise_refusals([(site.node, f"{has}; expected as many")])
            surplus = before + after if stride == 1 else _surplus(size, number, length, stride)
            begin = before
        end = None if surplus is None or begin is None else surplus - begin
        at_most = after if end is None and not same and not ceil else end
        axes.append(Axis(size, number, kernel_size, stride, dilation, begin, end, at_most))
    return Windows(tuple(axes), same, upper)


def transposed_windows_of(site: Site, x: ir.Value | None, y: ir.Value | None, kernel: Sequence[Known]) -> Windows:
    """The windows that a ConvTranspose has over its output.

    Args:
        site: A node with the op's attributes.
        x: The output.
        y: The input, which has an element for each window.
        kernel: The size of the kernel in each dimension.
    """
    rank = len(kernel)
    same, upper = _auto_pad(site)
    shape = list(site.attribute("output_shape", ()))[-rank:]
    if shape and len(shape) != rank:
        raise_refusals([(site.node, f"its output_shape is {shape}; expected {rank} numbers")])
    strides, dilations = _ints(site, "strides", rank), _ints(site, "dilations", rank)
    padding = _ints(site, "output_padding", rank, default=0)
    dimensions = zip(shape or _sizes(x, rank), _sizes(y, rank), kernel, strides, dilations, strict=True)
    axes: list[Axis] = []
    for (size, out, kernel_size, stride, dilation), (before, after), added in zip(
        dimensions, declared_pads(site, rank), padding, strict=True
    ):
        length = None if kernel_size is None else (kernel_size - 1) * dilation + 1
        begin: Known = before
        surplus: Known = before + after - added
        if shape or same:
            surplus = _surplus(size, out, length, stride)
            if not shape and length is not None:
                surplus = max(length + added - stride, 0) - added  # a stride of elements for each of the input
            begin = None if surplus is None else split_padding(surplus + added, upper=upper)[0]
        elif (
            size is not None
            and out is not None
            and length is not None
            and (spanned := (out - 1) * stride + length - before - after + added) != size
        ):
            has = (
                f"its windows span {spanned} elements along dimension {len(axes) + 2}, and its gradient has {size}"
            )
            raise_refusals([(site.node, f"{has}; expected as many")])
        end = None if surplus is None or begin is None else surplus - begin
        axes.append(Axis(size, out, kernel_size, stride, dilation, begin, end, end, added))
    return Windows(tuple(axes), same or bool(shape), upper)


def declared_pads(site: Site, rank: int) -> list[tuple[int, int]]:
    """The attribute pads, (begin, end) for each dimension; zeros where auto_pad replaces it."""
    declared = _numbers(site, "pads", 2 * rank, 0)
    if site.attribute("auto_pad", "NOTSET") not in ("NOTSET", ""):
        declared = [0] * (2 * rank)
    return list(zip(declared[:rank], declared[rank:], strict=True))


def _sizes(value: ir.Value | None, rank: int) -> tuple[Known, ...]:
    """The spatial dimensions as far as they are known, if there is one for each dimension of the kernel."""
    if value is not None and value.shape is not None and len(value.shape) != rank + 2:
        raise UnsupportedNodeError(
            f"the tensor {value.name!r} of a gradient has {len(value.shape)} dimensions; expected {rank + 2}: "
            "batch, channels, and one for each of the kernel's"
        )
    return spatial_sizes(value, rank)


def _surplus(size: Known, out: Known, length: Known, stride: int) -> Known:
    """The number of positions by which the span exceeds the data."""
    if size is None or out is None or length is None:
        return None
    return (out - 1) * stride + length - size


def _auto_pad(site: Site) -> tuple[bool, bool]:
    """Tests whether padding is spread over both ends, and whether the odd element goes to the second."""
    mode = site.attribute("auto_pad", "NOTSET")
    return mode in ("SAME_UPPER", "SAME_LOWER"), mode == "SAME_UPPER"


def _ints(site: Site, name: str, rank: int, default: int = 1) -> list[int]:
    return _numbers(site, name, rank, default, least=default)


def _numbers(site: Site, name: str, count: int, default: int, least: int | None = None) -> list[int]:
    """An attribute with a number for each dimension, or for each of their ends; the default if it is empty."""
    numbers = list(site.attribute(name, ())) or [default] * count
    if len(numbers) != count or (least is not None and min(numbers, default=least) < least):
        limit = "" if least is None else f" of at least {least}"
        raise_refusals([(site.node, f"its {name} are {numbers}; expected {count} numbers{limit}")])
    return numbers
