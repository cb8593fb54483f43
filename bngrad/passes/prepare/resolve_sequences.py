"""Replaces what reads sequences and optionals by the tensors in them, where these are known.

::

    s = SequenceConstruct(x, y)      SequenceAt(s, 1)                 ->    y
    s = SequenceInsert(s, z, 0)      SequenceLength(s)                ->    3
    s = SequenceErase(s, -1)         ConcatFromSequence(s, axis=0)    ->    Concat(z, x, axis=0)
    o = Optional(x)                  OptionalHasElement(o)            ->    true
                                     OptionalGetElement(o)            ->    x

Values of a sequence or optional type have no gradient rules; the tensors do. A SequenceMap is done for each
tensor. A position that is computed is one of tensors of equal shapes. A sequence that an If creates, or that is an
input of the model, stays; so does what reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.body_nodes import move_before, set_name
from bngrad.graph.constant_value import constant_value
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import ORIGIN, describe, owner, remove_unused
from bngrad.graph.same_values import origin
from bngrad.graph.subgraphs import detach, nodes_of, subgraphs
from bngrad.passes.prepare.split_sequences import SplitParts, scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bngrad.graph.fresh_names import Names

    Tensors = list[ir.Value]


def resolve_sequences(graph: ir.Graph, names: Names) -> bool:
    """Replaces the nodes that read known sequences and optionals; returns whether there were any.

    Args:
        graph: The main graph of a model without functions, with types; it is changed.
        names: The source of new names.
    """
    resolver = _Resolver(names)
    nodes = [node for node in nodes_of(graph) if not node.domain]
    replaced = [node for node in nodes if node.op_type in resolver.readers and resolver.replace(node)]
    if replaced:
        rest = [node for node in nodes if node.graph is not None and resolver.creates(node)]
        remove_unused(rest)
        detach(inner for node in rest if node.graph is None for body in subgraphs(node) for inner in body)
    return bool(replaced)


class _Resolver:
    """The tensors of the sequences of a graph."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._tensors: dict[ir.Value, Tensors | None] = {}
        self._parts: dict[ir.Node, SplitParts | None] = {}
        self.readers: Mapping[str, Callable[[ir.Node], ir.Value | None]] = {
            "ConcatFromSequence": self._concatenated,
            "OptionalGetElement": _element,
            "OptionalHasElement": self._has_element,
            "SequenceAt": self._at,
            "SequenceLength": self._length,
        }
        """The functions that return the tensor that a node outputs, by its op; None if it is unknown."""
        self._creators: Mapping[str, Callable[[ir.Node], Sequence[Tensors] | None]] = {
            "OptionalGetElement": self._got,
            "SequenceConstruct": _constructed,
            "SequenceEmpty": lambda _: [[]],
            "SequenceErase": self._erased,
            "SequenceInsert": self._inserted,
            "SequenceMap": self._mapped,
            "SplitToSequence": self._all_parts,
        }
        """The functions that return the tensors of the outputs of a node, by its op; None if they are unknown."""

    def creates(self, node: ir.Node) -> bool:
        """Returns whether the output of a node is a sequence or an optional."""
        type_ = node.outputs[0].type if node.outputs else None
        return node.op_type in self._creators or isinstance(type_, ir.SequenceType | ir.OptionalType)

    def replace(self, node: ir.Node) -> bool:
        """Replaces a node by the tensor that it outputs; returns whether it could."""
        value = self.readers[node.op_type](node)
        if value is None:
            return False
        (old,) = node.outputs
        old.type, old.shape = value.type or old.type, value.shape or old.shape
        copy = ir.node("Identity", [value], name=node.name)
        copy.metadata_props.update(node.metadata_props)
        ir.convenience.replace_nodes_and_values(owner(node), node, [node], [copy], [old], copy.outputs)
        return True

    def _before(self, node: ir.Node) -> NodesBefore:
        return NodesBefore(node, self._names, node.name or node.op_type)

    def _concatenated(self, node: ir.Node) -> ir.Value | None:
        tensors, axis, make = self._read(node), node.attributes["axis"].as_int(), self._before(node)
        parts = None if tensors is not None or node.inputs[0] is None else self._split(_creator(node.inputs[0]))
        if parts is not None:
            return parts.joined(make, axis, new_axis=bool(read_attribute(node, "new_axis", 0)))
        if tensors and read_attribute(node, "new_axis", 0):
            tensors = [make.op("Unsqueeze", tensor, make.int64([axis])) for tensor in tensors]
        return make.op("Concat", *tensors, axis=axis) if tensors else None

    def _length(self, node: ir.Node) -> ir.Value | None:
        tensors, make = self._read(node), self._before(node)
        parts = None if tensors is not None or node.inputs[0] is None else self._split(_creator(node.inputs[0]))
        if parts is not None:
            return parts.length(make)
        return None if tensors is None else make.int64(len(tensors))

    def _at(self, node: ir.Node) -> ir.Value | None:
        sequence, index = node.inputs[0], _position(node, 1)
        parts = None if sequence is None else self._split(_creator(sequence))
        if index is None or (parts is not None and parts.count is None and (index < 0 or parts.is_single)):
            return self._at_computed(node, parts)  # where the node is: a branch not taken may read beyond the end
        if parts is not None:
            return parts.part(index)
        tensors = self._read(node)
        return tensors[index] if tensors is not None and -len(tensors) <= index < len(tensors) else None

    def _at_computed(self, node: ir.Node, parts: SplitParts | None) -> ir.Value | None:
        """Returns the tensor at a position that is computed, where all tensors have one shape."""
        position, make = node.inputs[1], self._before(node)
        if position is None or parts is not None:
            return None if position is None or parts is None else parts.at(make, position)
        tensors = self._read(node)
        shapes = [tensor.shape for tensor in tensors or ()]
        if not tensors or any(shape != shapes[0] for shape in shapes) or not _is_known(shapes[0]):
            return None
        stacked = make.op("Concat", *(make.op("Unsqueeze", x, make.int64([0])) for x in tensors), axis=0)
        return make.op("Gather", stacked, scalar(make, position), axis=0)

    def _has_element(self, node: ir.Node) -> ir.Value | None:
        value = node.inputs[0] if node.inputs else None
        is_full = value is not None and _content(value) is not None
        creator = None if value is None else _creator(value)
        if value is None or is_full or (creator is not None and creator.op_type == "Optional"):
            return self._before(node).constant(is_full, ir.DataType.BOOL)
        return None

    def tensors(self, sequence: ir.Value) -> Tensors | None:
        """Returns the tensors of a sequence; None if they are unknown."""
        sequence = origin(sequence)
        if sequence not in self._tensors:
            node = _creator(sequence)
            create = None if node is None else self._creators.get(node.op_type)
            sequences = None if node is None or create is None else create(node)
            for output, tensors in zip(() if node is None else node.outputs, sequences or (), strict=False):
                self._tensors[output] = tensors
            self._tensors.setdefault(sequence, None)
        return self._tensors[sequence]

    def _read(self, node: ir.Node) -> Tensors | None:
        """Returns the tensors of the sequence that a node reads; None if they are unknown."""
        sequence = node.inputs[0] if node.inputs else None
        return None if sequence is None else self.tensors(sequence)

    def _got(self, node: ir.Node) -> Sequence[Tensors] | None:
        content = None if node.inputs[0] is None else _content(node.inputs[0])
        tensors = None if content is None else self.tensors(content)
        return None if tensors is None else [tensors]

    def _inserted(self, node: ir.Node) -> Sequence[Tensors] | None:
        tensors, value = self._read(node), node.inputs[1]
        position = None if tensors is None else _position(node, 2, len(tensors))
        if tensors is None or value is None or position is None or abs(position) > len(tensors):
            return None
        tensors = list(tensors)
        tensors.insert(position, value)
        return [tensors]

    def _erased(self, node: ir.Node) -> Sequence[Tensors] | None:
        tensors, position = self._read(node), _position(node, 1, -1)
        if tensors is None or position is None or not -len(tensors) <= position < len(tensors):
            return None
        tensors = list(tensors)
        del tensors[position]
        return [tensors]

    def _split(self, node: ir.Node | None) -> SplitParts | None:
        """Returns the parts of a SplitToSequence of data of known rank; None for another node."""
        if node is None or node.op_type != "SplitToSequence":
            return None
        if node not in self._parts:
            x = node.inputs[0]
            self._parts[node] = SplitParts(node, x, self._names) if x is not None and x.shape else None
        return self._parts[node]

    def _all_parts(self, node: ir.Node) -> Sequence[Tensors] | None:
        parts = self._split(node)
        if parts is None or parts.count is None:
            return None
        return [[value for index in range(parts.count) if (value := parts.part(index)) is not None]]

    def _mapped(self, node: ir.Node) -> Sequence[Tensors] | None:
        """Copies the body of a SequenceMap for each tensor; returns the tensors of its outputs."""
        body = next(subgraphs(node), None)
        operands = [operand for value in node.inputs if (operand := self._operand(value)) is not None]
        lengths = {len(operand) for operand in operands if isinstance(operand, list)}
        if body is None or len(lengths) != 1 or not len(operands) == len(node.inputs) == len(body.inputs):
            return None
        steps = []
        for step in range(lengths.pop()):
            values = [operand[step] if isinstance(operand, list) else operand for operand in operands]
            steps.append(self._copied(node, body, values))
        return [[outputs[index] for outputs in steps] for index in range(len(node.outputs))]

    def _operand(self, value: ir.Value | None) -> Tensors | ir.Value | None:
        """Returns an input of a SequenceMap: the tensors of a sequence, or a tensor; None if it is unknown."""
        is_tensor = value is not None and isinstance(value.type, ir.TensorType)
        return value if value is None or is_tensor else self.tensors(value)

    def _copied(self, node: ir.Node, body: ir.Graph, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """Copies a body before its node, with other values for its inputs; returns its outputs."""
        copy = body.clone(allow_outer_scope_values=True)
        for value, operand in zip(copy.inputs, operands, strict=True):
            value.replace_all_uses_with(operand, replace_graph_outputs=True)
        outputs = list(copy.outputs)
        copy.outputs.clear()
        for inner in nodes_of(copy):
            inner.meta[ORIGIN] = describe(inner)
            inner.name = self._names.fresh(str(inner.name))
        move_before(node, copy, self._rename)
        return outputs

    def _rename(self, value: ir.Value) -> None:
        if value.name:
            set_name(value, self._names.fresh(value.name))


def _is_known(shape: ir.Shape | None) -> bool:
    return shape is not None and all(isinstance(size, int) or size.value is not None for size in shape)


def _creator(value: ir.Value) -> ir.Node | None:
    """Returns the node of the default domain that a value comes from, through copies."""
    node = origin(value).producer()
    return node if node is not None and not node.domain else None


def _content(value: ir.Value) -> ir.Value | None:
    """Returns the tensor or sequence in an optional; None if there is none, or it is unknown.

    A tensor or sequence is its own, as from opset 18 on.
    """
    node = _creator(value)
    if node is not None and node.op_type == "Optional":
        return node.inputs[0] if node.inputs else None
    return value if isinstance(value.type, ir.TensorType | ir.SequenceType) else None


def _element(node: ir.Node) -> ir.Value | None:
    """Returns the tensor that an OptionalGetElement reads; None for a sequence."""
    content = None if node.inputs[0] is None else _content(node.inputs[0])
    return content if content is not None and isinstance(content.type, ir.TensorType) else None


def _constructed(node: ir.Node) -> Sequence[Tensors]:
    return [[value for value in node.inputs if value is not None]]


def _position(node: ir.Node, index: int, default: int | None = None) -> int | None:
    """Returns the constant that an input of a node is, None if it is computed; the default if it is left out."""
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        return default
    tensor = constant_value(value)
    return None if tensor is None or tensor.size != 1 else int(tensor.numpy().item())
