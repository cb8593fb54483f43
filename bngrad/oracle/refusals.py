"""Forward models that ORT's gradient builder accepts, and then differentiates wrongly or cannot run.

The oracle must not be asked about them: its silence would be taken for an answer. Each check names the node and
says what to do. All were measured on onnxruntime-training-cpu 1.19.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import helper

from bngrad.errors import ModelError
from bngrad.graph.name_messages import listed
from bngrad.graph.subgraphs import proto_subgraphs
from bngrad.oracle.graph import attribute, is_default_domain, label, opset

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from bngrad.oracle.graph import Shape, Step, Type

_BROADCASTING = {"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max"}
_BAD_WITHOUT_KEEPDIMS = {"ReduceL2", "ReduceLogSumExp"}
_IGNORED = {"Gelu": "approximate", "ScatterElements": "reduction", "ScatterND": "reduction"}
"""Attributes that the builder ignores; with a sum of updates, the gradient by them is right all the same."""


def refuse_old_batch_norms(model: onnx.ModelProto) -> None:
    """Refuse batch norms that do not state their mode: the builder turns every one of them into a training one.

    Raises:
        ModelError: there is one, anywhere in the graph; its outputs would be wrong even away from the loss.
    """
    found = [node for node in _all_nodes(model.graph) if node.op_type == "BatchNormalization"]
    found = [node for node in found if is_default_domain(node.domain)]
    if found and opset(model) < 14:
        raise ModelError(
            f"the model has BatchNormalization at opset {opset(model)}, where training mode is not stated: "
            "convert it to opset 14 or later, with training_mode = 1"
        )
    outer = {id(node) for node in model.graph.node}
    frozen = [label(node) for node in found if id(node) not in outer and not attribute(node, "training_mode", 0)]
    if frozen:
        raise ModelError(
            f"batch norms with training_mode = 0 in the body of an If or a Loop: {listed(frozen)}; ONNX Runtime's "
            "gradient builder would train them in silence, so there is no oracle for this model"
        )


def refuse_shared_statistics(graph: onnx.GraphProto) -> None:
    """Refuse running statistics that something else reads too: BatchNormInternal overwrites them in place.

    Raises:
        ModelError: there is one.
    """
    readers: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(label(node))
        if node.op_type == "BatchNormalization":
            written |= dict.fromkeys(node.input[3:5], label(node))
    for output in graph.output:
        readers.setdefault(output.name, []).append("the graph's outputs")
    for name, batch_norm in written.items():
        if len(readers[name]) > 1:
            raise ModelError(
                f"running statistic {name!r} of batch norm {batch_norm!r} is read {len(readers[name])} times (by "
                f"{listed(dict.fromkeys(readers[name]))}), and ONNX Runtime overwrites it in place: give each "
                "batch norm its own"
            )


def refuse_path(path: Iterable[Step], known: Mapping[str, Type], reaching: set[str]) -> None:
    """Refuse what is wrong on the way of a gradient.

    Args:
        path: the nodes that the gradient goes through.
        known: the types of values.
        reaching: the values that the loss depends on.

    Raises:
        ModelError: with the first node that is wrong.
    """
    for node, _, inputs in path:
        for name in (*(name for _, name in inputs), *node.output):
            found = known.get(name)
            if found is not None and found.is_float and found.element != onnx.TensorProto.FLOAT:
                raise ModelError(
                    f"value {name!r} at node {label(node)!r} is {found}; the oracle differentiates float32 only"
                )
        if not is_default_domain(node.domain):
            continue
        if node.op_type == "Split" and (idle := [name for name in node.output if name not in reaching]):
            raise ModelError(
                f"Split {label(node)!r} has outputs that the loss does not depend on ({listed(idle)}): "
                "ONNX Runtime's gradient of it has the wrong shape; use Slice instead"
            )
        if node.op_type in _BAD_WITHOUT_KEEPDIMS and not attribute(node, "keepdims", 1):
            raise ModelError(
                f"{node.op_type} {label(node)!r} has keepdims = 0: ONNX Runtime's gradient of it is no valid "
                "model; use keepdims = 1 and Squeeze"
            )
        for reason in _wrong_gradients(node, [index for index, _ in inputs], known):
            raise ModelError(f"{node.op_type} {label(node)!r} {reason}: ONNX Runtime's gradient of that is wrong")
        if node.op_type in _BROADCASTING:
            _refuse_symbols(node, [known[name].shape for name in node.input if name in known])


def _wrong_gradients(node: onnx.NodeProto, inputs: Collection[int], known: Mapping[str, Type]) -> Iterator[str]:
    """What a node has that ORT's kernel or builder computes a wrong gradient for; nothing for most nodes.

    Args:
        node: of the default domain.
        inputs: those that a gradient goes to.
        known: the types of values.
    """
    values = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    ignored = _IGNORED.get(node.op_type, "")
    if values.get(ignored, b"none") not in (b"none", *((b"add",) if 0 not in inputs else ())):
        yield f"has {ignored} = {values[ignored].decode()}"
    shapes = [known[name].shape if name in known else None for name in (*node.input, *node.output[:1])]
    match node.op_type:
        case "Conv" | "AveragePool" if values.get("auto_pad", b"").startswith(b"SAME"):
            yield f"has auto_pad = {values['auto_pad'].decode()}"
        case "AveragePool":
            yield from _wrong_pooling(values)
        case "Clip" if not {"min", "max"}.isdisjoint(values):
            yield "has its limits as attributes, not as the inputs that they are since opset 11"
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


def _refuse_symbols(node: onnx.NodeProto, shapes: Sequence[Shape | None]) -> None:
    """Refuse meeting dimensions of different names: the builder takes them for equal, and broadcasts nothing."""
    for dims in zip(*(reversed(shape) for shape in shapes if shape is not None), strict=False):
        names = {dim for dim in dims if isinstance(dim, str)}
        if len(names) > 1:
            raise ModelError(
                f"{node.op_type} {label(node)!r} broadcasts between dimensions {listed(sorted(names))}: "
                "ONNX Runtime's gradient builder takes them for equal; give them numbers, or one name"
            )


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for body in proto_subgraphs(node):
            yield from _all_nodes(body)
