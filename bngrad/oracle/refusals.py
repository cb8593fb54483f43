"""Forward models that ORT's gradient builder accepts, and then differentiates wrongly or cannot run.

The oracle must not be asked about them. Each check names the node and the remedy. All were measured on
onnxruntime-training-cpu 1.19.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.autodiff.running_statistics import is_of_onnx, is_statistic
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES, is_training_batch_norm
from bngrad.graph.name_messages import listed
from bngrad.graph.node_reader import read_attribute, text_of
from bngrad.graph.nodes import all_nodes, describe
from bngrad.graph.subgraphs import nodes_of
from bngrad.opset.known_shapes import known_shape, type_text
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from bngrad.opset.known_shapes import KnownShape
    from bngrad.oracle.path import GradientPath

_BROADCASTING = {"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max"}
_BAD_WITHOUT_KEEPDIMS = {"ReduceL2", "ReduceLogSumExp"}
_IGNORED = {"Gelu": "approximate", "ScatterElements": "reduction", "ScatterND": "reduction"}
"""Attributes that the builder ignores; with a sum of updates, their gradient is right all the same."""


def require_float_scalar(loss: ir.Value) -> None:
    """Refuses a loss of another type or rank than the builder's own gradient of it, a float scalar.

    Raises:
        ModelError: It is one.
    """
    if loss.dtype != ir.DataType.FLOAT or (loss.shape is not None and len(loss.shape) > 0):
        raise ModelError(
            f"loss {loss.name!r} is {type_text(loss)}; ONNX Runtime's gradient builder expects a float scalar, "
            "without dimensions; reduce it with keepdims = 0, or use --builder bngrad"
        )


def refuse_frozen_in_bodies(model: ir.Model) -> None:
    """Refuses frozen batch norms in bodies: the builder turns every one of them into a training one.

    Raises:
        ModelError: There is one; its outputs would be wrong even where the loss does not depend on them.
    """
    main = set(model.graph)
    for node in all_nodes(model):
        if is_of_onnx(node) and node not in main and not is_training_batch_norm(node):
            raise ModelError(
                f"{describe(node)} is frozen, in the body of another node: ONNX Runtime's gradient builder "
                "silently trains it; use --builder bngrad, or move it out of the body"
            )


def refuse_running_statistics(loss: ir.Value, wrt: Sequence[ir.Value]) -> None:
    """Refuses to differentiate with respect to the running statistics of batch norms in training mode.

    Raises:
        ModelError: One of the values is read as nothing else.
    """
    for value in wrt:
        uses = [*value.uses()]
        if all(is_statistic(node, index) and is_training_batch_norm(node) for node, index in uses):
            raise ModelError(
                f"loss {loss.name!r} does not depend on {value.name!r}: it is a running statistic of "
                f"{describe(uses[0].node)}, which is in training mode"
            )


def refuse_overwritten(model: ir.Model, remedy: str) -> None:
    """Refuses a running statistic that something else reads too: BatchNormInternal overwrites it in place.

    In a body that is so, since the body is copied for the backward pass.

    Args:
        model: A forward model, or a training graph in ORT's dialect.
        remedy: The alternative, for the message.

    Raises:
        ModelError: There is one.
    """
    for node in nodes_of(model.graph):
        if not is_training_batch_norm(node) and (node.domain, node.op_type) != BATCH_NORM_INTERNAL:
            continue
        if node.graph is not model.graph:
            raise ModelError(
                f"{describe(node)} is in the body of another node, and ONNX Runtime's own batch norm overwrites "
                f"its running statistics in place, in each copy of the body: use {remedy}"
            )
        for value, new in zip(node.inputs[3:5], node.outputs[1:3], strict=False):
            if value is None:
                continue
            others = [describe(other) for other, _ in value.uses() if other is not node]
            if value.is_graph_output() and not new.is_graph_output():
                others.append("the graph's outputs")
            if others:
                raise ModelError(
                    f"the running statistic {value.name!r} of {describe(node)} is read by {others[0]} too, and "
                    f"ONNX Runtime's own batch norm overwrites it in place: use {remedy}"
                )


def refuse_path(path: GradientPath) -> None:
    """Refuses nodes of a gradient's path that the builder gets wrong.

    Raises:
        ModelError: There is one; the first is named.
    """
    for node, inputs in path.steps:
        for value in (*(value for _, value in inputs), *node.outputs):
            if value.dtype in SUPPORTED_DTYPES and value.dtype != ir.DataType.FLOAT:
                raise ModelError(
                    f"{value.name!r} of {describe(node)} is {type_text(value)}; the oracle differentiates float "
                    "only; use --builder bngrad"
                )
        if node.domain:
            continue
        if node.op_type == "Split" and (idle := [v.name for v in node.outputs if v not in path.reaching]):
            raise ModelError(
                f"{describe(node)} has outputs that the loss does not depend on ({listed(map(str, idle))}): "
                "ONNX Runtime's gradient of it has the wrong shape; use Slice instead"
            )
        if node.op_type in _BAD_WITHOUT_KEEPDIMS and not read_attribute(node, "keepdims", 1):
            raise ModelError(
                f"{describe(node)} has keepdims = 0: ONNX Runtime's gradient of it is not a valid model; use "
                "keepdims = 1 and Squeeze"
            )
        for reason in _wrong_gradients(node, [index for index, _ in inputs]):
            raise ModelError(
                f"{describe(node)} {reason}: ONNX Runtime's gradient of that is wrong; use --builder bngrad"
            )
        if node.op_type in _BROADCASTING:
            _refuse_symbols(node, node.inputs)
        if node.op_type == "Gemm":
            _refuse_symbols(node, [*node.inputs[2:], *node.outputs])


def _wrong_gradients(node: ir.Node, inputs: Collection[int]) -> Iterator[str]:
    """The features of a node for which ORT's kernel or builder computes a wrong gradient; none for most nodes.

    Args:
        node: A node of the default domain.
        inputs: Those that a gradient goes to.
    """
    values: dict[str, Any] = {
        name: text_of(attribute) if attribute.type == ir.AttributeType.STRING else attribute.value
        for name, attribute in node.attributes.items()
    }
    ignored = _IGNORED.get(node.op_type, "")
    if values.get(ignored, "none") not in ("none", *(("add",) if 0 not in inputs else ())):
        yield f"has {ignored} = {values[ignored]}"
    shapes = [known_shape(value) for value in (*node.inputs, *node.outputs[:1])]
    match node.op_type:
        case "Conv" | "AveragePool" if values.get("auto_pad", "").startswith("SAME"):
            yield f"has auto_pad = {values['auto_pad']}"
        case "AveragePool":
            yield from _wrong_pooling(values)
        case "LayerNormalization" if shapes[0] is not None and any(
            shape is not None and shape != shapes[0][values.get("axis", -1) :]
            for shape in shapes[1 : len(node.inputs)]
        ):
            yield "has a scale or a bias that is repeated"
        case "LeakyRelu" if values.get("alpha", 0.01) < 0:
            yield "has a negative alpha"
        case "Where" if any(shape != shapes[-1] for shape in shapes[1:3]):
            yield "broadcasts"
        case "Pow" if None not in shapes and len(shapes[0] or ()) < len(shapes[-1] or ()):
            yield "has a base of lower rank than its exponent"


def _wrong_pooling(values: Mapping[str, Any]) -> Iterator[str]:
    if any(dilation > 1 for dilation in values.get("dilations", ())):
        yield "has dilations"
    if values.get("ceil_mode") and values.get("count_include_pad"):
        yield "has ceil_mode and count_include_pad"
    if len(values["kernel_shape"]) == 3:
        yield "has three spatial dimensions"


def _refuse_symbols(node: ir.Node, values: Iterable[ir.Value | None]) -> None:
    """Refuses to broadcast values with dimensions of different names: the builder takes them for equal."""
    shapes: list[KnownShape] = [shape for value in values if (shape := known_shape(value)) is not None]
    for sizes in zip(*(reversed(shape) for shape in shapes), strict=False):
        names = {size for size in sizes if isinstance(size, str)}
        if len(names) > 1:
            raise ModelError(
                f"{describe(node)} broadcasts between dimensions {listed(sorted(names))}: ONNX Runtime's gradient "
                "builder takes them for equal; give them numbers, or one name"
            )
