"""Sums and means as nodes: one reduction, two, Einsum, MatMul with ones, or pooling."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import numpy as np

from spellings import layouts
from spellings.builder import Builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spellings.builder import Value
    from spellings.expressions import Node
    from spellings.layouts import Layout

LETTERS = "abcdefgh"
"""The letters of the axes in the equations of Einsum."""


class Reducing(Builder, abc.ABC):
    """Builds the nodes of reductions."""

    @abc.abstractmethod
    def emit(self, node: Node) -> Value:
        """The value of a node."""

    def reduction(self, node: Node) -> Value:
        """A sum or a mean."""
        axes = node.value
        a = node.args[0]
        form = self.rng.random()
        if node.op == "sum" and form < 0.12:
            factors = a.args if a.op == "mul" and form < 0.09 else (a,)
            return self._einsum(node, factors)
        square = (a.op == "mul" and a.args[0] is a.args[1]) or (a.op == "pow" and a.value == 2)
        if node.op == "sum" and square and form < 0.5:
            self.note("ReduceSumSquare")
            name, layout = self._reducible(self.emit(a.args[0]), axes)
            return self._reduce("ReduceSumSquare", name, layout, axes)
        name, layout = self._reducible(self.emit(a), axes)
        if node.op == "sum":
            if form < 0.2 and not (self.space.dynamic and 0 in axes):
                return self._matmul(node, (name, layout))
            return self._reduce("ReduceSum", name, layout, axes)
        if form < 0.3 and self._is_pooled(layout, axes):
            self.note("GlobalAveragePool")
            name = self.op("GlobalAveragePool", [name])
            layout = (*layout[:2], *[()] * (len(layout) - 2))
            axes = axes & set(layouts.order(layout))
            if not axes:
                return name, layout
        return self._reduce("ReduceMean", name, layout, axes)

    def _is_pooled(self, layout: Layout, axes: frozenset[int]) -> bool:
        spatial = set(layouts.order(layout[2:]))
        return len(layout) > 2 and bool(spatial) and spatial <= axes and all(layout)

    def _reducible(self, value: Value, axes: frozenset[int]) -> Value:
        """The value in a layout whose dimensions are reduced whole or not at all."""
        layout = value[1]
        if not layouts.fits(layout, axes):
            single = layouts.singles(layout)
            return self.converted(value, single), single
        if self.rng.random() < 0.12 and set(layouts.order(layout)) == self.space.all:
            other = layouts.draw_view(self.space, self.rng)
            if layouts.fits(other, axes):
                return self.converted(value, other), other
        return value

    def _reduce(self, op_type: str, name: str, layout: Layout, axes: frozenset[int]) -> Value:
        positions = [i for i, dimension in enumerate(layout) if dimension and set(dimension) <= axes]
        keep = self.rng.random() < 0.5
        numbers = self._axes(positions, len(layout))
        everything = len(positions) == len(layout)
        inputs, attributes = [name], {"keepdims": int(keep)}
        if everything and self.rng.random() < 0.5:
            pass
        elif op_type == "ReduceSum" or self.opset >= 18:
            inputs.append(self.ints(*numbers))
        else:
            attributes["axes"] = numbers
        output = self.op(op_type, inputs, **attributes)
        if keep:
            return output, tuple(() if i in positions else d for i, d in enumerate(layout))
        return output, tuple(d for i, d in enumerate(layout) if i not in positions)

    def _einsum(self, node: Node, factors: Sequence[Node]) -> Value:
        self.note("Einsum")
        terms, names = [], []
        for factor in factors:
            value = self.emit(factor)
            bare = layouts.singles(value[1])
            names.append(self.converted(value, bare))
            terms.append("".join(LETTERS[axis] for (axis,) in bare))
        kept = sorted(node.axes) if self.rng.random() < 0.8 else self.rng.sample(sorted(node.axes), len(node.axes))
        equation = f"{','.join(terms)}->{''.join(LETTERS[axis] for axis in kept)}"
        return self.op("Einsum", names, equation=equation), tuple((axis,) for axis in kept)

    def _matmul(self, node: Node, value: Value) -> Value:
        """The sum as a product with a vector or a matrix of ones."""
        self.note("MatMul with ones")
        rows, columns = tuple(sorted(node.value)), tuple(sorted(node.axes))
        ones = np.ones(self.space.size(rows), self.dtype)
        match self.rng.randrange(4):
            case 0:
                matrix = self.converted(value, (rows, columns))
                return self.op("MatMul", [self.constant(ones), matrix]), (columns,)
            case 1:
                matrix = self.converted(value, (rows, columns))
                return self.op("MatMul", [self.constant(ones[None]), matrix]), ((), columns)
            case 2:
                matrix = self.converted(value, (columns, rows))
                return self.op("MatMul", [matrix, self.constant(ones)]), (columns,)
            case _:
                matrix = self.converted(value, (columns, rows))
                return self.op("MatMul", [matrix, self.constant(ones[:, None])]), (columns, ())
