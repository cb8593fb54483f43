"""What to differentiate, and by what: check the names that were given, or find the obvious ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import helper

from bngrad.errors import ModelError
from bngrad.names import listed, unknown_name
from bngrad.oracle.graph import Type, is_default_domain, label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bngrad.oracle.graph import Differentiation

_SCALAR = Type(onnx.TensorProto.FLOAT, ())

_WEIGHT_SLOTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "Gemm", "BatchNormalization", "LayerNormalization"), frozenset({1, 2})
    ),
    **dict.fromkeys(("MatMul", "PRelu"), frozenset({1})),
}
"""Where a graph input that has no initializer must stand to count as a weight rather than as data."""


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


def running_statistics(graph: onnx.GraphProto) -> dict[str, str]:
    """The values that batch norms read as running statistics, with what to call the batch norm."""
    nodes = [node for node in graph.node if node.op_type == "BatchNormalization"]
    return {name: label(node) for node in nodes for name in node.input[3:5]}


def find_wrt(
    graph: onnx.GraphProto,
    wrt: Sequence[str] | None,
    loss: str,
    known: Mapping[str, Type],
    differentiation: Differentiation,
    statistics: Mapping[str, str],
) -> list[str]:
    """The names to differentiate by, checked; none of them may be a running statistic of a batch norm."""
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input]
    if not wrt:
        weights = _weight_inputs(graph, known)
        candidates = [name for name in inputs if name in initializers or name in weights]
        candidates += [tensor.name for tensor in graph.initializer if tensor.name not in inputs]
        found = [name for name in candidates if known[name].is_float and name in differentiation.reaching]
        found = [name for name in found if name not in statistics]
        if not found:
            raise ModelError(
                f"loss {loss!r} depends on no weights: name what to differentiate by; the inputs are "
                f"{listed(inputs)}"
            )
        return found
    constants = {node.output[0] for node in graph.node if node.op_type == "Constant"}
    for name in wrt:
        if name not in initializers and name not in inputs and name not in constants:
            if name in known:
                raise ModelError(
                    f"{name!r} is computed by the model; differentiate by inputs and initializers only"
                )
            raise ModelError(unknown_name(name, [*inputs, *initializers], "an input or initializer"))
        if name in known and not known[name].is_float:
            raise ModelError(f"{name!r} is {known[name]}, which has no gradient")
        if name not in differentiation.reaching or name in statistics:
            why = f"; it is a running statistic of batch norm {statistics[name]!r}" if name in statistics else ""
            raise ModelError(f"loss {loss!r} does not depend on {name!r}{why}")
    return list(dict.fromkeys(wrt))


def _weight_inputs(graph: onnx.GraphProto, known: Mapping[str, Type]) -> set[str]:
    """The graph inputs that look like weights: of fixed shape, and used where an op takes one."""
    placed = {
        name
        for node in graph.node
        if is_default_domain(node.domain)
        for slot, name in enumerate(node.input)
        if slot in _WEIGHT_SLOTS.get(node.op_type, ())
    }
    shapes = {value.name: known[value.name].shape for value in graph.input if value.name in known}
    return {
        name
        for name, shape in shapes.items()
        if name in placed and shape is not None and all(isinstance(dim, int) for dim in shape)
    }
