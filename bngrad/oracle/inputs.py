"""Graph inputs in the place of weights and running statistics.

ORT merges initializers with equal contents, such as the zeros and ones of fresh batch norms. A weight that was
merged has no gradient ("Node arg is not found"). Worse, BatchNormInternal writes the new running statistics over
the old ones, and so over whatever was merged with them. Graph inputs are never merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.graph.constant_value import lift_constant
from bngrad.passes.prepare.large_initializers import hide_initializers

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir
    from numpy.typing import NDArray


def become_plain_inputs(graph: ir.Graph, values: Iterable[ir.Value]) -> dict[str, NDArray[Any]]:
    """Makes graph inputs without a default of initializers and constants.

    Args:
        graph: The main graph of a model; it is changed.
        values: Initializers, graph inputs and outputs of Constant nodes.

    Returns:
        The arrays to feed: a copy of the value of each that had one, by name.
    """
    unique = dict.fromkeys(values)
    names = {str(value.name) for value in unique}
    for value in unique:
        if value.producer() is not None:
            lift_constant(graph, value)
    tensors = {name: value.const_value for name, value in graph.initializers.items() if name in names}
    hide_initializers(graph, lambda value: value.name in names)
    return {name: np.array(tensor.numpy()) for name, tensor in tensors.items() if tensor is not None}
