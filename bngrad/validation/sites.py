"""The batch norms of an original training graph, and their replacements in the graph under test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.new_statistics import NEW_STATISTICS
from bngrad.graph.nodes import all_nodes
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.validation import bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.validation.common_values import CommonValues

    Array = NDArray[Any]
    Float64 = NDArray[np.float64]

_OWN_GRAD = (DOMAIN, "BatchNormalizationGrad")
_OWN_STATISTICS = (DOMAIN, "BatchNormalizationStatistics")
BATCH_NORMS = (BATCH_NORM_INTERNAL, BATCH_NORM_GRAD, _OWN_GRAD, _OWN_STATISTICS)
"""The batch-norm nodes of training graphs; our builder uses ops of ``bngrad`` for what ORT's dialect lacks."""

_SIXTEEN_BITS = {ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}
"""The unit roundoff of the 16-bit types, for which our ops compute in float and round the result."""


@dataclass(frozen=True)
class Site:
    """A batch-norm node of the original graph, forward or backward."""

    node: ir.Node
    reads: list[str]
    """The names of the values that the graph under test computes the outputs from."""
    outputs: dict[int, str]
    """The names of the node's outputs that the graph under test has too, by position."""

    @property
    def name(self) -> str:
        """The node's name, or that of its first output."""
        return self.node.name or str(self.node.outputs[0].name)

    @property
    def x(self) -> str:
        """The name of X, which the forward and backward nodes of a batch norm have in common."""
        return self.inputs[1 if self._kind in (BATCH_NORM_GRAD, _OWN_GRAD) else 0]

    @property
    def _kind(self) -> tuple[str, str]:
        return self.node.domain, self.node.op_type

    @property
    def inputs(self) -> list[str]:
        """The names of the values that the node reads."""
        return [str(value.name) for value in self.node.inputs if value is not None]

    @property
    def values(self) -> list[str]:
        """The names of all values that are needed to check the site."""
        return list(dict.fromkeys([*self.inputs, *self.reads, *self.outputs.values()]))

    def expected(self, values: Mapping[str, Array]) -> dict[str, bounds.Expected]:
        """Returns the exact outputs and their error bounds by name.

        Args:
            values: Arrays by name, at least of the inputs.
        """
        inputs = [values[name].astype(np.float64) for name in self.inputs]
        # The node rounds to its own type, which may differ from that of the arrays.
        dtype = self.node.inputs[0].dtype if self.node.inputs[0] is not None else None
        unit = float(np.finfo(np.float64 if dtype == ir.DataType.DOUBLE else np.float32).eps) / 2
        results = self._results(inputs, unit)
        return {name: self._rounded(index, results[index]) for index, name in self.outputs.items()}

    def _results(self, inputs: Sequence[Float64], unit: float) -> list[bounds.Expected]:
        if self._kind == BATCH_NORM_GRAD:
            dY, X, scale, mean, inv_std = inputs
            channels = bounds.channel_axes(X.ndim)
            return bounds.gradients(dY, X, scale, mean, inv_std, channels, training_mode=True, unit=unit)
        if self._kind == _OWN_GRAD:
            dY, X, scale, mean, inv_std, axes = inputs
            mode = bool(self.node.attributes.get_int("training_mode", 1))
            return bounds.gradients(dY, X, scale, mean, inv_std, _integers(axes), training_mode=mode, unit=unit)
        epsilon, momentum = (self._float_attribute(*a) for a in (("epsilon", 1e-5), ("momentum", 0.9)))
        if self._kind == _OWN_STATISTICS:
            X, axes = inputs
            return bounds.statistics(X, _integers(axes), epsilon=epsilon, unit=unit)
        X, scale, bias, mean, var = inputs
        return bounds.normalized(X, scale, bias, mean, var, epsilon=epsilon, momentum=momentum, unit=unit)

    def _rounded(self, index: int, result: bounds.Expected) -> bounds.Expected:
        """Adds the error of rounding to the output's type to its bound."""
        dtype = self.node.outputs[index].dtype
        unit = _SIXTEEN_BITS.get(dtype, 0.0) if dtype is not None else 0.0
        return result._replace(bound=result.bound + unit * np.abs(result.value)) if unit else result

    def _float_attribute(self, name: str, default: float) -> float:
        attribute = self.node.attributes.get(name)
        # ONNX attributes are float32, so the default has to be rounded to float32 too.
        return float(np.float32(default if attribute is None else attribute.as_float()))


def _integers(axes: Float64) -> list[int]:
    return [int(axis) for axis in axes.reshape(-1)]


def find_sites(original: ir.Model, common: CommonValues) -> list[Site]:
    """Returns the batch norms of the main graph.

    The forward and backward nodes of a batch norm are adjacent in the result, so that X is captured once for both.

    Args:
        original: The training graph in ORT's dialect.
        common: The values that it has in common with the graph under test. If a batch norm was fused with its
            neighbours there, only the outputs that both graphs have are checked.
    """
    sites = []
    for node in _batch_norms(original):
        outputs = common.of(node.outputs)
        if node.graph is original.graph and outputs:
            sites.append(Site(node, common.frontier(outputs.values()).reads, outputs))
    first: dict[str, int] = {}
    for index, site in enumerate(sites):
        first.setdefault(site.x, index)
    return sorted(sites, key=lambda site: first[site.x])


def batch_norms_inside(original: ir.Model) -> list[str]:
    """Returns the names of the batch norms in subgraphs and functions.

    Their values cannot be captured, so they are checked as part of whole graphs only.
    """
    nodes = [node for node in _batch_norms(original) if node.graph is not original.graph]
    return [node.name or node.op_type for node in nodes]


def _batch_norms(model: ir.Model) -> list[ir.Node]:
    return [node for node in all_nodes(model) if (node.domain, node.op_type) in BATCH_NORMS]


def output_kinds(original: ir.Model, gradients: Iterable[str]) -> dict[str, str]:
    """Returns the kind of each output of a training graph: loss, gradient, running statistic or other output.

    Args:
        original: The training graph in ORT's dialect.
        gradients: The names of its outputs that are gradients.
    """
    gradients = set(gradients)
    running = {
        *original.meta.get(NEW_STATISTICS, {}).values(),
        *(
            value.name
            for node in all_nodes(original)
            if (node.domain, node.op_type) == BATCH_NORM_INTERNAL
            for value in node.outputs[1:3]
        ),
    }
    kinds = {}
    for value in original.graph.outputs:
        name = str(value.name)
        if name in running:
            kinds[name] = "running statistic"
        elif name in gradients:
            kinds[name] = "gradient"
        else:
            kinds[name] = "loss" if value.shape is not None and len(value.shape) == 0 else "other output"
    return kinds
