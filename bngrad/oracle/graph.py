"""What differentiation needs to know of a forward graph: types, and which values the loss depends on.

Only the main graph counts: ORT's gradient builder does not enter the bodies of If, Loop and Scan.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import onnx
import onnx_ir as ir
from onnx import shape_inference

from bngrad.autodiff.edges import reads, smooth_inputs
from bngrad.autodiff.selection import reaching_values
from bngrad.autodiff.walk import moving_values
from bngrad.autodiff.weights import default_weights
from bngrad.errors import ModelError
from bngrad.io.files import as_ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
    """The part of a graph between a loss and what it depends on, by the edges that our own gradient rules have.

    Args:
        model: with its nodes in topological order, as ONNX demands.
        loss: a value of it that a node makes.
        known: the types of its values.
    """

    def __init__(self, model: onnx.ModelProto, loss: str, known: Mapping[str, Type]) -> None:
        self._protos = list(model.graph.node)
        graph = as_ir(model).graph
        self.graph = graph
        made = [value for node in graph for value in node.outputs]
        self._values = {str(value.name): value for value in (*_given(graph), *made) if value.name}
        for name, found in known.items():
            if name in self._values:
                self._values[name].dtype = ir.DataType(found.element)
        self.loss = self._values[loss]
        self._reached = self._reaching()
        self.reaching = {str(value.name) for value in self._reached}
        """The values that the loss depends on through gradients."""

    def weights(self) -> list[str]:
        """What is differentiated by default: the weights of the graph that the loss depends on as such."""
        reaching = self._reaching(as_weights=True)
        return [str(value.name) for value in default_weights(self.graph) if value in reaching]

    def moving(self, wrt: Iterable[str]) -> set[ir.Value]:
        """The values that change with some others in a differentiable way."""
        return moving_values(self.graph, [self._values[name] for name in wrt])

    def nodes(self, wrt: Iterable[str]) -> Iterator[Step]:
        """The nodes that a gradient with respect to ``wrt`` goes through, in the order of the graph."""
        moving = self.moving(wrt)
        for proto, node in zip(self._protos, self.graph, strict=True):
            if self.reaching.isdisjoint(proto.output):
                continue
            inputs = tuple((index, str(value.name)) for index, value in smooth_inputs(node) if value in moving)
            if inputs or not moving.isdisjoint(reads(node)):
                yield Step(proto, node, inputs)

    def fake_quantized(self) -> Iterator[ir.Node]:
        """The QuantizeLinear nodes that the loss depends on through the DequantizeLinear behind them."""
        return self._fake_quantized(self._reached)

    def _reaching(self, *, as_weights: bool = False) -> set[ir.Value]:
        """What the loss depends on; through pairs that quantize and dequantize too, as ORT's builder has it."""
        found = reaching_values(self.loss, as_weights=as_weights)
        while True:
            data = {node.inputs[0] for node in self._fake_quantized(found)}
            new = {value for value in data if value is not None} - found
            if not new:
                return found
            for value in new:
                found |= reaching_values(value, as_weights=as_weights)

    def _fake_quantized(self, values: Iterable[ir.Value]) -> Iterator[ir.Node]:
        for value in values:
            node = value.producer()
            if node is not None and node.op_type == "DequantizeLinear" and node.inputs[0] is not None:
                quantizer = node.inputs[0].producer()
                if quantizer is not None and quantizer.op_type == "QuantizeLinear":
                    yield quantizer


class Step(NamedTuple):
    """A node that a gradient goes through."""

    proto: onnx.NodeProto
    node: ir.Node
    inputs: tuple[tuple[int, str], ...]
    """The inputs that the gradient goes to: index and name."""


def _given(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
