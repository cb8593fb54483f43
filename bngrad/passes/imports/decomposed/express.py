"""New nodes for forms: the operands of batch-norm ops, and values in another layout.

The nodes are in no graph until the match that they belong to is proven.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.builder import NodeMaker
from bngrad.passes.imports.decomposed.ops.record import op_of
from bngrad.passes.imports.decomposed.polynomial import WHOLE, as_number, atoms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.fresh_names import Names
    from bngrad.passes.imports.decomposed.algebra import Over
    from bngrad.passes.imports.decomposed.axes import Dimension, Layout
    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.polynomial import Monomial, Polynomial

_MAX_CONSTANT = 1 << 24
"""Elements of a constant that a graph gets, one for each channel: a small file may declare any number of them."""


class UnexpressedError(UnsupportedNodeError):
    """A form cannot be built: the graph lacks a term of it, or a shape is unknown."""


class Expressions(NodeMaker):
    """Builds the nodes of one match.

    Args:
        forms: The forms of the existing values; it also records the layouts of new ones.
        names: Where names come from.
        prefix: The prefix of all names.
        nodes: The list that the nodes are added to.
    """

    def __init__(self, forms: Forms, names: Names, prefix: str, nodes: list[ir.Node]) -> None:
        super().__init__(names, prefix)
        self._forms, self._layouts = forms, forms.layouts
        self._nodes = nodes

    def _place(self, node: ir.Node) -> None:
        self._nodes.append(node)

    def declare(self, value: ir.Value, layout: Layout, dtype: ir.DataType | None) -> ir.Value:
        """Gives a new value its layout, shape and type."""
        self._layouts.assign(value, layout)
        if dtype is not None:
            value.dtype = dtype
        value.shape = ir.Shape(self.size(dimension) for dimension in layout)
        return value

    def size(self, dimension: Dimension) -> int | str | None:
        """The size of a dimension: a number, a symbol, or unknown."""
        if not dimension:
            return 1
        extent = self._layouts.axes.extent(dimension)
        if extent is None or (extent.symbols and (extent.number != 1 or len(extent.symbols) > 1)):
            return None
        return extent.symbols[0] if extent.symbols else extent.number

    def data(
        self, monomial: Monomial, dtype: ir.DataType, axes: Over, like: Layout | None = None
    ) -> tuple[ir.Value, float]:
        """A value that is a product of leaves times a number, and that number.

        Args:
            monomial: The product.
            dtype: The type to return it in.
            axes: The axes to return it with.
            like: The preferred layout, in which the product is computed if no value has it.

        Raises:
            UnexpressedError: There is no such value, and it cannot be computed.
        """
        allowed = atoms((monomial,))
        candidates = [pair for pair in self._forms.multiples(monomial, axes) if self._is_made_of(pair[0], allowed)]
        if not candidates and like is not None:
            product = self.product(monomial, 1.0, like, dtype)
            have = self._layouts.of(product)
            return self._expanded(product, like) if have != like else product, 1.0
        if not candidates:
            raise UnexpressedError("the graph has no value for the data")

        def rank(pair: tuple[ir.Value, float]) -> tuple[bool, bool, bool]:
            return pair[1] != 1.0, pair[0].dtype != dtype, self._layouts.of(pair[0]) != like

        value, factor = min(candidates, key=rank)
        return self.typed(value, dtype), factor

    def _is_made_of(self, value: ir.Value, allowed: set[int]) -> bool:
        """Returns whether some atoms suffice to compute a value: x + mean(x - mean) is x, but needs the mean."""
        waiting, seen = [value], set[ir.Value]()
        while waiting:
            current = waiting.pop()
            node = current.producer()
            if not atoms(self._forms.of(current)) <= allowed:
                return False
            if node is not None and current not in seen and not self._forms.is_leaf(current):
                waiting += [operand for operand in node.inputs[: op_of(node).operands] if operand is not None]
            seen.add(current)
        return True

    def typed(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """A value, cast to a type."""
        if value.dtype == dtype:
            return value
        layout = self._layouts.of(value)
        assert layout is not None, "it has a form"  # noqa: S101
        return self.declare(self.cast(value, dtype), layout, dtype)

    def moved(self, value: ir.Value, layout: Layout) -> ir.Value:
        """A value in another layout of the same axes.

        Raises:
            UnexpressedError: The shapes on the way are unknown.
        """
        have = self._layouts.of(value)
        assert have is not None, "it has a form"  # noqa: S101
        if have == layout:
            return value
        flat = [axis for dimension in have for axis in dimension]
        target = [axis for dimension in layout for axis in dimension]
        if set(flat) != set(target):
            raise UnexpressedError("a value is repeated along an axis")
        if flat != target:
            value = self._reshaped(value, tuple((axis,) for axis in flat))
            order = [flat.index(axis) for axis in target]
            single = tuple((axis,) for axis in target)
            value = self.declare(self.op("Transpose", value, perm=order), single, value.dtype)
        return self._reshaped(value, layout)

    def vector(self, form: Polynomial, layout: Layout, dtype: ir.DataType) -> ir.Value:
        """A form that is one number for each channel, in a layout of the channels.

        Args:
            form: The form, which must consist of leaves.
            layout: The layout to return.
            dtype: The type to return.

        Raises:
            UnexpressedError: It cannot be computed.
        """
        constant = as_number(form)
        if constant is not None:
            return self.filled(constant, layout, dtype)
        existing = self.existing(form, layout)
        if existing is not None:
            return self.moved(self.typed(existing, dtype), layout)
        terms = [self._term(monomial, value, layout, dtype) for monomial, value in form.items()]
        return self.total(terms, layout, dtype)

    def total(self, terms: Sequence[ir.Value], layout: Layout, dtype: ir.DataType) -> ir.Value:
        """The sum of one value or more."""
        result = terms[0]
        for term in terms[1:]:
            result = self.declare(self.op("Add", result, term), layout, dtype)
        return result

    def scaled(self, value: ir.Value, factor: Polynomial, layout: Layout, dtype: ir.DataType) -> ir.Value:
        """A value times a form that is one number for each channel.

        Raises:
            UnexpressedError: It cannot be computed.
        """
        if as_number(factor) == 1.0:
            return value
        return self.declare(self.op("Mul", value, self.vector(factor, layout, dtype)), layout, dtype)

    def product(self, monomial: Monomial, number: float, layout: Layout, dtype: ir.DataType) -> ir.Value:
        """A product of leaves, which can be broadcast to a layout.

        Raises:
            UnexpressedError: A factor is not a leaf.
        """
        result: ir.Value | None = None
        for atom, exponent in monomial:
            leaf = self._forms.algebra.leaf_of(atom)
            if leaf is None or exponent != WHOLE:
                raise UnexpressedError("a term added to it is not a product of values")
            axes = _axes_of(self._layouts.of(leaf) or ())
            partial = tuple(tuple(axis for axis in dimension if axis in axes) for dimension in layout)
            factor = self.moved(self.typed(leaf, dtype), partial)
            result = factor if result is None else self.declare(self.op("Mul", result, factor), layout, dtype)
        if result is None:
            return self._scalar(number, dtype)
        if number == 1.0:
            return result
        have = self._layouts.of(result)
        assert have is not None, "it was declared here"  # noqa: S101
        return self.declare(self.op("Mul", result, self._scalar(number, dtype)), have, dtype)

    def filled(self, number: float, layout: Layout, dtype: ir.DataType) -> ir.Value:
        """A constant in a layout.

        Raises:
            UnexpressedError: The size of a dimension is unknown, or the constant would be larger than a model.
        """
        sizes = self._numbers(layout)
        if math.prod(sizes) > _MAX_CONSTANT:
            raise UnexpressedError(f"a constant for each channel would have {math.prod(sizes)} elements")
        return self.declare(self.constant(np.full(sizes, number), dtype), layout, dtype)

    def existing(self, form: Polynomial, layout: Layout) -> ir.Value | None:
        """A value of a form that consists of leaves, along exactly the axes of a layout; None if there is none."""
        if any(self._forms.algebra.leaf_of(atom) is None for atom in atoms(form)):
            return None
        axes = _axes_of(layout)
        values = (value for value in self._forms.with_form(form) if self._forms.varies(value) == axes)
        return next(values, None)

    def _term(self, monomial: Monomial, value: float, layout: Layout, dtype: ir.DataType) -> ir.Value:
        result: ir.Value | None = None
        for atom, exponent in monomial:
            leaf = self._forms.algebra.leaf_of(atom)
            if leaf is None or exponent % WHOLE:
                raise UnexpressedError("a factor depends on the statistics of other data")
            operand = self._broadcast(self.typed(leaf, dtype), layout)
            for _ in range(abs(exponent) // WHOLE):
                if result is None and exponent < 0:
                    result = self.declare(self.op("Reciprocal", operand), layout, dtype)
                elif result is None:
                    result = operand
                else:
                    kind = "Mul" if exponent > 0 else "Div"
                    result = self.declare(self.op(kind, result, operand), layout, dtype)
        if result is None:
            return self.filled(value, layout, dtype)
        if value != 1.0:
            result = self.declare(self.op("Mul", result, self._scalar(value, dtype)), layout, dtype)
        return result

    def _scalar(self, value: float, dtype: ir.DataType) -> ir.Value:
        return self.declare(self.constant(value, dtype), (), dtype)

    def _broadcast(self, value: ir.Value, layout: Layout) -> ir.Value:
        """A value that varies along some axes of a layout, in it."""
        have = self._layouts.of(value)
        if have is None or not _axes_of(have) <= _axes_of(layout):
            raise UnexpressedError(f"{value.name!r} varies along other axes than the channels")
        if _axes_of(have) == _axes_of(layout):
            return self.moved(value, layout)
        partial = tuple(tuple(axis for axis in dimension if axis in _axes_of(have)) for dimension in layout)
        return self._expanded(self.moved(value, partial), layout)

    def _expanded(self, value: ir.Value, layout: Layout) -> ir.Value:
        return self.declare(self.op("Expand", value, self.int64(self._numbers(layout))), layout, value.dtype)

    def _numbers(self, layout: Layout) -> list[int]:
        sizes = [self.size(dimension) for dimension in layout]
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) < len(sizes):
            raise UnexpressedError("the number of channels is unknown")
        return numbers

    def _reshaped(self, value: ir.Value, layout: Layout) -> ir.Value:
        """A value in another layout whose axes have the same order."""
        have = self._layouts.of(value)
        if have is None or have == layout:
            return value
        if tuple(filter(None, have)) == tuple(filter(None, layout)):
            return self._with_units(value, have, layout)
        sizes = [self.size(dimension) for dimension in layout]
        unknown = [place for place, size in enumerate(sizes) if not isinstance(size, int)]
        if len(unknown) > 1:
            raise UnexpressedError("more than one dimension is unknown")
        target = [-1 if place in unknown else size for place, size in enumerate(sizes)]
        return self.declare(self.op("Reshape", value, self.int64(target)), layout, value.dtype)

    def _with_units(self, value: ir.Value, have: Layout, layout: Layout) -> ir.Value:
        """A value with other dimensions of size 1."""
        units = [place for place, dimension in enumerate(have) if not dimension]
        if units:
            bare = tuple(filter(None, have))
            value = self.declare(self.op("Squeeze", value, self.int64(units)), bare, value.dtype)
        units = [place for place, dimension in enumerate(layout) if not dimension]
        if units:
            value = self.declare(self.op("Unsqueeze", value, self.int64(units)), layout, value.dtype)
        return value


def channels(layout: Layout, over: Over) -> tuple[list[int], Layout]:
    """The dimensions of data that are reduced, and the layout of the channels.

    Dimensions of size 1 are reduced if the data has others that are not; else the second one is kept.

    Raises:
        UnexpressedError: A dimension has axes of both kinds, or all axes are reduced.
    """
    kept = [place for place, dimension in enumerate(layout) if dimension and not set(dimension) & over]
    if any(set(dimension) & over and not set(dimension) <= over for dimension in layout):
        raise UnexpressedError("a dimension has reduced and kept axes")
    if not kept:
        kept = [place for place, dimension in enumerate(layout) if place and not dimension][:1]
    if not kept:
        raise UnexpressedError("all axes are reduced")
    return [place for place in range(len(layout)) if place not in kept], tuple(layout[place] for place in kept)


def singles(layout: Layout) -> Layout:
    """A layout in which each axis has a dimension."""
    return tuple((axis,) for dimension in layout for axis in dimension)


def _axes_of(layout: Sequence[Dimension]) -> frozenset[int]:
    return frozenset(axis for dimension in layout for axis in dimension)
