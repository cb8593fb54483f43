"""Rounds activations and weights as the deployed model does, in float: QuantizeLinear and DequantizeLinear.

The scale of a weight follows the weight: the largest absolute value of each output channel is 127. So it does not
matter for the integers whether the batch norm is folded into the weight before or after rounding: a factor for
each channel changes only the scale. The range of an activation is a running statistic. Its scale is that of the
range, or a weight, which is 0 before the first step; the zero point is always that of the range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.constant_value import new_initializer
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import listed
from bngrad.graph.node_makers import NodesAfter, nodes_at_start
from bngrad.graph.node_reader import static_shape
from bngrad.passes.prepare.complete_types import infer_outputs, untyped_nodes
from bngrad.passes.quantize.biases import round_bias
from bngrad.passes.quantize.layers import channel_axis, is_layer, moves_numbers
from bngrad.passes.quantize.quantization import (
    LARGEST_WEIGHT,
    SMALLEST_SCALE,
    SMALLEST_WEIGHT_SCALE,
    UNSEEN,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bngrad.graph.builder import NodeMaker
    from bngrad.passes.quantize.quantization import Quantization

    Array = NDArray[np.generic]
    Stop = Callable[[NodeMaker, ir.Value], ir.Value]

_SHARE = 0.01
"""The share of a batch in a range, as in PyTorch's moving averages."""

_FLOAT = ir.DataType.FLOAT


def round_values(
    model: ir.Model,
    quantization: Quantization,
    *,
    stop: Stop | None = None,
    ranges: Mapping[str, Array] | None = None,
) -> dict[str, str]:
    """Rounds what is to be quantized. The ranges and learned scales become initializers.

    Args:
        model: A model in float; it is changed.
        quantization: What is rounded.
        stop: Makes a value that no gradient flows through, for training: then each batch changes the ranges. In
            inference they are given, and a tensor without one has that of the batch.
        ranges: The ranges and learned scales of an inference model, which may lack some of the tensors; by default
            none is known, and the model has all tensors.

    Returns:
        The outputs with the new ranges, by the names of the initializers.

    Raises:
        ModelError: The model lacks a value, or has one of the name of a range.
    """
    graph = model.graph
    values = {str(value.name): value for value in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    layers = {name: node for name in quantization.weights if (node := _layer(values.get(name))) is not None}
    missing = [name for name in quantization.ranges if name not in values]
    missing += [name for name in quantization.weights if name not in layers]
    if missing and ranges is None:
        raise ModelError(
            f"quantization needs {listed(missing)}, which training and inference do not compute in the same way; "
            "leave out --quantize (quantize=)"
        )
    if taken := [name for name in quantization.state if name in values or name in graph.initializers]:
        raise ModelError(
            f"the model has {listed(taken)}, which is to be the range or scale of a tensor; rename it"
        )
    rounding = _Rounding(graph, Names(model), quantization, stop)
    for tensor, name in quantization.ranges.items():
        if tensor in values:
            initial = {name: np.array(UNSEEN, np.float32)} if ranges is None else ranges
            limits, learned = new_initializer(graph, name, ir.tensor(initial[name])), None
            if (scale := quantization.scales.get(tensor)) is not None:
                number = np.array(0, np.float32) if ranges is None else ranges[scale]
                learned = new_initializer(graph, scale, ir.tensor(number))
            rounding.activation(values[tensor], limits, learned)
    for name, layer in layers.items():
        for index in quantization.weights[name]:
            rounding.weight(layer, index)
        if stop is None:
            round_bias(layer, rounding.names)
    for node in untyped_nodes(model):
        infer_outputs(node, model)
    return rounding.new_ranges


def _layer(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and is_layer(node) else None


class _Rounding:
    """Makes the nodes that round."""

    def __init__(self, graph: ir.Graph, names: Names, quantization: Quantization, stop: Stop | None) -> None:
        self._graph, self.names, self._quantization, self._stop = graph, names, quantization, stop
        self._weights: dict[tuple[ir.Value, int | None], ir.Value] = {}
        self.new_ranges: dict[str, str] = {}

    def activation(self, x: ir.Value, old: ir.Value, learned: ir.Value | None) -> None:
        """Rounds a tensor for all that read it; an input only for layers.

        Args:
            x: The tensor.
            old: Its range.
            learned: Its learned scale; None if it follows the range.
        """
        producer, make = x.producer(), self._maker(x)
        uses = [use for use in x.uses() if producer is not None or is_layer(use[0]) or moves_numbers(use[0])]
        scale, zero_point = self._parameters(make, self._range(make, x, old))
        if learned is not None:
            scale = self._learned(make, x, learned, scale)
        rounded = _rounded(make, x, scale, zero_point)
        for node, index in uses:
            node.replace_input_with(index, rounded)
        if producer is not None and x.is_graph_output():
            outputs = self._graph.outputs
            outputs[:] = [rounded if value is x else value for value in outputs]
            name, x.name = x.name, self.names.fresh(f"{x.name}/float")
            rounded.name = name

    def _maker(self, x: ir.Value) -> NodeMaker:
        """Returns a maker of nodes after a value, before all that read it."""
        producer, prefix = x.producer(), f"{x.name}/quantize"
        if producer is None:
            return nodes_at_start(self._graph, self.names, prefix)
        return NodesAfter(producer, self.names, prefix)

    def _range(self, make: NodeMaker, x: ir.Value, old: ir.Value) -> ir.Value:
        """Returns the range to round by, which always has 0."""
        flat = make.op("Reshape", x, make.int64([-1]))
        zero = make.constant([0], _FLOAT)
        low = make.op("Min", make.op("ReduceMin", flat), zero)
        high = make.op("Max", make.op("ReduceMax", flat), zero)
        of_batch = make.op("Concat", low, high, axis=0)
        index = (make.int64(0), make.int64(1))
        is_unseen = make.op("Greater", *(make.op("Gather", old, place) for place in index))
        if self._stop is None:
            return make.op("Where", is_unseen, of_batch, old)
        change = make.op("Mul", make.op("Sub", of_batch, old), make.constant(_SHARE, _FLOAT))
        new = make.op("Where", is_unseen, of_batch, make.op("Add", old, change))
        new.name = self.names.fresh(f"{old.name}_new")
        new.type, new.shape = old.type, old.shape
        self._graph.outputs.append(new)
        self.new_ranges[str(old.name)] = new.name
        return self._stop(make, new)

    def _parameters(self, make: NodeMaker, limits: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Returns the scale and the zero point of a range."""
        least, largest = self._quantization.limits
        scale, low = scale_of(make, limits, self._quantization)
        if self._quantization.symmetric:
            return scale, make.constant((least + largest) // 2, self._quantization.dtype)
        zero = make.op("Sub", make.constant(least, _FLOAT), make.op("Round", make.op("Div", low, scale)))
        bounds = (make.constant(number, _FLOAT) for number in (least, largest))
        return scale, make.cast(make.op("Clip", zero, *bounds), self._quantization.dtype)

    def _learned(self, make: NodeMaker, x: ir.Value, learned: ir.Value, of_range: ir.Value) -> ir.Value:
        """Returns a learned scale, or that of the range where there is none yet.

        Its gradient is multiplied by 1 / sqrt(elements of the tensor * largest integer), as in "Learned Step Size
        Quantization" (Esser et al., 2020).
        """
        scale = learned_scale(make, learned, of_range)
        if self._stop is None:
            return scale
        count = make.op("Cast", make.op("Size", x), to=int(_FLOAT))
        largest = make.constant(self._quantization.limits[1], _FLOAT)
        factor = make.op("Reciprocal", make.op("Sqrt", make.op("Mul", count, largest)))
        share = make.op("Mul", learned, factor)
        nothing = make.op("Sub", share, self._stop(make, share))  # 0, with the gradient
        return make.op("Add", self._stop(make, scale), nothing)

    def weight(self, layer: ir.Node, index: int) -> None:
        """Rounds a weight for a layer, by a scale for each output channel."""
        weight, axis = layer.inputs[index], channel_axis(layer, index)
        assert weight is not None, "a layer has both operands"  # noqa: S101
        if (weight, axis) not in self._weights:
            make = self._maker(weight)
            shape = static_shape(weight) or ()
            others = [] if axis is None else [place for place in range(len(shape)) if place != axis]
            axes = make.int64(others) if others else None
            largest = make.op("ReduceMax", make.op("Abs", weight), *([] if axes is None else [axes]), keepdims=0)
            scale = _scale(make, largest, LARGEST_WEIGHT, SMALLEST_WEIGHT_SCALE)
            scale = scale if self._stop is None else self._stop(make, scale)
            count = [] if axis is None else [shape[axis]]
            zero_point = make.constant(np.zeros(count), ir.DataType.INT8)
            attributes = {} if axis is None else {"axis": axis}
            self._weights[weight, axis] = _rounded(make, weight, scale, zero_point, **attributes)
        layer.replace_input_with(index, self._weights[weight, axis])


def scale_of(make: NodeMaker, limits: ir.Value, quantization: Quantization) -> tuple[ir.Value, ir.Value]:
    """Returns the scale of a range, and its least value."""
    least, largest = quantization.limits
    low, high = (make.op("Gather", limits, make.int64(index)) for index in (0, 1))
    if quantization.symmetric:
        width = make.op("Max", make.op("Neg", low), high)
        return _scale(make, width, largest - (least + largest) // 2), low
    return _scale(make, make.op("Sub", high, low), largest - least), low


def learned_scale(make: NodeMaker, learned: ir.Value, of_range: ir.Value) -> ir.Value:
    """Returns a learned scale; that of the range where it is 0."""
    scale = make.op("Where", make.op("Greater", learned, make.constant(0, _FLOAT)), learned, of_range)
    scale.type, scale.shape = ir.TensorType(_FLOAT), ir.Shape([])
    return scale


def _scale(make: NodeMaker, width: ir.Value, integers: int, smallest: float = SMALLEST_SCALE) -> ir.Value:
    quotient = make.op("Div", width, make.constant(integers, _FLOAT))
    return make.op("Max", quotient, make.constant(smallest, _FLOAT))


def _rounded(make: NodeMaker, x: ir.Value, scale: ir.Value, zero_point: ir.Value, **attributes: int) -> ir.Value:
    integers = make.op("QuantizeLinear", x, scale, zero_point, **attributes)
    result = make.op("DequantizeLinear", integers, scale, zero_point, **attributes)
    result.type, result.shape = x.type, x.shape
    return result
