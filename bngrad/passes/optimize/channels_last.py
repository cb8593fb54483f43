"""Activations with channels last, [N, *spatial, C], for devices whose convolutions are faster so.

::

    y = Conv(x, W); z = Relu(y)
    => y_last = ConvChannelsLast(Transpose(x), Transpose(W)), z_last = Relu(y_last), z = Transpose(z_last)

A Transpose back to channels first is only left where another op, or an output of the graph, reads it. A
convolution with a kernel of 1, and its gradients, become products of matrices, which have one layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.constant_value import constant_tensor
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.node_reader import read_attribute, static_shape
from bngrad.graph.nodes import is_read, remove_unused
from bngrad.opset import conv_grad
from bngrad.opset.domain import DOMAIN
from bngrad.opset.functions import FUNCTIONS
from bngrad.opset.quantities import QUANTITIES
from bngrad.opset.schemas import signature
from bngrad.passes.base import STANDARD
from bngrad.passes.lower.conv_grad_op import to_channels_last
from bngrad.passes.optimize.convolutions_last import convolution_last, gradients_last

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu"),
        *("Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual"),
        *("Log", "Max", "Mean", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Sigmoid"),
        *("Sign", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor"),
    )
)
_LEAST_RANK = 3
"""[N, C, size]: with fewer dimensions channels are last already."""


class ChannelsLastPass(ir.passes.InPlacePass):
    """Lays out the data of batch norms, convolutions and what is between them with channels last.

    Requires: the types and shapes of values; gradients of Conv are the op of ``bngrad``.
    Guarantees: names of inputs, outputs and initializers stay, and their layout. Convolutions with groups stay as
    they are, and so do pooling and everything in subgraphs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        layout = _Layout(model)
        for node in list(model.graph):
            layout.take(node)
        layout.clean_up()
        return ir.passes.PassResult(model, modified=bool(layout.last))


class _Layout:
    """The values of a model that also have a form with channels last.

    Between two nodes the model is valid, and every value that a later node reads has channels first.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model, self._graph, self._names = model, model.graph, Names(model)
        self.last: dict[ir.Value, ir.Value] = {}
        """The form with channels last that a node computes, by its Transpose to channels first."""
        self._transposed: dict[ir.Value, ir.Value] = {}
        """The Transpose to channels last, by a value that is computed with channels first."""
        self._replaced: list[ir.Node] = []
        self._gradients: list[ir.Node] = []

    def take(self, node: ir.Node) -> None:
        """Lets a node compute with channels last if it can."""
        if node.domain == DOMAIN and node.op_type in FUNCTIONS:
            self._take_batch_norm(node)
        elif node.domain == DOMAIN and node.op_type == conv_grad.NAME:
            self._take_gradients(node)
        elif node.domain:
            return
        elif node.op_type == "Conv":
            self._replace(node, convolution_last(self._model, node, self._maker(node), self._to_last))
        elif node.op_type in _ELEMENTWISE:
            self._take_elementwise(node)
        elif node.op_type in ("Concat", "Split"):
            self._take_along_channels(node)

    def _take_batch_norm(self, node: ir.Node) -> None:
        inputs, outputs, _ = signature(node.op_type)
        data = [index for index, name in enumerate(inputs) if QUANTITIES[name].shape == "data"]
        rank = _rank(node.inputs[data[0]]) if data else None
        if rank is None or "axes" not in inputs:
            return
        axes = node.inputs[list(inputs).index("axes")]
        constant = None if axes is None else constant_tensor(axes)
        if constant is None or sorted(axis % rank for axis in constant.numpy().tolist()) != [0, *range(2, rank)]:
            return
        self._read_last(node, data)
        node.replace_input_with(list(inputs).index("axes"), self._maker(node).int64([*range(rank - 1)]))
        for name, output in zip(outputs, node.outputs, strict=False):
            if QUANTITIES[name].shape == "data" and output.name:
                self._from_last(output, node)

    def _take_gradients(self, node: ir.Node) -> None:
        if read_attribute(node, conv_grad.CHANNELS_LAST, 0):
            return
        products = gradients_last(node, self._maker(node), self._to_last)
        if products:
            self._replace(node, products)
            standard: dict[str, int] = self._model.meta.setdefault(STANDARD, {})
            standard[conv_grad.NAME] = standard.get(conv_grad.NAME, 0) + 1
            return
        dY, x, w = node.inputs
        if dY is None or x is None or w is None or read_attribute(node, "group", 1) != 1:
            return
        rank = len(read_attribute(node, "kernel_shape", ())) + 2
        if {_rank(dY), _rank(x), _rank(w)} != {rank}:
            return
        self._read_last(node, range(len(conv_grad.INPUTS)))
        for name, output in zip(conv_grad.OUTPUTS, node.outputs, strict=False):
            if name in conv_grad.LAID_OUT and output.name:
                self._from_last(output, node)
        self._gradients.append(node)

    def _take_elementwise(self, node: ir.Node) -> None:
        ranks = {_rank(value) for value in self._arrays(node)}
        if len(ranks) != 1 or None in ranks or not any(value in self.last for value in node.inputs):
            return
        if ranks != {_rank(node.outputs[0])}:
            return
        self._read_last(
            node, [i for i, value in enumerate(node.inputs) if value is not None and not _is_single(value)]
        )
        self._from_last(node.outputs[0], node)

    def _take_along_channels(self, node: ir.Node) -> None:
        data = list(node.inputs if node.op_type == "Concat" else node.inputs[:1])
        ranks = {None if value is None else _rank(value) for value in data}
        if len(ranks) != 1 or None in ranks or not any(value in self.last for value in data):
            return
        (rank,) = ranks
        assert rank is not None, "that is checked above"  # noqa: S101
        if read_attribute(node, "axis", 0) % rank != 1:
            return
        self._read_last(node, range(len(data)))
        node.attributes["axis"] = ir.AttrInt64("axis", rank - 1)
        for output in node.outputs:
            self._from_last(output, node)

    def _replace(self, node: ir.Node, outputs: Sequence[tuple[ir.Value, ir.Value, bool]]) -> None:
        """Replaces outputs of a node by new values, which may have channels last; no outputs: the node stays."""
        for old, new, is_last in outputs:
            name, old.name = old.name, self._names.fresh(f"{old.name}_replaced")
            new.type, new.shape = old.type, old.shape
            new.name = name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            if is_last:
                producer = new.producer()
                assert producer is not None, "a rule has just made it"  # noqa: S101
                self._from_last(new, producer)
        if outputs:
            self._replaced.append(node)

    def _read_last(self, node: ir.Node, indices: Iterable[int]) -> None:
        """Lets a node read inputs in their forms with channels last."""
        for index in indices:
            value = node.inputs[index]
            if value is not None:
                node.replace_input_with(index, self._to_last(value, node))

    def _arrays(self, node: ir.Node) -> Iterator[ir.Value]:
        return (value for value in node.inputs if value is not None and not _is_single(value))

    def _maker(self, node: ir.Node) -> NodesBefore:
        return NodesBefore(node, self._names, node.name or node.op_type)

    def _to_last(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Returns the form of a value with channels last; a Transpose comes before its first reader."""
        if value in self.last:
            return self.last[value]
        if value not in self._transposed:
            rank = _rank(value) or 0
            name = self._names.fresh(f"{value.name}_channels_last")
            node = self._transpose(value, [0, *range(2, rank), 1], name)
            self._graph.insert_before(reader, node)
            self._transposed[value] = node.outputs[0]
        return self._transposed[value]

    def _from_last(self, output: ir.Value, node: ir.Node) -> None:
        """Gives the readers and the name of an output, which has channels last now, to a Transpose of it."""
        rank, name, shape = _rank(output) or 0, output.name, output.shape
        output.name = self._names.fresh(f"{name}_channels_last")
        transpose = self._transpose(output, [0, rank - 1, *range(1, rank - 1)], str(name))
        (first,) = transpose.outputs
        output.replace_all_uses_with(first, replace_graph_outputs=True)
        transpose.replace_input_with(0, output)
        first.shape, output.shape = shape, _permuted(shape, [0, *range(2, rank), 1])
        self._graph.insert_after(node, transpose)
        self.last[first] = output

    def _transpose(self, value: ir.Value, perm: list[int], name: str) -> ir.Node:
        attributes = {"perm": ir.AttrInt64s("perm", perm)}
        node = ir.node("Transpose", [value], attributes, name=self._names.fresh(f"{value.name}_Transpose"))
        (result,) = node.outputs
        result.name, result.type, result.shape = name, value.type, _permuted(value.shape, perm)
        return node

    def clean_up(self) -> None:
        """Removes what nothing reads; values with channels last get names back that are free then."""
        unused = [(first, output) for first, output in self.last.items() if not is_read(first)]
        remove_unused([*self._replaced, *(node for first, _ in unused if (node := first.producer()) is not None)])
        for first, output in unused:
            output.name = first.name
        to_channels_last(self._gradients, self._model)


def _rank(value: ir.Value | None) -> int | None:
    """The rank of data with channels; None if it is not known or smaller."""
    if value is None or value.shape is None or len(value.shape) < _LEAST_RANK:
        return None
    return len(value.shape)


def _is_single(value: ir.Value) -> bool:
    shape = static_shape(value)
    return shape is not None and all(size == 1 for size in shape)


def _permuted(shape: ir.Shape | None, perm: Sequence[int]) -> ir.Shape | None:
    return None if shape is None else ir.Shape([shape[axis] for axis in perm])
