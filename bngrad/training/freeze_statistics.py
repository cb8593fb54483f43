"""Batch norms of a step that use their running statistics from an update on, which then stay.

::

    Y, new_mean, new_var, saved_mean, saved_inv_std = BatchNormalizationTraining(X, scale, bias, mean, var)
    =>  If(is_frozen)
            then  BatchNormalization(X, scale, bias, mean, var), mean, var, mean, 1 / sqrt(var + epsilon)
            else  BatchNormalizationTraining(X, scale, bias, mean, var)

    dX, dscale, dbias = BatchNormalizationGrad(dY, X, scale, saved_mean, saved_inv_std), training_mode = 1
    =>  If(is_frozen), with training_mode = 0 in one branch and 1 in the other

An If runs one branch, so a call costs what a step with or without frozen batch norms does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.dependence import moving_values
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.constant_value import constant_value
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.node_reader import dtype_of, read_attribute
from bngrad.graph.nodes import describe
from bngrad.graph.same_values import origin
from bngrad.opset.functions import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bngrad.graph.fresh_names import Names

_ADVICE = "leave out --freeze-statistics (freeze_statistics=)"
_COPIES = ("Cast", "Identity")
_FORWARD = "BatchNormalizationTraining"
_GRADIENTS = ("BatchNormalizationGrad", "BatchNormalizationReluGrad")


def freeze_statistics(
    graph: ir.Graph, names: Names, is_frozen: ir.Value, loss: str, statistics: Mapping[ir.Value, ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Lets the batch norms in training mode of a step use the running statistics where a condition is true.

    Args:
        graph: The graph of the step; it is changed.
        names: The source of names.
        is_frozen: The condition, a boolean scalar before all batch norms.
        loss: The output that holds the loss.
        statistics: The new values of the running statistics, by the old ones.

    Returns:
        The values in place of those of the batch norms.

    Raises:
        ModelError: No batch norm uses the statistics of the batch, or a running statistic is of none of them.
        UnsupportedNodeError: A batch norm has channels that are not dimension 1, as with channels last or ghost
            batches; its running statistics are not only its own; the loss depends on the new ones, or on a second
            derivative.
    """
    nodes = [node for node in graph if node.domain == DOMAIN]
    _require_plain(graph, nodes, loss, statistics)
    replaced: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if node.op_type == _FORWARD:
            branches = [_frozen_forward(node, names), _copied(node, names)]
        elif node.op_type in _GRADIENTS and _is_of_training(node):
            branches = [_copied(node, names, training_mode=0), _copied(node, names)]
        else:
            continue
        replaced |= _replace(graph, node, names, is_frozen, branches)
    return replaced


def _require_plain(
    graph: ir.Graph, nodes: Sequence[ir.Node], loss: str, statistics: Mapping[ir.Value, ir.Value]
) -> None:
    for node in nodes:
        if reason := _reason(graph, node, loss, statistics):
            raise UnsupportedNodeError(
                f"{describe(node)} cannot be frozen after some updates: {reason}; {_ADVICE}"
            )
    forwards = [node for node in nodes if node.op_type == _FORWARD]
    own = {origin(value, _COPIES) for node in forwards for value in node.inputs[3:5] if value is not None}
    for value in statistics:
        if value not in own:
            raise ModelError(
                f"the running statistic {value.name!r} is of no batch norm that can be frozen after some updates, "
                f"as one in the body of another node, of a cumulative average or in primitives; {_ADVICE}"
            )
    if not forwards:
        raise ModelError(
            f"no batch norm of the step uses the statistics of the batch; {_ADVICE}, or train batch norms with "
            "--training (training=)"
        )


def _reason(graph: ir.Graph, node: ir.Node, loss: str, statistics: Mapping[ir.Value, ir.Value]) -> str | None:
    """Returns the reason why a node of a batch norm cannot be frozen; None if it can, or is of no batch norm."""
    if node.op_type in _GRADIENTS and _is_of_training(node):
        mean = node.inputs[-3]
        maker = None if mean is None else mean.producer()
        is_known = maker is not None and (maker.domain, maker.op_type) == (DOMAIN, _FORWARD)
        return None if is_known else "its statistics are not those of a batch norm with running statistics"
    if node.op_type in ("BatchNormalizationGradGrad", "BatchNormalizationStatistics"):
        return "it is of a second derivative, or of statistics alone"
    if node.op_type != _FORWARD:
        return None
    if not _has_channels_second(node):
        return "its channels are not dimension 1 of data of a known rank"
    if not _has_its_own(node, statistics):
        return "its running statistics are not in the state, or other nodes update them, too"
    return "the loss depends on its new running statistics" if _reaches(graph, node.outputs[1:3], loss) else None


def _is_of_training(gradient: ir.Node) -> bool:
    return bool(read_attribute(gradient, "training_mode", 1))


def _has_channels_second(node: ir.Node) -> bool:
    x, last = node.inputs[0], node.inputs[5]
    axes = None if last is None else constant_value(last)
    rank = None if x is None or x.shape is None else len(x.shape)
    return rank is not None and axes is not None and sorted(axes.numpy().tolist()) == [0, *range(2, rank)]


def _has_its_own(node: ir.Node, statistics: Mapping[ir.Value, ir.Value]) -> bool:
    """Returns whether running statistics of the state are those of a batch norm, and only it updates them."""
    pairs = zip(node.inputs[3:5], node.outputs[1:3], strict=True)
    news = [(None if old is None else statistics.get(origin(old, _COPIES)), new) for old, new in pairs]
    return all(value is not None and origin(value, _COPIES) is new for value, new in news)


def _reaches(graph: ir.Graph, values: Iterable[ir.Value], loss: str) -> bool:
    moving = moving_values(graph, values)
    return any(output.name == loss and output in moving for output in graph.outputs)


def _frozen_forward(node: ir.Node, names: Names) -> ir.Graph:
    """Returns the branch of a batch norm with its running statistics."""
    branch, make = _branch(names, f"{node.name}_frozen")
    x, scale, bias, mean, var = node.inputs[:5]
    saved_mean, saved_inv_std = node.outputs[3:5]
    epsilon = read_attribute(node, "epsilon", 1e-5)
    dtype = dtype_of(saved_inv_std)
    assert mean is not None, "a batch norm has running statistics"  # noqa: S101
    assert var is not None, "a batch norm has running statistics"  # noqa: S101
    std = make.op("Sqrt", make.op("Add", make.op("Cast", var, to=int(dtype)), make.constant(epsilon, dtype)))
    branch.outputs.extend(
        [
            make.op("BatchNormalization", x, scale, bias, mean, var, epsilon=epsilon),
            make.op("Identity", mean),
            make.op("Identity", var),
            make.op("Cast", mean, to=int(dtype_of(saved_mean))),
            make.op("Reciprocal", std),
        ]
    )
    return branch


def _copied(node: ir.Node, names: Names, **attributes: int) -> ir.Graph:
    """Returns a branch with the node, perhaps with other attributes."""
    branch, make = _branch(names, f"{node.name}_{'frozen' if attributes else 'training'}")
    words = [f"output{index}" for index in range(len(node.outputs))]
    changed = {**node.attributes, **{name: ir.AttrInt64(name, value) for name, value in attributes.items()}}
    outputs = make.outputs_of(node.op_type, *node.inputs, outputs=words, domain=node.domain, **changed)
    branch.outputs.extend(outputs)
    return branch


def _branch(names: Names, prefix: str) -> tuple[ir.Graph, NodesAtEnd]:
    branch = ir.Graph([], [], nodes=[], name=names.fresh(prefix))
    return branch, NodesAtEnd(branch, names, prefix)


def _replace(
    graph: ir.Graph, node: ir.Node, names: Names, is_frozen: ir.Value, branches: Sequence[ir.Graph]
) -> dict[ir.Value, ir.Value]:
    """Replaces a node by an If; returns the new values by the old ones."""
    attributes = [
        ir.AttrGraph(name, branch) for name, branch in zip(("then_branch", "else_branch"), branches, strict=True)
    ]
    choice = ir.Node(
        "", "If", [is_frozen], attributes, num_outputs=len(node.outputs), name=names.fresh(f"{node.name}_if")
    )
    graph.insert_after(node, choice)
    replaced = dict(zip(node.outputs, choice.outputs, strict=True))
    for old, new in replaced.items():
        for output in (branch.outputs[old.index() or 0] for branch in branches):
            output.type, output.shape = old.type, old.shape
        new.type, new.shape = old.type, old.shape
        new.name, old.name = old.name, None
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return replaced
