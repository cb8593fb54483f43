"""The operands of the gradients of one convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.graph.node_reader import static_shape

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Windows


@dataclass(frozen=True)
class ConvolutionOperands:
    """A convolution, seen as windows over some data: those of Conv's X, or of ConvTranspose's Y."""

    site: Site
    windows: Windows
    x: ir.Value
    """The data [N, C, ...], or its gradient."""
    y: ir.Value
    """The tensor with an element for each window [N, M, ...], or its gradient."""
    w: ir.Value
    """The weights [M, C / group, *kernel]."""
    group: int

    @property
    def known_shape(self) -> bool:
        """True if the shape of the weights is known."""
        return static_shape(self.w) is not None

    @property
    def m(self) -> int:
        """The channels of y, if the shape of the weights is known."""
        return self._shape[0]

    @property
    def c(self) -> int:
        """The channels of x in one group, if the shape of the weights is known."""
        return self._shape[1]

    @property
    def kernel(self) -> list[int]:
        """The kernel's shape, if the shape of the weights is known."""
        return list(self._shape[2:])

    @property
    def depthwise(self) -> bool:
        """True if each channel of x has weights of its own; only if the shape of the weights is known."""
        return self.c == 1 < self.group

    @property
    def _shape(self) -> tuple[int, ...]:
        shape = static_shape(self.w)
        assert shape is not None, "the caller checked `known_shape`"  # noqa: S101
        return shape
