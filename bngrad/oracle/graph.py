"""What differentiation needs to know of a forward graph: types, and which values the loss depends on.

Only the main graph counts: ORT's gradient builder does not enter the bodies of If, Loop and Scan.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx
from onnx import shape_inference

from bngrad.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

NOT_DIFFERENTIATED: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("Not", "Shape", "Size", "NonZero", "IsInf", "IsNaN", "ConstantOfShape"), frozenset({0})),
    **dict.fromkeys(("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater"), frozenset({0, 1})),
    **dict.fromkeys(("Pow", "Gather", "GatherElements", "GatherND", "Reshape", "Expand", "Tile"), frozenset({1})),
    **dict.fromkeys(("TopK", "Squeeze", "Unsqueeze", "ReduceSum", "Split", "ReduceMean", "Trilu"), frozenset({1})),
    **dict.fromkeys(("ScatterElements", "ScatterND"), frozenset({1})),
    **dict.fromkeys(("Dropout", "Clip", "SoftmaxCrossEntropyLoss"), frozenset({1, 2})),
    **dict.fromkeys(("OneHot", "Range"), frozenset({0, 1, 2})),
    **dict.fromkeys(("Pad", "Resize"), frozenset({1, 2, 3})),
    "GreaterOrEqual": frozenset({0, 1}),
    "BatchNormalization": frozenset({3, 4}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Where": frozenset({0}),
}
"""The inputs of each op through which ORT's builder sends no gradient (opset 13 and later)."""

_FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
}

Shape = tuple[int | str | None, ...]


@dataclasses.dataclass(frozen=True)
class Type:
    """What is known of a value: its element type (an onnx.TensorProto number), and its shape unless unknown."""

    element: int
    shape: Shape | None

    @property
    def is_float(self) -> bool:
        """Whether a gradient can be asked for at all."""
        return self.element in _FLOATS

    def __str__(self) -> str:
        name = onnx.TensorProto.DataType.Name(self.element).lower().replace("double", "float64")
        name = "float32" if name == "float" else name
        if self.shape is None:
            return f"{name} of unknown shape"
        return f"{name}[{', '.join('?' if dim is None else str(dim) for dim in self.shape)}]"


def is_default_domain(domain: str) -> bool:
    """Whether a node or opset import belongs to ONNX's own operators."""
    return domain in {"", "ai.onnx"}


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that a model uses, 0 for none."""
    return max((entry.version for entry in model.opset_import if is_default_domain(entry.domain)), default=0)


def attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """An integer attribute of a node."""
    return next((entry.i for entry in node.attribute if entry.name == name), default)


def label(node: onnx.NodeProto) -> str:
    """What to call a node in a message."""
    return node.name or f"{node.op_type} of {next((name for name in node.output if name), '?')}"


def namer(graph: onnx.GraphProto) -> Callable[[str], str]:
    """A function that makes names which no value of the graph has."""
    taken = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    taken.update(name for node in graph.node for name in (*node.input, *node.output))

    def fresh(wish: str) -> str:
        name, number = wish, 0
        while name in taken:
            number += 1
            name = f"{wish}_{number}"
        taken.add(name)
        return name

    return fresh


def types(model: onnx.ModelProto) -> dict[str, Type]:
    """The type of every value of the main graph that is stated or can be inferred."""
    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except (shape_inference.InferenceError, ValueError) as error:
        raise ModelError(f"shape inference fails on the model: {' '.join(str(error).split())}") from error
    found = {tensor.name: Type(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            found[value.name] = Type(tensor.elem_type, _shape(tensor) if tensor.HasField("shape") else None)
    return found


def _shape(tensor: onnx.TypeProto.Tensor) -> Shape:
    """The dimensions of a tensor type: numbers, names, or None for neither."""
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim)


class Differentiation:
    """The part of a graph between a loss and what it depends on.

    Args:
        graph: nodes in topological order, as ONNX demands.
        loss: a value of it.
    """

    def __init__(self, graph: onnx.GraphProto, loss: str) -> None:
        self.reaching: set[str] = {loss}
        """The values that the loss depends on through gradients."""
        self._nodes: list[onnx.NodeProto] = []
        for node in reversed(graph.node):
            if self.reaching.intersection(node.output):
                self.reaching.update(name for _, name in _edges(node))
                self._nodes.append(node)
        self._nodes.reverse()

    def nodes(self, wrt: Iterable[str]) -> Iterator[tuple[onnx.NodeProto, list[str]]]:
        """The nodes that a gradient with respect to `wrt` goes through, each with the inputs that it goes to."""
        moving = set(wrt)
        for node in self._nodes:
            inputs = [name for _, name in _edges(node) if name in moving]
            if inputs:
                moving.update(name for name in node.output if name)
                yield node, inputs


def _edges(node: onnx.NodeProto) -> Iterator[tuple[int, str]]:
    """The inputs that a node's gradient goes to: slot and name."""
    stopped = NOT_DIFFERENTIATED.get(node.op_type, frozenset()) if is_default_domain(node.domain) else frozenset()
    for slot, name in enumerate(node.input):
        if name and slot not in stopped:
            yield slot, name
