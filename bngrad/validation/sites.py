"""The batch norms of an original training graph, and what stands in their place in the rewritten one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.nodes import all_nodes
from bngrad.validation import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.validation.common_values import CommonValues
    from bngrad.validation.steps import Step

    Array = NDArray[Any]

_KINDS = (BATCH_NORM_INTERNAL, BATCH_NORM_GRAD)


@dataclass(frozen=True)
class Site:
    """A batch-norm node of the original graph, forward or backward."""

    node: ir.Node
    reads: list[str]
    """The values that the graph under test computes its outputs from."""
    outputs: dict[int, str]
    """The names of the values that it makes, by their position; those that the graph under test has too."""

    @property
    def name(self) -> str:
        """The node's name, or that of its first output."""
        return self.node.name or str(self.node.outputs[0].name)

    @property
    def x(self) -> str:
        """The name of X, which the forward and the backward node of one batch norm share."""
        return self.inputs[1 if (self.node.domain, self.node.op_type) == BATCH_NORM_GRAD else 0]

    @property
    def inputs(self) -> list[str]:
        """The names of the values that the node reads."""
        return [str(value.name) for value in self.node.inputs if value is not None]

    @property
    def values(self) -> list[str]:
        """The names of all values that it takes to check it."""
        return list(dict.fromkeys([*self.inputs, *self.reads, *self.outputs.values()]))

    def expected(self, values: Mapping[str, Array]) -> dict[str, bounds.Expected]:
        """What its outputs have to be, exactly, for these inputs; by name.

        Args:
            values: Arrays by name, the inputs at least.
        """
        inputs = [values[name].astype(np.float64) for name in self.inputs]
        # The roundings are those of the type that the node works in, whatever the arrays came as.
        dtype = self.node.inputs[0].dtype if self.node.inputs[0] is not None else None
        unit = float(np.finfo(np.float64 if dtype == ir.DataType.DOUBLE else np.float32).eps) / 2
        if (self.node.domain, self.node.op_type) == BATCH_NORM_GRAD:
            dY, X, scale, mean, inv_std = inputs
            results = bounds.gradients(dY, X, scale, mean, inv_std, unit=unit)
        else:
            X, scale, bias, running_mean, running_var = inputs
            epsilon, momentum = (self._float_attribute(*a) for a in (("epsilon", 1e-5), ("momentum", 0.9)))
            results = bounds.normalized(
                X, scale, bias, running_mean, running_var, epsilon=epsilon, momentum=momentum, unit=unit
            )
        return {name: results[i] for i, name in self.outputs.items()}

    def _float_attribute(self, name: str, default: float) -> float:
        attribute = self.node.attributes.get(name)
        # An ONNX attribute is a float32; its neighbour in float64 is another number.
        return float(np.float32(default if attribute is None else attribute.as_float()))


def find_sites(original: ir.Model, common: CommonValues) -> tuple[list[Site], list[str]]:
    """Returns the batch norms of the main graph, and the names of those elsewhere.

    The forward and the backward node of one batch norm are neighbours, so that X is captured for both at once.
    Those in subgraphs and functions cannot be looked into from outside: only whole graphs tell about them.

    Args:
        original: The training graph as ORT's builder made it.
        common: What it shares with the graph under test. Where that folds a batch norm into one with its
            neighbours, some of the node's values are not among it; the others are checked.
    """
    found = [node for node in all_nodes(original) if (node.domain, node.op_type) in _KINDS]
    inside = [node.name or node.op_type for node in found if node.graph is not original.graph]
    sites = []
    for node in found:
        outputs = common.of(node.outputs)
        if node.graph is original.graph and outputs:
            sites.append(Site(node, common.frontier(outputs.values()).reads, outputs))
    first: dict[str, int] = {}
    for index, site in enumerate(sites):
        first.setdefault(site.x, index)
    return sorted(sites, key=lambda site: first[site.x]), inside


def output_kinds(original: ir.Model) -> dict[str, str]:
    """Says of every output of a training graph whether it is a loss, a gradient or a running statistic."""
    running = {
        value.name
        for node in all_nodes(original)
        if (node.domain, node.op_type) == BATCH_NORM_INTERNAL
        for value in node.outputs[1:3]
    }
    kinds = {}
    for value in original.graph.outputs:
        name = str(value.name)
        if name in running:
            kinds[name] = "running statistic"
        elif name.endswith("_grad"):
            kinds[name] = "gradient"
        else:
            kinds[name] = "loss" if value.shape is not None and len(value.shape) == 0 else "other output"
    return kinds


def replacement(rewritten: ir.Model, site: Site | Step, values: Mapping[str, Array]) -> ir.Model:
    """Cuts out of the rewritten model what computes a site's, or a step's, outputs from its inputs.

    Args:
        rewritten: The rewritten model.
        site: A site of the original.
        values: Arrays by name, for the types and shapes of the inputs.

    Raises:
        ValueError: The rewritten model has no value of a name, or computes an output from something else.
    """
    graph = ir.convenience.extract(rewritten.graph, site.reads, list(site.outputs.values()))
    for value in graph.inputs:
        array = values[str(value.name)]
        value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
    functions = [function.clone() for function in rewritten.functions.values()]
    return ir.Model(graph, ir_version=rewritten.ir_version, functions=functions)
