"""The running statistics of a training step's state, estimated from data with its evaluation graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.errors import ModelError
from bngrad.graph.fresh_names import node_names
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import all_nodes
from bngrad.io.files import as_ir
from bngrad.opset.functions import DOMAIN
from bngrad.training.estimate_statistics import NOTHING, chosen, require_whole_groups
from bngrad.training.moments import merge_moments
from bngrad.training.moments_graph import moments_graph
from bngrad.training.reestimated import Moments, Normalized, ReestimatedStatistics, new_statistics
from bngrad.training.state_batch_norms import batch_norms_by_node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.options import RunningVariance
    from bngrad.training.ranks import Ranks
    from bngrad.training.training_step import TrainingStep

    Array = NDArray[Any]


class StatisticsOfStep:
    """The graph of the moments, and the statistics of the state that come from them.

    Args:
        step: The training step.
        batch_norms: Names of batch norms, or patterns; None for all whose running statistics are in the state.
        running_variance: The variance that a running variance is; by default that of the step.

    Raises:
        ModelError: The step has no such batch norm, or a batch norm shares its statistics with one that is not
            chosen.
        UnsupportedNodeError: A batch norm has a rank, type or parameters that the ops do not take.
    """

    def __init__(
        self, step: TrainingStep, batch_norms: Sequence[str] | None, running_variance: RunningVariance | None
    ) -> None:
        source = as_ir(step.evaluation)
        evaluation = source.clone()
        names, places = node_names(evaluation), batch_norms_by_node(evaluation, step.info)
        rules = _rules(as_ir(step.model))
        norms: list[Normalized] = []
        self._unbiased: dict[str, bool] = {}
        for number, node in enumerate(chosen(evaluation, names, places, batch_norms)):
            key, epsilon = f"bngrad_norm_{number}", read_attribute(node, "epsilon", 1e-5)
            norms.append(Normalized(key, names[node], epsilon, str(places[node].mean), str(places[node].var)))
            rule = rules.get(names[node], any(rules.values()))
            self._unbiased[key] = rule if running_variance is None else running_variance == "unbiased"
            node.name = key
        require_whole_groups(norms, [(norm.name, {str(norm.mean), str(norm.var)}) for norm in places.values()])
        self.model, self.outputs = moments_graph(evaluation, {norm.key for norm in norms}, source)
        """The graph of the moments, and the names of its outputs by the keys of the batch norms."""
        self._norms = [norm for norm in norms if norm.key in self.outputs]
        if not self._norms:
            raise ModelError(NOTHING)
        self.inputs = [str(value.name) for value in self.model.graph.inputs if value.name in step.info.data]
        """The data inputs that the statistics depend on."""
        self.moments = Moments(self._norms)
        """The moments of the batches of this rank."""

    def add(self, outputs: Mapping[str, Array]) -> None:
        """Adds the outputs of the graph for a batch; see `Moments.add`."""
        self.moments.add({key: outputs[output] for key, output in self.outputs.items()})

    def state(
        self, ranks: Ranks, state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], list[ReestimatedStatistics]]:
        """Returns the new statistics by name, from all ranks, and how far those of a state were off."""
        totals = self.moments.totals
        merged = {key: merge_moments(ranks.arrays(f"statistics/{key}", totals[key])) for key in self.outputs}
        return new_statistics(self._norms, merged, state, self._unbiased)


def _rules(step: ir.Model) -> dict[str, bool]:
    """Returns whether each training batch norm of a step updates its running variance with the unbiased one."""
    nodes = [
        node for node in all_nodes(step) if node.domain == DOMAIN and "unbiased_running_var" in node.attributes
    ]
    return {str(node.name): bool(node.attributes["unbiased_running_var"].value) for node in nodes}
