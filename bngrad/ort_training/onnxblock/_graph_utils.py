"""The names, types and nodes of the model that blocks build.

A name ends in a number that the process counts up. Blocks take as many numbers as those of 1.19.2, so that the
same program gets the same names of losses.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from bngrad.graph.name_messages import unknown_name
from bngrad.io import files
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.ort_training.errors import OrtTrainingError, OrtTrainingLookupError, as_ort_training_error
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

_numbers = itertools.count(1)

_IMPORTED = {MICROSOFT: 1, "ai.onnx.ml": 3}
"""The versions of the domains of blocks, where the model imports none."""


def generate_graph_name(token: str) -> str:
    """Returns a name that no other call returns: ``onnx::<token>::<number>``."""
    return f"onnx::{token}::{next(_numbers)}"


def skip_names(count: int) -> None:
    """Leaves out numbers that a block of 1.19.2 takes and this one does not."""
    for _ in range(count):
        next(_numbers)


def append_node(
    model: onnx.ModelProto,
    op_type: str,
    inputs: Sequence[str],
    *,
    domain: str = "",
    output: str | None = None,
    name: str | None = None,
    **attributes: Any,  # noqa: ANN401 - as onnx.helper.make_node
) -> str:
    """Appends a node with one output to a model.

    Args:
        model: The model.
        op_type: The op.
        inputs: The names of its inputs.
        domain: The domain of the op, which the model then imports.
        output: The token of the output's name; by default ``<op_type in lower case>_output``.
        name: The token of the node's name; by default the op.
        attributes: Those of the node.

    Returns:
        The name of the output.
    """
    result = generate_graph_name(output or f"{op_type.lower()}_output")
    node_name = generate_graph_name(name or op_type)
    node = onnx.helper.make_node(op_type, list(inputs), [result], node_name, domain=domain, **attributes)
    model.graph.node.append(node)
    if domain and all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(domain, _IMPORTED[domain]))
    return result


def append_initializer(model: onnx.ModelProto, token: str, value: NDArray[np.generic]) -> str:
    """Appends an initializer to a model, and returns its name."""
    name = generate_graph_name(token)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return name


def node_arg_exists(model: onnx.ModelProto, name: str) -> bool:
    """Tests whether a node reads or computes a value, or the graph has an input of its name."""
    return any(name in (*node.input, *node.output) for node in model.graph.node) or any(
        name == value.name for value in model.graph.input
    )


def float_info(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    """The type of a float tensor."""
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def value_info(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Returns the type of an input, an output or a computed value of a model, under its name.

    Raises:
        OrtTrainingLookupError: There is no such value, or its type is unknown.
    """
    graph = model.graph
    for info in (*graph.output, *graph.input, *graph.value_info):
        if info.name == name:
            copy = onnx.ValueInfoProto()
            copy.CopyFrom(info)
            return copy
    return ir.serde.serialize_value(computed_value(typed(model), name))


def typed(model: onnx.ModelProto) -> ir.Model:
    """Returns a model with the types and shapes of its values, as far as they can be inferred.

    Raises:
        OrtTrainingError: The model is not valid.
    """
    with as_ort_training_error():
        result = files.as_ir(model)
        InferTypesPass()(result)
    return result


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Returns a model as an `onnx.ModelProto`."""
    with as_ort_training_error():
        return files.to_proto(model)


def computed_value(model: ir.Model, name: str) -> ir.Value:
    """Returns a value that a node of the main graph computes, or a graph output.

    Raises:
        OrtTrainingLookupError: There is none, or its type is unknown.
    """
    graph = model.graph
    values = {str(v.name): v for v in (*(v for node in graph for v in node.outputs), *graph.outputs) if v.name}
    value = values.get(name)
    if value is None:
        raise OrtTrainingLookupError(unknown_name(name, values, "a computed value"))
    if value.type is None:
        raise OrtTrainingLookupError(
            f"the type of {name!r} is unknown; add it to the model's value_info or outputs"
        )
    return value


def names_of(output: Any) -> list[str]:  # noqa: ANN401 - what a user's block returned
    """The names that a block returned: one, or several.

    Raises:
        OrtTrainingError: It returned something else.
    """
    names = [output] if isinstance(output, str) else output
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise OrtTrainingError(
            f"a block returned {output!r}; expected the name of its output, or a tuple of names"
        )
    return list(names)


def set_outputs(model: ir.Model, names: Iterable[str]) -> None:
    """Makes the named values the outputs of a model, in this order.

    Raises:
        OrtTrainingLookupError: A name is unknown.
    """
    model.graph.outputs[:] = [computed_value(model, name) for name in names]
