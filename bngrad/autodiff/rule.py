"""What a gradient rule is: a function from the gradients of a node's outputs to those of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward

    Gradients: TypeAlias = Sequence[ir.Value | None]
    """The gradient with respect to each input; None where it is zero, or nobody asks for it."""


@dataclass(frozen=True)
class Rule:
    """A gradient rule of an op.

    A float input that is neither in ``inputs`` nor in ``zero`` must be a constant: a node where it depends on what
    the loss is differentiated with respect to is refused.
    """

    gradients: Callable[[Backward], Gradients]
    """Makes the gradient nodes of one forward node."""
    inputs: tuple[int, ...] | None = (0,)
    """The inputs that the rule gives a gradient; None: all of them, however many there are."""
    zero: tuple[int, ...] = ()
    """Other inputs that may be floats, with a gradient of zero: the output is constant in them, or jumps."""
    versions: tuple[int, ...] = (1,)
    """The versions of the op's schema that the rule was written for; any other is refused."""
    attributes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    """The attributes that it was written for, as `attribute_refusal` takes them; any other is refused."""

    def differentiates(self, index: int) -> bool:
        """Whether the rule gives an input a gradient."""
        return self.inputs is None or index in self.inputs
