"""Nodes that losses are built from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.shapes import dimension_of
from bngrad.graph.sigmoids import softplus

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import ArrayLike

    from bngrad.graph.fresh_names import Names


class LossNodes(NodesAtEnd):
    """Makes the nodes of a loss at the end of a graph.

    Args:
        graph: The graph.
        names: The source of new names.
        dtype: The type that the loss is computed in: float or double.
    """

    def __init__(self, graph: ir.Graph, names: Names, dtype: ir.DataType) -> None:
        super().__init__(graph, names, "loss")
        self.dtype = dtype

    def number(self, value: Any) -> ir.Value:  # noqa: ANN401 - as of `constant`
        """Returns a constant in the type of the loss."""
        return self.constant(value, self.dtype)

    def by_class(self, values: ArrayLike, x: ir.Value) -> ir.Value:
        """Returns a constant with a number for each class, which broadcasts along dimension 1 of a value."""
        rank = len(x.shape or ())
        return self.number(np.reshape(np.asarray(values), (-1, *[1] * (rank - 2))))

    def number_of_classes(self, x: ir.Value) -> ir.Value:
        """Returns the size of dimension 1 of a value, a scalar in the type of the loss."""
        return self.op("Squeeze", self.cast(dimension_of(self, x, 1), self.dtype))

    def softplus(self, x: ir.Value) -> ir.Value:
        """Returns log(1 + exp(x)), with a gradient of 1/2 at 0."""
        return softplus(self, x, self.dtype)
