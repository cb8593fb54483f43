"""What to differentiate, and by what: check the names that were given, or find the obvious ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import helper

from bngrad.errors import ModelError
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.oracle.graph import Type, label

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bngrad.oracle.graph import Differentiation

_SCALAR = Type(onnx.TensorProto.FLOAT, ())


def find_loss(graph: onnx.GraphProto, loss: str | None, known: Mapping[str, Type]) -> str:
    """The name of the loss, which becomes an output of the graph if it is none."""
    outputs: dict[str, Type | None] = {value.name: known.get(value.name) for value in graph.output}
    floats = [f"{name} {found}" for name, found in outputs.items() if found is not None and found.is_float]
    if loss is None:
        scalars = [name for name, found in outputs.items() if found == _SCALAR]
        if len(scalars) != 1:
            raise ModelError(
                f"the model has {len(scalars) or 'no'} float32 scalar outputs, so name the loss; its float "
                f"outputs are {', '.join(floats) or 'none'}"
            )
        return scalars[0]
    if loss not in known and loss not in outputs and not any(loss in node.output for node in graph.node):
        raise ModelError(unknown_name(loss, {*outputs, *known}, "a value"))
    if not any(loss in node.output for node in graph.node):
        raise ModelError(f"loss {loss!r} is an input of the graph, so it depends on nothing")
    found = known.get(loss)
    if found is not None and found not in {_SCALAR, Type(onnx.TensorProto.FLOAT, None)}:
        raise ModelError(
            f"loss {loss!r} is {found}, and must be a float32 scalar (no dimensions at all); reduce it with "
            "keepdims = 0, or name another value"
        )
    if loss not in outputs:
        graph.output.append(helper.make_tensor_value_info(loss, onnx.TensorProto.FLOAT, []))
    return loss


def running_statistics(graph: onnx.GraphProto, unless: Collection[str] = ()) -> dict[str, str]:
    """The values that batch norms read as running statistics, with what to call the batch norm.

    Args:
        graph: any.
        unless: values that leave out the batch norms whose new statistics are among them.
    """
    nodes = [node for node in graph.node if node.op_type == "BatchNormalization"]
    nodes = [node for node in nodes if not any(name in unless for name in node.output[1:3])]
    return {name: label(node) for node in nodes for name in node.input[3:5]}


def find_wrt(
    graph: onnx.GraphProto,
    wrt: Sequence[str] | None,
    loss: str,
    known: Mapping[str, Type],
    differentiation: Differentiation,
    statistics: Mapping[str, str],
) -> list[str]:
    """The names to differentiate by, checked; none of them may be a running statistic that the loss ignores.

    Args:
        graph: as ORT's builder gets it.
        wrt: the names that were given.
        loss: the loss.
        known: the types of values.
        differentiation: the part of the graph before the loss.
        statistics: the running statistics of all batch norms, which are no weights.
    """
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input]
    if not wrt:
        found = [name for name in differentiation.weights() if name not in statistics]
        if not found:
            raise ModelError(
                f"loss {loss!r} depends on no weights: name what to differentiate by; the inputs are "
                f"{listed(inputs)}"
            )
        return found
    ignored = running_statistics(graph, unless=differentiation.reaching)
    constants = {node.output[0] for node in graph.node if node.op_type == "Constant"}
    for name in wrt:
        if name not in initializers and name not in inputs and name not in constants:
            if name in known:
                raise ModelError(
                    f"{name!r} is computed by the model; differentiate with respect to inputs and initializers"
                )
            raise ModelError(unknown_name(name, [*inputs, *initializers], "an input or initializer"))
        if name in known and not known[name].is_float:
            raise ModelError(f"{name!r} is {known[name]}, which has no gradient")
        if name not in differentiation.reaching or name in ignored:
            why = f"; it is a running statistic of batch norm {ignored[name]!r}" if name in ignored else ""
            raise ModelError(f"loss {loss!r} does not depend on {name!r}{why}")
    return list(dict.fromkeys(wrt))
