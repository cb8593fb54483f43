"""The other steps of a training graph: what computes one gradient from the values before it.

A step is cut out of the graph under test by names: it makes the tensors of one node of the original out of
tensors that the original has too. So it is the lowering of that node, or a whole gradient rule, whatever either
graph computes in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.passes.lower import LOWERINGS
from bngrad.validation.common_values import ACCUMULATION, CommonValues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.validation.sites import Site

    Array = NDArray[Any]
    Run = Callable[[Mapping[str, Array]], dict[str, Array]]

_UNIT = float(np.finfo(np.float32).eps) / 2

_SUMS_OF_PRODUCTS = {
    *(
        "AveragePoolGrad",
        "BroadcastGradientArgs",
        "ConcatTraining",
        "ConvGrad",
        "ConvTransposeGrad",
        "DropoutGrad",
    ),
    *("GatherElementsGrad", "GatherGrad", "GatherNDGrad", "MaxPoolGrad", "ReluGrad", "ResizeGrad", "Scale"),
    *("SliceGrad", "SplitTraining"),
    *("Add", "Cast", "Concat", "Expand", "FusedMatMul", "Gemm", "Identity", "MatMul", "Mul", "Neg", "Pad"),
    *("ReduceSum", "Reshape", "Split", "Squeeze", "Sum", "Transpose", "Unsqueeze"),
}
"""The ops that add up products of their inputs, with coefficients of one at most: see `Step.bounds`."""


@dataclass(frozen=True)
class Step:
    """What computes some tensors of the original graph, in the graph under test."""

    node: ir.Node
    """The node of the original that makes the tensors."""
    reads: list[str]
    """The values that the graph under test computes them from."""
    outputs: dict[int, str]
    """The names of the tensors, by their position."""
    has_own_ops: bool
    """Whether there is an op of ``bngrad`` in it, which every provider implements in its own way."""

    @property
    def name(self) -> str:
        """The node's name, or that of its first tensor."""
        return self.node.name or next(iter(self.outputs.values()))

    @property
    def values(self) -> list[str]:
        """The names of all values that it takes to check it."""
        return [*self.reads, *self.outputs.values()]

    def bounds(self, run: Run, feeds: Mapping[str, Array], captured: Mapping[str, Array]) -> dict[str, Array]:
        """How far from exact each element of a right answer may be, in float.

        Where the step adds up K products t, its rounding errors behave like a random walk over partial sums as
        large as the root of sum t^2, or as the result: 8 sqrt(K) u times that. The sum of t^2 is what the step
        makes of its inputs' squares. Elsewhere it is a few roundings of the largest element.
        """
        if self.has_own_ops or self.node.op_type not in _SUMS_OF_PRODUCTS:
            roundings = 64 if self.has_own_ops else 16
            return {
                name: np.asarray(roundings * _UNIT * np.max(np.abs(captured[name]), initial=0.0))
                for name in self.outputs.values()
            }
        squares = run({name: np.square(a) if a.dtype.kind == "f" else a for name, a in feeds.items()})
        factor = 8 * math.sqrt(self._terms(feeds)) * _UNIT
        return {
            name: factor * np.maximum(np.sqrt(np.abs(squares[name]).astype(np.float64)), np.abs(captured[name]))
            for name in self.outputs.values()
        }

    def _terms(self, feeds: Mapping[str, Array]) -> int:
        """About how many products one element adds up: what is left of an input without its second dimension."""
        arrays = [array for array in feeds.values() if array.dtype.kind == "f" and array.size]
        counts = [a.size // a.shape[1] if a.ndim > 1 else a.size for a in arrays]
        return max([16, *counts])


def find_steps(original: ir.Model, common: CommonValues, sites: Sequence[Site]) -> list[Step]:
    """Returns the steps that are no sites, in the order of the original.

    Where another builder made the graph under test, these are all gradients, and all values that an op of ours
    makes; else what a lowered node makes.

    Args:
        original: The training graph as ORT's builder made it.
        common: What it shares with the graph under test.
        sites: The batch norms that are looked at as such.
    """
    steps, done = [], {site.node for site in sites}
    for node in original.graph:
        lowered = (node.domain, node.op_type) in LOWERINGS
        if node in done or (common.same_builder and not lowered):
            continue
        outputs = {i: n for i, n in common.of(node.outputs).items() if _is_gradient(node) or common.is_own(n)}
        if outputs:
            reads, has_own_ops = common.frontier(outputs.values())
            steps.append(Step(node, reads, outputs, has_own_ops))
    return steps


def _is_gradient(node: ir.Node) -> bool:
    return "_Grad/" in (node.name or "") or (node.name or "").startswith(ACCUMULATION)
