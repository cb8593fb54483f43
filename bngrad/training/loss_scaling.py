"""Dynamic loss scaling: small gradients would be 0 in float16, so the loss is multiplied by a scale.

As `torch.amp.GradScaler`, in the graph and with its state. Where gradients are not finite, everything
else stays as it is in this call::

    scale, growth_tracker, skipped = scale / 2, 0, skipped + 1                              not finite
    scale, growth_tracker = 2 scale, 0                            finite, the growth_interval-th in a row
    growth_tracker = growth_tracker + 1                           finite
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.arguments import is_count, require_number
from bngrad.errors import InputError
from bngrad.training.all_finite import as_condition
from bngrad.training.gradient_sums import widest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.node_makers import NodesAtEnd
    from bngrad.training.options import UpdateOptions

LARGEST = 2.0**126
"""The largest scale: its reciprocal is a normal float32."""
SMALLEST = 2.0**-24
"""The scale below which gradients are taken to be infinite at any scale."""

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class LossScaling:
    """The hyperparameters of loss scaling.

    Args:
        init_scale: The first scale; None for 65536, PyTorch's.
        growth_interval: The number of calls with finite gradients, one after the other, after which the scale is
            doubled; None for 2000, PyTorch's.

    Raises:
        InputError: One is out of range.
    """

    init_scale: float
    growth_interval: int

    @classmethod
    def of(cls, options: UpdateOptions) -> LossScaling | None:
        """Returns the hyperparameters in the options of a step; None if gradients are not scaled.

        Raises:
            InputError: One is out of range, or is given although gradients are not scaled.
        """
        chosen = {"init_scale": options.init_scale, "growth_interval": options.growth_interval}
        if options.precision != "mixed":
            for name, value in chosen.items():
                if value is not None:
                    raise InputError(
                        f"{name} is {value!r}, but the precision is {options.precision}, which has no loss "
                        "scale; expected it with precision mixed"
                    )
            return None
        scale, interval = options.init_scale, options.growth_interval
        scale = 65536.0 if scale is None else require_number("init_scale", scale)
        if not SMALLEST <= scale <= LARGEST:
            raise InputError(f"init_scale is {scale}; expected a number from 2^-24 to 2^126, such as 65536")
        interval = 2000 if interval is None else interval
        if not is_count(interval, 1):
            raise InputError(f"growth_interval is {interval!r}; expected a number of calls (int), at least 1")
        return cls(scale, interval)


def inverse_scale(make: NodesAtEnd, scale: ir.Value, gradients: Sequence[ir.Value]) -> ir.Value:
    """Returns the reciprocal of the scale, double if any gradient is."""
    return make.typed("Reciprocal", make.cast(scale, widest(gradients)))


def next_state(
    make: NodesAtEnd, state: Sequence[ir.Value], is_finite: ir.Value, growth_interval: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Returns the next scale, growth tracker and number of skipped calls.

    Args:
        make: Makes nodes.
        state: The present ones.
        is_finite: Whether the gradients of this call are finite.
        growth_interval: See `LossScaling`.
    """
    scale, tracker, skipped = state
    zero, unit = make.int64(0), make.int64(1)
    counted = make.typed("Add", tracker, unit)
    grows = as_condition(make.op("Equal", counted, make.int64(growth_interval)))
    doubled = make.typed("Min", make.typed("Mul", scale, make.constant(2, _FLOAT)), make.constant(LARGEST, _FLOAT))
    halved = make.typed("Mul", scale, make.constant(0.5, _FLOAT))
    return (
        make.where(is_finite, make.where(grows, doubled, scale), halved),
        make.where(is_finite, make.where(grows, zero, counted), zero),
        make.where(is_finite, skipped, make.typed("Add", skipped, unit)),
    )
