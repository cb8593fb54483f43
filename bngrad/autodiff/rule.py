"""What a gradient rule is: a function from the gradients of a node's outputs to those of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward

    Gradients: TypeAlias = Sequence[ir.Value | None]
    """The gradient of each input; shorter than the inputs, or None, where there is none."""


class NoGradientError(Exception):
    """A rule does not cover a node; the text says what it has and what was expected."""


@dataclass(frozen=True)
class Rule:
    """A gradient rule of an op."""

    gradients: Callable[[Backward], Gradients]
    """Makes the gradient nodes of one forward node."""
    inputs: tuple[int, ...] | None = None
    """The inputs that a gradient goes to; None: all of them. The others are stop edges."""

    def differentiates(self, index: int) -> bool:
        """Whether a gradient goes to an input."""
        return self.inputs is None or index in self.inputs
