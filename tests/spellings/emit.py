"""An expression as an ONNX model of primitives: ops, layouts, constants, sharing and order are drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from spellings import layouts
from spellings.expressions import REDUCTIONS, topological
from spellings.node_order import named_outputs, shuffled
from spellings.reductions import Reducing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from spellings.builder import Value
    from spellings.expressions import Node
    from spellings.layouts import Layout

ELEMENTWISE = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}
UNARY = {"neg": "Neg", "sqrt": "Sqrt", "recip": "Reciprocal", "abs": "Abs"}


class Emitter(Reducing):
    """Builds the model of one expression."""

    def emit(self, node: Node) -> Value:
        """The value of a node, new or an existing one."""
        value = self._made.get(node)
        # A mask is outside of the batch norm, so it is always the same value.
        if value is not None and (node.op == "gate" or self.rng.random() < self.sharing):
            return value
        method = getattr(self, f"_{node.op}", None)
        if node.op in ELEMENTWISE:
            value = self._binary(node)
        elif node.op in UNARY:
            name, layout = self.emit(node.args[0])
            value = self.op(UNARY[node.op], [name]), layout
        elif node.op in REDUCTIONS:
            value = self.reduction(node)
        else:
            assert method is not None, node.op
            value = method(node)
        self._made[node] = value
        return value

    def _leaf(self, node: Node) -> Value:
        layout = tuple((axis,) for axis in sorted(node.axes))
        if node.value not in self._data:
            self._data[node.value] = layout
            sizes = ["batch" if self.space.dynamic and axis == 0 else self.space.sizes[axis] for (axis,) in layout]
            self.inputs.append(helper.make_tensor_value_info(str(node.value), self.data_type, sizes))
        if self.data_type == self.compute:
            return str(node.value), layout
        self.note("16 bits cast to float")
        return self.op("Cast", [str(node.value)], to=self.compute), layout

    def _const(self, node: Node) -> Value:
        return self.number(node.value), ()

    def _fitting(self, node: Node, other: Layout) -> Value:
        """A number as an operand: of any shape that broadcasts to the other operand."""
        rank = len(other)
        form = self.rng.random()
        if form < 0.55 or node.op != "const" or not rank:
            return self.emit(node)
        if form < 0.75:
            self.note("constant of shape [1]")
            return self.number(node.value, 1), ((),)
        if form < 0.9:
            self.note("constant of the operand's rank")
            return self.number(node.value, rank), ((),) * rank
        if any(0 in dimension for dimension in other):
            if self.space.dynamic or form < 0.97:
                return self.emit(node)
            self.note("constant as a full array")
        else:
            self.note("constant as a full vector")
        sizes = [self.space.size(dimension) for dimension in other]
        return self.constant(np.full(sizes, node.value, self.dtype)), other

    def _count(self, _: Node) -> Value:
        if not self.space.dynamic and self.rng.random() < 0.7:
            return self.number(self.space.number), ()
        self.note("N computed from a shape")
        shape_of = self._full_leaf()
        reduced = sorted(self.space.reduced)
        form = self.rng.random()
        if form < 0.3:
            size = self.op("Size", [shape_of])
            kept = self.constant(np.array(self.space.size(self.space.kept), np.int64))
            if self.rng.random() < 0.5:
                return self._cast(self.op("Div", [size, kept])), ()
            return self.op("Div", [self._cast(size), self._cast(kept)]), ()
        shape = self.op("Shape", [shape_of])
        if form < 0.6:
            sizes = self.op("Gather", [shape, self.ints(*reduced)], axis=0)
            if self.rng.random() < 0.3:
                sizes = self._cast(sizes)
                return self._product(sizes), ()
            return self._cast(self._product(sizes)), ()
        product = None
        for axis in reduced:
            sliced = self.rng.random() < 0.3
            if sliced:
                ends = self.ints(axis), self.ints(axis + 1), self.ints(0)
                size = self.op("Slice", [shape, *ends])
                size = self.op("Squeeze", [size, self.ints(0)])
            elif self.opset >= 15 and self.rng.random() < 0.3:
                size = self.op("Shape", [shape_of], start=axis, end=axis + 1)
                size = self.op("Reshape", [size, self.constant(np.array([], np.int64))])
            else:
                size = self.op("Gather", [shape, self.constant(np.array(axis, np.int64))], axis=0)
            product = size if product is None else self.op("Mul", [product, size])
        return self._cast(product), ()

    def _product(self, sizes: str) -> str:
        if self.opset >= 18:
            return self.op("ReduceProd", [sizes, self.ints(0)], keepdims=0)
        return self.op("ReduceProd", [sizes], axes=[0], keepdims=0)

    def _cast(self, name: str) -> str:
        return self.op("Cast", [name], to=self.compute)

    def _full_leaf(self) -> str:
        """An input that is data."""
        return next(name for name, layout in self._data.items() if len(layout) == len(self.space.sizes))

    def _binary(self, node: Node) -> Value:
        if node.op == "add" and self.rng.random() < 0.15:
            return self._sum_of_all(node)
        args = node.args
        if any(arg.axes for arg in args) and any(arg.op == "const" for arg in args):
            other = next(self.emit(arg) for arg in args if arg.axes)
            values = [other if arg.axes else self._fitting(arg, other[1]) for arg in args]
        else:
            values = [self.emit(arg) for arg in args]
        kinds = [frozenset(layouts.order(layout)) for _, layout in values]
        names, layout = self._aligned(values, node, kinds)
        return self.op(ELEMENTWISE[node.op], names), layout

    def _sum_of_all(self, node: Node) -> Value:
        """A sum of several terms, as Sum."""
        self.note("Sum")
        terms = [*node.args]
        for i, term in reversed(list(enumerate(terms))):
            if term.op == "add" and self._uses.get(term, 1) == 1 and self.rng.random() < 0.8:
                terms[i : i + 1] = term.args
        values = [self.emit(term) for term in terms]
        names, layout = self._aligned(values, node, [term.axes for term in terms])
        return self.op("Sum", names), layout

    def _pow(self, node: Node) -> Value:
        name, layout = self.emit(node.args[0])
        form = self.rng.random()
        if node.value == int(node.value) and form < 0.2:
            self.note("Pow with an integer exponent")
            return self.op("Pow", [name, self.constant(np.array(int(node.value), np.int64))]), layout
        rank = self.rng.choice([0, 0, 1]) if layout else 0
        return self.op("Pow", [name, self.number(node.value, rank)]), layout

    def _identity(self, node: Node) -> Value:
        name, layout = self.emit(node.args[0])
        form = self.rng.random()
        if form < 0.6:
            return self.op("Identity", [name]), layout
        if form < 0.8 or self.compute == TensorProto.DOUBLE:
            self.note("Cast to the same type")
            return self._cast(name), layout
        self.note("Cast to double and back")
        return self._cast(self.op("Cast", [name], to=TensorProto.DOUBLE)), layout

    def _expand(self, node: Node) -> Value:
        value = self.emit(node.args[0])
        axes = node.args[0].axes
        view = self.view if self.rng.random() < 0.7 else layouts.draw_view(self.space, self.rng)
        if not layouts.fits(view, axes):
            view = layouts.singles(view)
        whole = layouts.part(view, axes)
        name = self.converted(value, whole if self.rng.random() < 0.5 else layouts.stripped(whole))
        if self.space.dynamic or (view == self.input_view and self.rng.random() < 0.3):
            view = self.input_view
            name = self.converted(value, layouts.part(view, axes))
            self.note("Expand to a computed shape")
            return self.op("Expand", [name, self.op("Shape", [self._full_leaf()])]), view
        self.note("Expand")
        return self.op("Expand", [name, self.ints(*(self.space.size(d) for d in view))]), view

    def _relu(self, node: Node) -> Value:
        name, layout = self.emit(node.args[0])
        zero = self.number(0)
        match self.rng.randrange(4):
            case 0:
                return self.op("Relu", [name]), layout
            case 1:
                return self.op("Max", self.rng.sample([name, zero], 2)), layout
            case 2:
                return self.op("Clip", [name, zero]), layout
            case _:
                return self.op("Where", [self.op("Greater", [name, zero]), name, zero]), layout

    def _gate(self, node: Node) -> Value:
        values = [self.emit(arg) for arg in node.args]
        zero = self.number(0)
        (a, z), layout = self._aligned(values, node, [arg.axes for arg in node.args])
        match self.rng.randrange(5):
            case 0:
                return self.op("Where", [self.op("Greater", [z, zero]), a, zero]), layout
            case 1:
                return self.op("Where", [self.op("LessOrEqual", [z, zero]), zero, a]), layout
            case 2:
                self.note("gate as a product with a mask")
                mask = self._cast(self.op("Greater", [z, zero]))
                return self.op("Mul", self.rng.sample([a, mask], 2)), layout
            case 3:
                return self.op("Where", [self.op("Less", [zero, z]), a, zero]), layout
            case _:
                mask = self.op("Not", [self.op("Greater", [z, zero])])
                return self.op("Where", [mask, zero, a]), layout

    # The model

    def model(self, outputs: Mapping[str, Node]) -> onnx.ModelProto:
        """The model of these outputs, in a random order of nodes."""
        for node in topological(outputs.values()):
            for arg in node.args:
                self._uses[arg] = self._uses.get(arg, 0) + 1
        for node in topological(outputs.values()):
            if node.op == "leaf" and (node.axes == self.space.all or self.rng.random() < 0.5):
                self._made[node] = self._leaf(node)
        values = []
        for name, node in sorted(outputs.items(), key=lambda _: self.rng.random()):
            value_name, layout = self.emit(node)
            last = self.converted((value_name, layout), tuple((axis,) for axis in sorted(node.axes)))
            op_type = {"to": self.data_type} if self.data_type != self.compute else {}
            self.nodes.append(
                helper.make_node("Cast" if op_type else "Identity", [last], [name], name=f"n_{name}", **op_type)
            )
            sizes = ["batch" if self.space.dynamic and a == 0 else self.space.sizes[a] for a in sorted(node.axes)]
            values.append(helper.make_tensor_value_info(name, self.data_type, sizes))
        nodes = shuffled(named_outputs(self.nodes, outputs, self.rng), outputs, self.rng)
        used = {name for node in nodes for name in node.input}
        constants = [initializer for initializer in self.initializers if initializer.name in used]
        graph = helper.make_graph(nodes, "spelled", self.inputs, values, constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8, producer_name="spellings"
        )
