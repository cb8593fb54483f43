"""Averages of weights and running statistics in the state of a step: exponential (EMA), or equal (SWA).

After an update ``average = average + share (new - average)``, with the share

===  =========================================================================
EMA  1 in the first update, then 1 - decay
SWA  1 up to update ``swa``, then 1 / n in the n-th update that is averaged
===  =========================================================================

as `torch.optim.swa_utils.AveragedModel` with buffers. What SWA leaves out does not change the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.arguments import is_count, require_number
from bngrad.errors import InputError

if TYPE_CHECKING:
    from bngrad.graph.node_makers import NodesAtEnd
    from bngrad.training.options import UpdateOptions

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


@dataclass(frozen=True)
class WeightAverages:
    """The hyperparameters of the averages, of which a step has one kind.

    Args:
        ema: The decay of moving averages; None for equal averages.
        swa: The first update that is averaged; None for moving averages.
        swa_every: The number of updates from one that is averaged to the next; None for moving averages.
    """

    ema: float | None = None
    swa: int | None = None
    swa_every: int | None = None

    @classmethod
    def of(cls, options: UpdateOptions) -> WeightAverages | None:
        """Returns the hyperparameters in the options of a step; None for no averages.

        Raises:
            InputError: One is out of range, or they contradict each other.
        """
        ema, swa, every = options.ema, options.swa, options.swa_every
        if ema is not None and not 0 < require_number("ema", ema) < 1:
            raise InputError(
                f"ema is {ema}; expected a decay between 0 and 1, such as 0.999, or None for no averages"
            )
        for name, number in (("swa", swa), ("swa_every", every)):
            if number is not None and not is_count(number, 1):
                raise InputError(f"{name} is {number!r}; expected a number of updates (int), at least 1")
        if ema is not None and swa is not None:
            raise InputError("both ema and swa are given; a step keeps one average of each weight")
        if every is not None and swa is None:
            raise InputError(f"swa_every is {every}, but there is no swa; expected it with swa")
        if ema is None and swa is None:
            return None
        return cls(ema, swa, None if swa is None else every or 1)

    def counted(self, make: NodesAtEnd, updates: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """Returns what the share depends on, and whether an update changes the averages.

        Args:
            make: The maker of nodes.
            updates: The number of updates with this one, an int64 scalar.

        Returns:
            A scalar: True in the first update (EMA), or the number of averaged updates (SWA); and a boolean
            scalar, None if every update changes them.
        """
        if self.swa is None or self.swa_every is None:
            return _scalar(make.op("Equal", updates, make.int64(1)), _BOOL), None
        every = make.int64(self.swa_every)
        elapsed = make.op("Max", make.op("Sub", updates, make.int64(self.swa)), make.int64(0))
        count = _scalar(make.op("Add", make.op("Div", elapsed, every), make.int64(1)), _INT64)
        if self.swa_every == 1:
            return count, None
        return count, _scalar(make.op("Equal", make.op("Mod", elapsed, every), make.int64(0)), _BOOL)

    def share(self, make: NodesAtEnd, counted: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Returns the share of the new value in the average, as a scalar of a type."""
        if self.ema is None:
            return make.typed("Reciprocal", make.cast(counted, dtype))
        return make.where(counted, make.constant(1, dtype), make.constant(1 - self.ema, dtype))


def _scalar(value: ir.Value, dtype: ir.DataType) -> ir.Value:
    value.type, value.shape = ir.TensorType(dtype), ir.Shape([])
    return value
