"""The layout of every value of a graph: see `axes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.node_reader import known_integers, read_attribute
from bngrad.passes.imports.decomposed.axes import Axes
from bngrad.passes.imports.decomposed.constants import uniform_number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.axes import Layout, Size

ELEMENTWISE = frozenset(
    (
        *(
            "Abs",
            "Add",
            "And",
            "Cast",
            "CastLike",
            "Clip",
            "Div",
            "Equal",
            "Greater",
            "GreaterOrEqual",
            "Identity",
        ),
        *("Less", "LessOrEqual", "Max", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Sqrt", "Sub"),
        *("Sum", "Where"),
    )
)
REDUCTIONS = frozenset(("ReduceMean", "ReduceSum", "ReduceSumSquare"))

_LIKE_INPUT = frozenset(
    (
        *("Celu", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish"),
        *("Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    )
)
"""Other ops whose output has the shape of their first input."""


class Layouts:
    """The layouts of the values of one graph, whose nodes are visited in order.

    Args:
        graph: A graph, a subgraph, or the graph of a function; its values have inferred types.
        kept: Initializers that are no constants, such as weights, though all their elements may be equal.
    """

    def __init__(self, graph: Iterable[ir.Node], kept: Collection[ir.Value]) -> None:
        self.axes = Axes()
        self._kept = kept
        self._filled: dict[ir.Value, float | None] = {}
        self.explained: set[ir.Node] = set()
        """The nodes whose rule gave the layout of their output."""
        self._reduced: list[Layout] = []
        """The dimensions that each reduction of the first dimension reduces, if it keeps others."""
        self._found: dict[ir.Value, Layout | None] = {}
        self._resolved: dict[ir.Value, Layout | None] | None = None
        for node in graph:
            self._visit(node)
        self._resolved = {}  # no axis becomes equal to another, or is split, from now on

    def of(self, value: ir.Value) -> Layout | None:
        """The layout of a value; None if its rank is unknown, or an axis occurs in two of its dimensions."""
        if self._resolved is None:
            return self._resolve(value)
        if value not in self._resolved:
            self._resolved[value] = self._resolve(value)
        return self._resolved[value]

    def _resolve(self, value: ir.Value) -> Layout | None:
        if value not in self._found:
            sizes = sizes_of(value)
            self._found[value] = None if sizes is None else self.axes.layout(sizes)
        layout = self._found[value]
        if layout is None:
            return None
        layout = self.axes.resolve(layout)
        axes = [axis for dimension in layout for axis in dimension]
        return layout if len(set(axes)) == len(axes) else None

    def filled(self, value: ir.Value | None) -> float | None:
        """The number that a constant is filled with; None for other values."""
        if value is None or value in self._kept:
            return None
        if value not in self._filled:
            self._filled[value] = uniform_number(value)
        return self._filled[value]

    def at(self, value: ir.Value) -> Layout | None:
        """The layout of an input at one reader: constants that are one number do not connect their readers."""
        if self.filled(value) is None:
            return self.of(value)
        sizes = sizes_of(value)
        return None if sizes is None else self.axes.layout(sizes)

    def batch_axes(self) -> frozenset[int]:
        """The axes that are reduced along with the first dimension of data: parameters do not have them."""
        dimensions = (self.axes.basic(one) for layout in self._reduced for one in layout)
        return frozenset(axis for one in dimensions for axis in one)

    def note_reduction(self, reduced: Layout, kept: Layout) -> None:
        """Takes note of a reduction whose first dimension is reduced."""
        if any(kept):
            self._reduced.append(reduced)

    def assign(self, value: ir.Value, layout: Layout) -> None:
        """Gives a new value its layout."""
        self._found[value] = layout
        if self._resolved is not None:
            self._resolved.pop(value, None)

    def _visit(self, node: ir.Node) -> None:
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        if rule is None or not node.outputs:
            return
        try:
            layout = rule(self, node)
        except (UnsupportedNodeError, IndexError):  # it is malformed, or its attributes are those of a function
            return
        if layout is not None:
            self._found[node.outputs[0]] = layout
            if node.op_type not in _LIKE_INPUT:
                self.explained.add(node)

    def of_input(self, node: ir.Node, index: int = 0) -> Layout | None:
        """The layout of an input."""
        value = node.inputs[index] if index < len(node.inputs) else None
        return None if value is None else self.at(value)


def sizes_of(value: ir.Value) -> list[Size] | None:
    """The shape of a value as numbers, symbols, and None; None if its rank is unknown, or it has no elements."""
    if value.shape is None or 0 in value.shape:
        return None
    return [size if isinstance(size, int) else size.value for size in value.shape]


def reduced_dimensions(node: ir.Node, rank: int) -> list[int] | None:
    """The dimensions that a reduction reduces; None if they are unknown."""
    axes: Sequence[int] | None
    if "axes" in node.attributes:
        axes = read_attribute(node, "axes", [0])
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = known_integers(node, 1)
        if axes is None:
            return None
    else:
        axes = []
    if not axes:
        return [] if read_attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted({axis % rank for axis in axes}) if all(-rank <= axis < rank for axis in axes) else None


def equation_of(node: ir.Node) -> tuple[list[str], str] | None:
    """The letters of an Einsum's inputs and of its output; None if it has an ellipsis or repeats a letter."""
    equation = read_attribute(node, "equation", "").replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if not arrow or "." in equation or len(terms) != len(node.inputs):
        return None
    return (terms, output) if all(len(set(term)) == len(term) for term in (*terms, output)) else None


def is_sum_by_matmul(known: Layouts, node: ir.Node) -> bool:
    """Whether a MatMul sums: one operand is filled with one number, or both are vectors in the end."""
    if any(known.filled(value) is not None for value in node.inputs):
        return True
    shapes = [None if value is None else sizes_of(value) for value in node.inputs]
    a, b = shapes
    return a is not None and b is not None and len(a) > 1 and len(b) > 1 and a[-2] == b[-1] == 1


def _elementwise(known: Layouts, node: ir.Node) -> Layout | None:
    values = [value for value in node.inputs if value is not None]
    if node.op_type in ("Cast", "CastLike", "Clip"):
        values = values[:1]
    layouts = [layout for value in values if (layout := known.at(value)) is not None]
    return known.axes.broadcast(layouts) if values and len(layouts) == len(values) else None


def _reduction(known: Layouts, node: ir.Node) -> Layout | None:
    layout = known.of_input(node)
    dimensions = None if layout is None else reduced_dimensions(node, len(layout))
    if layout is None or dimensions is None:
        return None
    if 0 in dimensions:
        kept = tuple(one for place, one in enumerate(layout) if place not in dimensions)
        known.note_reduction(tuple(layout[place] for place in dimensions), kept)
    keep = read_attribute(node, "keepdims", 1)
    return tuple(
        () if place in dimensions else one for place, one in enumerate(layout) if keep or place not in dimensions
    )


def _pool(known: Layouts, node: ir.Node) -> Layout | None:
    layout = known.of_input(node)
    return None if layout is None or len(layout) < 3 else (*layout[:2], *[()] * (len(layout) - 2))


def _reshape(known: Layouts, node: ir.Node) -> Layout | None:
    layout, sizes = known.of_input(node), sizes_of(node.outputs[0])
    return None if layout is None or sizes is None else known.axes.reshape(layout, sizes)


def _flatten(known: Layouts, node: ir.Node) -> Layout | None:
    layout = known.of_input(node)
    if layout is None:
        return None
    axis = read_attribute(node, "axis", 1)
    axis += len(layout) if axis < 0 else 0
    return sum(layout[:axis], ()), sum(layout[axis:], ())


def _transpose(known: Layouts, node: ir.Node) -> Layout | None:
    layout = known.of_input(node)
    if layout is None:
        return None
    return tuple(layout[axis] for axis in read_attribute(node, "perm", list(range(len(layout)))[::-1]))


def _unsqueeze(known: Layouts, node: ir.Node) -> Layout | None:
    layout, axes = known.of_input(node), _axes_of(node)
    if layout is None or axes is None:
        return None
    rank = len(layout) + len(axes)
    rest = iter(layout)
    added = {axis % rank for axis in axes}
    return tuple(() if place in added else next(rest) for place in range(rank))


def _squeeze(known: Layouts, node: ir.Node) -> Layout | None:
    layout, sizes = known.of_input(node), sizes_of(node.outputs[0])
    axes = _axes_of(node)
    if layout is None:
        return None
    if axes is None:
        return None if sizes is None else known.axes.reshape(layout, sizes)
    removed = {axis % len(layout) for axis in axes}
    if any(layout[axis] for axis in removed):
        return None  # its size is a symbol, and 1 in a run
    return tuple(one for place, one in enumerate(layout) if place not in removed)


def _axes_of(node: ir.Node) -> Sequence[int] | None:
    if "axes" in node.attributes:
        axes: Sequence[int] = read_attribute(node, "axes", [0])
        return axes
    return known_integers(node, 1) if len(node.inputs) > 1 else None


def _expand(known: Layouts, node: ir.Node) -> Layout | None:
    layout, sizes = known.of_input(node), sizes_of(node.outputs[0])
    if layout is None or sizes is None or len(sizes) < len(layout):
        return None
    padded = (*[()] * (len(sizes) - len(layout)), *layout)
    return tuple(one or known.axes.new(size) for one, size in zip(padded, sizes, strict=True))


def _tile(known: Layouts, node: ir.Node) -> Layout | None:
    """Only where it repeats dimensions of size 1, as an Expand does."""
    layout, sizes = known.of_input(node), sizes_of(node.outputs[0])
    if layout is None or sizes is None or len(layout) != len(sizes):
        return None
    for dimension, size in zip(layout, sizes, strict=True):
        extent = known.axes.extent(dimension)
        if dimension and (size is None or extent != known.axes.extent(known.axes.new(size))):
            return None
    return _expand(known, node)


def _matmul(known: Layouts, node: ir.Node) -> Layout | None:
    a, b = known.of_input(node, 0), known.of_input(node, 1)
    if a is None or b is None or not a or not b or not is_sum_by_matmul(known, node):
        return None
    left, right = (a if len(a) > 1 else ((), *a)), (b if len(b) > 1 else (*b, ()))
    if not known.axes.equate(left[-1], right[-2]):
        return None
    batch = known.axes.broadcast([left[:-2], right[:-2]]) if len(left) > 2 or len(right) > 2 else ()
    if batch is None:
        return None
    return (*batch, *(left[-2:-1] if len(a) > 1 else ()), *(right[-1:] if len(b) > 1 else ()))


def _einsum(known: Layouts, node: ir.Node) -> Layout | None:
    parsed = equation_of(node)
    if parsed is None:
        return None
    terms, output = parsed
    dimensions: dict[str, Any] = {}
    for index, term in enumerate(terms):
        layout = known.of_input(node, index)
        filled = known.filled(node.inputs[index]) is not None
        if layout is None or len(layout) != len(term) or not (filled or _divides(term, output)):
            return None
        for letter, dimension in zip(term, layout, strict=True):
            if not known.axes.equate(dimensions.setdefault(letter, dimension), dimension):
                return None
    return tuple(dimensions[letter] for letter in output) if set(output) <= set(dimensions) else None


def _divides(term: str, output: str) -> bool:
    """Whether an operand is summed, or a factor of the output: no product of matrices."""
    return set(output) <= set(term) or set(term) <= set(output)


def _constant_of_shape(known: Layouts, node: ir.Node) -> Layout | None:
    sizes = sizes_of(node.outputs[0])
    return None if sizes is None else known.axes.layout(sizes)


def _like_input(known: Layouts, node: ir.Node) -> Layout | None:
    return known.of_input(node)


_RULES: dict[str, Callable[[Layouts, ir.Node], Layout | None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(_LIKE_INPUT, _like_input),
    "GlobalAveragePool": _pool,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Expand": _expand,
    "Tile": _tile,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "ConstantOfShape": _constant_of_shape,
}
