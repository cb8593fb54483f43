"""Comparison of a training graph with PyTorch, which runs and differentiates the forward model in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx_ir as ir

from bngrad.graph.nodes import all_nodes
from bngrad.validation.double import LIMIT, compared
from bngrad.validation.points import POINTS, nearby
from bngrad.validation.references import load_reference
from bngrad.validation.report import ALL_GRADIENTS, Check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.options import ForwardOptions
    from bngrad.validation.float64 import Evaluator

    Array = NDArray[Any]

PYTORCH = "PyTorch"
"""The name of this reference in reports."""

_LIMITS = {ir.DataType.FLOAT: 2e-6, ir.DataType.FLOAT16: 4e-3, ir.DataType.BFLOAT16: 3e-2}
"""The limits of graphs with narrower floats than double: their constants, such as 1 / sqrt(2), are rounded."""


class Autograd(Protocol):
    """A forward model that PyTorch runs and differentiates; see `bngrad.torch.autograd.model.Autograd`."""

    note: str
    """The changes with which PyTorch can run the model; empty if there are none."""

    @property
    def outputs(self) -> Sequence[str]:
        """The names of the values that it computes, as the training graph names them."""
        ...

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Returns values by name, for the inputs of the training graph."""
        ...


class AutogradType(Protocol):
    """The class of `Autograd`."""

    def __call__(
        self, model: ir.Model, loss: str, gradients: Mapping[str, str], options: ForwardOptions
    ) -> Autograd:
        """Prepares a forward model."""
        ...


def load_autograd() -> AutogradType:
    """Returns the class that runs models in PyTorch.

    Raises:
        VersionError: PyTorch is missing.
    """
    autograd: AutogradType = load_reference("torch")
    return autograd


def against_autograd(
    reference: Autograd,
    tested: ir.Model,
    in_float64: Evaluator | str,
    feeds: Mapping[str, Array],
    *,
    kinds: Mapping[str, str],
    gradients: Mapping[str, str],
    loss: str,
    seed: int,
) -> Check:
    """Compares the loss, outputs, gradients and new running statistics of a training graph with PyTorch's.

    At a kink of the loss, PyTorch may choose another subgradient. A gradient that differs is therefore compared
    again for slightly different inputs, where an error remains and the kink does not.

    Args:
        reference: The forward model in PyTorch.
        tested: The graph under test.
        in_float64: The same graph in float64; or why it is not compared there, which skips the check.
        feeds: The inputs.
        kinds: The kind of each output.
        gradients: The gradient outputs, by the names of the inputs that they belong to.
        loss: The name of the loss.
        seed: Seed of the different inputs.
    """
    check = Check("PyTorch's autograd", unit="relative", limit=_limit(tested))
    want = reference(feeds, [loss, *kinds])
    if not np.isfinite(want[loss]).all():
        check.undecided[ALL_GRADIENTS] = f"the loss is {want[loss]} for these inputs; pass others with --inputs"
        return check
    for name in [name for name, kind in kinds.items() if kind == "gradient" and not np.isfinite(want[name]).all()]:
        check.undecided[name] = "PyTorch's own gradient is not finite"
        del want[name]
    if isinstance(in_float64, str):
        check.skipped = in_float64
        return check
    compared(check, {name: want[name] for name in kinds if name in want}, in_float64, feeds, kinds, PYTORCH)
    generator = np.random.default_rng([seed, 1])
    for _ in range(POINTS - 1):
        doubtful = [row.tensor for row in check.failures if row.kind == "gradient" and np.isfinite(row.measure)]
        if not doubtful:
            break
        moved = nearby(feeds, gradients, generator)
        again = Check(check.name, check.unit, check.limit)
        compared(again, reference(moved, doubtful), in_float64, moved, kinds, PYTORCH)
        closer = {row.tensor: replace(row, note="beside a kink") for row in again.rows if row.passed}
        check.rows = [closer.get(row.tensor, row) for row in check.rows]
    if at_kink := [row.tensor for row in check.rows if row.note and row.passed]:
        check.notes.append(
            f"{len(at_kink)} gradients have a kink of the loss at the inputs; they were checked beside it"
        )
    return check


def _limit(model: ir.Model) -> float:
    types = {
        value.dtype for node in all_nodes(model) for value in (*node.inputs, *node.outputs) if value is not None
    }
    return max((limit for dtype, limit in _LIMITS.items() if dtype in types), default=LIMIT)
