"""Running statistics of the batch norms of a forward model, estimated from data.

In the pass over the data the chosen batch norms use the statistics of the batch, as in training, and everything
else is in inference mode. So the statistics of a batch norm are exactly those of its inputs over all data, and
these inputs depend on the batches only through the batch norms before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.autodiff.batch_norm_modes import matching
from bngrad.autodiff.control_flow.prepare import fold_branches
from bngrad.autodiff.running_statistics import find_statistics, is_of_onnx
from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names, node_names
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import nodes_of
from bngrad.passes.check import check
from bngrad.runtime.session import session
from bngrad.training.differentiate import default_running_variance
from bngrad.training.evaluation import evaluation_graph
from bngrad.training.finalize import inlined_copy, running_outputs
from bngrad.training.moments_graph import moments_graph
from bngrad.training.reestimated import Moments, Normalized, ReestimatedStatistics, new_statistics
from bngrad.training.step_errors import refused
from bngrad.training.trained_values import put_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.autodiff.running_statistics import Statistic
    from bngrad.options import RunningVariance

    Array = NDArray[Any]


NOTHING = "no output of the model depends on a chosen batch norm, so there is nothing to estimate"


class Estimated(NamedTuple):
    """A forward model with new running statistics."""

    model: ir.Model
    """The forward model, with its functions inlined."""
    batch_norms: list[ReestimatedStatistics]
    """The batch norms with new statistics."""
    batches: int
    """The number of batches."""


class StatisticsEstimate:
    """The estimate of the running statistics of a forward model.

    Args:
        model: The forward model; it is not changed.
        batch_norms: Names of batch norms, or patterns; None for all that have running statistics.
        running_variance: The variance that a running variance is; by default that of the system that exported
            the model.

    Raises:
        ModelError: The model has no such batch norm, or is not a forward model; a batch norm has no running
            statistics that data could replace, or shares them with one that is not chosen.
        UnsupportedNodeError: A batch norm has a rank, type or parameters that the ops do not take.
    """

    def __init__(
        self,
        model: ir.Model,
        batch_norms: Sequence[str] | None = None,
        *,
        running_variance: RunningVariance | None = None,
    ) -> None:
        self._source, self._model = model, inlined_copy(model)
        self._unbiased = (running_variance or default_running_variance(model)) == "unbiased"
        fold_branches(self._model)
        graph = self._model.graph
        statistics: dict[ir.Node, dict[int, Statistic]] = {}
        for statistic in find_statistics(self._model, Names(self._model)):
            in_main_graph = statistic.node.graph is graph
            if in_main_graph and is_of_onnx(statistic.node) and statistic.value is not None:
                statistics.setdefault(statistic.node, {})[statistic.slot] = statistic
        names, index = node_names(self._model), {node: number for number, node in enumerate(graph)}
        complete = {node: slots for node, slots in statistics.items() if len(slots) == 2}
        nodes = chosen(self._model, names, complete, batch_norms)
        chosen_norms, self._old = [], dict[str, "Array"]()
        for node in nodes:
            mean, var = (complete[node][slot] for slot in (3, 4))
            place_of_mean, place_of_var = _place(mean), _place(var)
            epsilon = read_attribute(node, "epsilon", 1e-5)
            chosen_norms.append(
                Normalized(f"bngrad_norm_{index[node]}", names[node], epsilon, place_of_mean, place_of_var)
            )
            for statistic, place in ((mean, place_of_mean), (var, place_of_var)):
                assert statistic.value is not None, "others were left out"  # noqa: S101
                self._old[place] = statistic.value.numpy()
        require_whole_groups(
            chosen_norms,
            [(names[node], {_place(slot) for slot in slots.values()}) for node, slots in complete.items()],
        )
        keys = {index[node]: norm.key for node, norm in zip(nodes, chosen_norms, strict=True)}
        evaluation = evaluation_with_names(self._model, keys)
        self.graph, self._outputs = moments_graph(evaluation, set(keys.values()), model)
        self.batch_norms = [norm for norm in chosen_norms if norm.key in self._outputs]
        """The batch norms that get new statistics."""
        if not self.batch_norms:
            raise ModelError(NOTHING)
        self.inputs = [str(value.name) for value in self.graph.graph.inputs]
        """The data inputs that the statistics depend on."""

    def run(self, batches: Iterable[Mapping[str, Array]]) -> Estimated:
        """Returns the model with the statistics of the data.

        Args:
            batches: Batches: an array for each data input; those that the statistics do not depend on are not
                used.

        Raises:
            InputError: ONNX Runtime refuses the data, they or what the model computes are not finite, there is no
                batch, or a batch norm has one value for each channel of a batch.
        """
        moments = Moments(self.batch_norms)
        add_batches(moments, self.graph, self._outputs, batches)
        unbiased = {norm.key: self._unbiased for norm in self.batch_norms}
        values, results = new_statistics(self.batch_norms, moments.totals, self._old, unbiased)
        model = self._model.clone()
        put_values(model, values, Names(model))
        check(model, self._source)
        return Estimated(model, results, moments.batches)


def evaluation_with_names(model: ir.Model, names: Mapping[int, str]) -> ir.Model:
    """Returns the graph of inference mode, without running statistics as outputs, with new names of some nodes.

    Args:
        model: The forward model; it is not changed.
        names: The new names, by the number of the node in the main graph.

    Raises:
        ModelError: The model has no other outputs.
    """
    result = model.clone()
    for number, node in enumerate(result.graph):
        node.name = names.get(number, node.name)
    left_out = running_outputs(result)
    output = next((str(value.name) for value in result.graph.outputs if value not in left_out), None)
    if output is None:
        raise ModelError("the model has no output but running statistics; expected a forward model")
    return evaluation_graph(result, {}, output, batch_statistics=True, in_place=True)


def add_batches(
    moments: Moments, graph: ir.Model, outputs: Mapping[str, str], batches: Iterable[Mapping[str, Array]]
) -> None:
    """Adds the moments that a graph computes of batches.

    Args:
        moments: The moments; they are changed.
        graph: A graph of `moments_graph`.
        outputs: The names of its outputs, by key.
        batches: The batches; inputs that the graph does not have are not used.

    Raises:
        InputError: ONNX Runtime refuses the data, there is no batch, or see `Moments.add`.
    """
    moments_session = session(graph)
    inputs = [value.name for value in moments_session.get_inputs()]
    for batch in batches:
        feeds = {name: np.asarray(batch[name]) for name in inputs}
        try:
            arrays = moments_session.run(list(outputs.values()), feeds)
        except Exception as error:
            raise refused(error) from error
        moments.add(dict(zip(outputs, arrays, strict=True)))
    moments.require_batches()


def chosen(
    model: ir.Model,
    names: Mapping[ir.Node, str],
    candidates: Iterable[ir.Node],
    patterns: Sequence[str] | None,
) -> list[ir.Node]:
    """Returns the batch norms that names or patterns match, in the order of the graph.

    Args:
        model: The model.
        names: The names of its nodes.
        candidates: The batch norms whose statistics can be estimated.
        patterns: The names or patterns; None for all candidates.

    Raises:
        ModelError: A pattern matches nothing, or a batch norm that is not a candidate; there are no candidates.
    """
    possible = dict.fromkeys(candidates)
    others = [node for node in nodes_of(model.graph) if is_of_onnx(node) and node not in possible]
    if patterns is None:
        if not possible:
            reason = f"; {_reason(model, others[0])}" if others else ""
            raise ModelError(f"the model has no batch norm with running statistics that data can replace{reason}")
        return list(possible)
    nodes = {node: names[node] for node in (*possible, *others)}
    selected: set[ir.Node] = set()
    for pattern in patterns:
        matches = matching(nodes, pattern)
        if not matches:
            raise ModelError(unknown_name(pattern, nodes.values(), "a batch norm"))
        selected |= matches
    for node in others:
        if node in selected:
            raise ModelError(_reason(model, node))
    return [node for node in possible if node in selected]


def require_whole_groups(batch_norms: Sequence[Normalized], all_norms: Sequence[tuple[str, set[str]]]) -> None:
    """Refuses a choice that has only some of the batch norms that read one statistic.

    Args:
        batch_norms: The chosen batch norms.
        all_norms: The name of each batch norm and the names of its statistics.

    Raises:
        ModelError: One reads a statistic of another that is not chosen.
    """
    names = {norm.name for norm in batch_norms}
    for norm in batch_norms:
        sharing = [name for name, places in all_norms if name not in names and places & {norm.mean, norm.var}]
        if sharing:
            raise ModelError(
                f"batch norm {norm.name!r} reads the same running statistics as {listed(sharing)}; expected all "
                "of them, or none: name them with --batch-norm (batch_norms=), too"
            )


def _place(statistic: Statistic) -> str:
    """Returns the name under which a statistic is replaced: calls of one recorded PyTorch buffer share it."""
    return statistic.name if statistic.buffer is None else statistic.chain


def _reason(model: ir.Model, node: ir.Node) -> str:
    if node.graph is not model.graph:
        return f"{describe(node)} is in the body of another node, where its data cannot be read"
    return (
        f"the running statistics of {describe(node)} are no values of the model: they are inputs, or computed "
        "from data or weights"
    )
