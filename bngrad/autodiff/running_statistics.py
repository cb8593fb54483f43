"""The running statistics of a forward model: the batch norms that read them, and their names in a training graph.

Batch norms in bodies of If, Loop and Scan are among them.

Exporters write equal initializers once, and a module that is called twice reads the same statistics twice. Nothing
else may read a statistic that a training graph updates, so `differentiate` separates shared statistics, and
`finalize` restores the trained ones by the same names. The names depend only on the forward model, not on which
batch norms are frozen.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from bngrad.graph.constant_value import constant_value
from bngrad.graph.fresh_names import Names, node_names
from bngrad.graph.same_values import origin, readers
from bngrad.graph.subgraphs import nodes_of
from bngrad.graph.torch_records import batch_norm_call, recorded_module, recorded_names
from bngrad.opset.functions import DOMAIN
from bngrad.passes.imports.tensorflow.node import FORWARDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx_ir as ir


CALL = "bngrad.call"
"""The key in the metadata of a batch norm for the number of its call. An exporter that knows the order of the
calls records it, since the order of the nodes may differ."""

_KINDS = {3: "running_mean", 4: "running_var"}
"""The inputs of a batch norm that are running statistics."""


class Statistic(NamedTuple):
    """A running mean or variance of one batch norm of the main graph or of a body."""

    node: ir.Node
    slot: int
    """The index of the input of the node."""
    source: ir.Value
    """The initializer, graph input or Constant before any Identity nodes, or the value that is computed."""
    value: ir.TensorProtocol | None
    """Its value in the forward model; None if it is a graph input without a default."""
    name: str
    """The name of its own input of a training graph: the source's name if nothing else reads the source."""
    new_name: str
    """The name of the output of the main graph with its new value."""
    chain: str
    """The name of the input for all batch norms that read the source as the same statistic."""
    new_chain: str
    """The name of the output with its new value, if the last batch norm's output has no name."""
    buffer: str | None = None
    """The PyTorch buffer, as `torch_records` names it; None if it is not recorded."""

    @property
    def call(self) -> int | None:
        """The number of the node's call; None if it is not recorded."""
        number = self.node.metadata_props.get(CALL, "")
        return int(number) if number.isdecimal() else None

    @property
    def group(self) -> tuple[ir.Value, int, str | None]:
        """The key of the statistics that ``chain`` merges."""
        return self.source, self.slot, self.buffer


def find_statistics(model: ir.Model, names: Names) -> list[Statistic]:
    """Returns the running statistics of batch norms, in the order of the nodes.

    Statistics that depend on the data or on weights are left out, since no input could hold their new values. So
    are the inputs of bodies, and in bodies the batch norms of other systems.

    Args:
        model: The forward model, with its functions inlined.
        names: The source of new names; it must be unused, so that the names depend only on the model.
    """
    called, graph = node_names(model), model.graph
    places = list(_places(graph))
    buffers = _recorded_buffers([(node, index, source) for node, index, source, _ in places])
    recorded = recorded_names(graph)
    groups = [(source, index, buffer) for (_, index, source, _), buffer in zip(places, buffers, strict=True)]
    sizes = Counter(groups)
    chains: dict[tuple[ir.Value, int, str | None], tuple[str, str]] = {}
    statistics = []
    for (node, index, source, value), group in zip(places, groups, strict=True):
        reading = list(readers(source)) if is_given(source) else []
        is_only_reader = reading == [(node, index)] and source.graph is graph
        of_module = recorded.get(str(group[2])) if sizes[group] == 1 else None
        name = str(source.name) if is_only_reader else names.fresh(of_module or f"{called[node]}/{_KINDS[index]}")
        new_name = output_name(node, index) if node.graph is graph else ""
        new_name = new_name or names.fresh(f"{name}_new")
        if sizes[group] == 1:
            chains[group] = name, new_name
        elif group not in chains:
            together = len(reading) == sizes[group] and source.graph is graph
            base = recorded.get(str(group[2]), f"{source.name}/{_KINDS[index]}")
            chain = str(source.name) if together else names.fresh(base)
            chains[group] = chain, names.fresh(f"{chain}_new")
        statistics.append(Statistic(node, index, source, value, name, new_name, *chains[group], group[2]))
    return statistics


def _places(graph: ir.Graph) -> Iterator[tuple[ir.Node, int, ir.Value, ir.TensorProtocol | None]]:
    """Yields the batch norms, with the indices, sources and values of their running statistics."""
    for node in filter(_reads_statistics, nodes_of(graph)):
        if node.graph is not graph and not is_of_onnx(node):
            continue
        for index in _KINDS:
            operand = node.inputs[index] if index < len(node.inputs) else None
            source = None if operand is None else origin(operand)
            if source is None or (source.is_graph_input() and source.graph is not graph):
                continue
            value = constant_value(source)
            if not is_given(source) and _moves_with_weights(source):
                continue
            if value is not None or source.producer() is None:
                yield node, index, source, value


def has_recorded_chain(model: ir.Model) -> bool:
    """Returns whether PyTorch's exporter records that several batch norms of a model read one buffer."""
    counts = Counter(
        statistic.group for statistic in find_statistics(model, Names(model)) if statistic.buffer is not None
    )
    return any(count > 1 for count in counts.values())


def _recorded_buffers(places: Sequence[tuple[ir.Node, int, ir.Value]]) -> Iterator[str | None]:
    """Yields the PyTorch buffer that each batch norm reads; None if it is not recorded.

    A call that reads a statistic that an earlier call has updated reads the buffer of that call.

    Args:
        places: The batch norms, with the indices and sources of their statistics.
    """
    of_module: dict[tuple[ir.Value, int, str], str] = {}
    of_source: dict[tuple[ir.Value, int], set[str]] = {}
    for node, index, source in places:
        call = batch_norm_call(node)
        key, buffers = (source, index, recorded_module(node)), of_source.setdefault((source, index), set())
        buffer = None if call is None else call.buffer(index) or of_module.get(key)
        if call is not None and buffer is None and len(buffers) == 1:
            (buffer,) = buffers
        if buffer is not None:
            of_module[key] = buffer
            buffers.add(buffer)
        yield buffer


def _moves_with_weights(source: ir.Value) -> bool:
    """Returns whether a value, or one that it is computed from, is also read as something but a statistic."""
    computing: set[ir.Node] = set()
    values, waiting = {source}, [source]
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node not in computing:
            computing.add(node)
            new = {value for value in node.inputs if value is not None} - values
            values |= new
            waiting += new
    return any(
        node not in computing and not is_statistic(node, index)
        for value in values
        if (value.dtype is None or value.dtype.is_floating_point()) and not _is_constant(value)
        for node, index in readers(value)
    )


def is_of_onnx(node: ir.Node) -> bool:
    """Returns whether a node is ONNX's BatchNormalization."""
    return (node.domain, node.op_type) == ("", "BatchNormalization")


def is_of_tensorflow(node: ir.Node) -> bool:
    """Returns whether a node is one of TensorFlow's forward batch norms."""
    return node.op_type in FORWARDS and node.domain != DOMAIN


def is_ours(node: ir.Node) -> bool:
    """Returns whether a node is the BatchNormalizationTraining of ``bngrad``."""
    return (node.domain, node.op_type) == (DOMAIN, "BatchNormalizationTraining")


def _reads_statistics(node: ir.Node) -> bool:
    return is_of_onnx(node) or is_of_tensorflow(node) or is_ours(node)


def output_name(node: ir.Node, index: int) -> str:
    """Returns the name of the output with the new value of a statistic; empty if the node leaves it out."""
    outputs = node.outputs[index - 2 : index - 1]
    return outputs[0].name or "" if outputs else ""


def is_statistic(node: ir.Node, index: int) -> bool:
    """Returns whether an input of a node, which may be in a subgraph, is a running statistic."""
    return index in _KINDS and _reads_statistics(node)


def is_updated(value: ir.Value) -> bool:
    """Returns whether a value is a new running statistic of a batch norm."""
    node = value.producer()
    return node is not None and _reads_statistics(node) and value in node.outputs[1:3]


def is_given(value: ir.Value) -> bool:
    """Returns whether a value is an initializer, a graph input or a Constant."""
    return value.producer() is None or _is_constant(value)


def _is_constant(value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and (maker.domain, maker.op_type) == ("", "Constant")
