"""Nodes, constants and changes of layout, each drawn among several ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from spellings import layouts

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    import onnx

    from spellings.expressions import Node, Space
    from spellings.layouts import Layout

    Value = tuple[str, Layout]

TYPES = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


class Builder:
    """Builds nodes, constants and changes of layout.

    Args:
        space: Of the expression.
        rng: Source of all choices.
        data_type: Of inputs and outputs; it is computed in float where they have 16 bits.
        opset: Of ai.onnx.
    """

    def __init__(self, space: Space, rng: random.Random, data_type: int, opset: int) -> None:
        self.space, self.rng, self.opset = space, rng, opset
        self.data_type = data_type
        self.compute = TensorProto.DOUBLE if data_type == TensorProto.DOUBLE else TensorProto.FLOAT
        self.dtype = TYPES[self.compute]
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.used: list[str] = []
        self.input_view: Layout = tuple((axis,) for axis in sorted(space.all))
        self.view = layouts.draw_view(space, rng) if rng.random() < 0.6 else self.input_view
        self.sharing = rng.choice([1.0, 1.0, 0.95, 0.8])
        """The probability that a value is used again and not computed again."""
        self.as_nodes = rng.choice([0.0, 1.0, 0.5])
        """The probability that a constant is a node."""
        self._made: dict[Node, Value] = {}
        self._uses: dict[Node, int] = {}
        self._names = 0
        self._converted: dict[tuple[str, Layout], str] = {}
        self._constants: dict[tuple, str] = {}
        self._data: dict[str, Layout] = {}

    # Nodes and constants

    def name(self) -> str:
        self._names += 1
        return f"t{self._names}"

    def op(self, op_type: str, inputs: Sequence[str], domain: str = "", **attributes) -> str:
        """Adds a node; returns the name of its output."""
        output = self.name()
        self.nodes.append(
            helper.make_node(op_type, inputs, [output], name=f"n_{output}", domain=domain, **attributes)
        )
        return output

    def constant(self, array: np.ndarray) -> str:
        """A constant, as a node or an initializer, new or an existing one."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key in self._constants and self.rng.random() < 0.7:
            return self._constants[key]
        if self.rng.random() < self.as_nodes:
            name = self.op("Constant", [], value=numpy_helper.from_array(array))
        else:
            name = f"c{len(self.initializers)}"
            self.initializers.append(numpy_helper.from_array(array, name))
        self._constants[key] = name
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float, rank: int = 0) -> str:
        return self.constant(np.full([1] * rank, value, self.dtype))

    def note(self, form: str) -> None:
        self.used.append(form)

    # Layouts

    def converted(self, value: Value, layout: Layout) -> str:
        """The value in another layout of the same axes."""
        name, now = value
        if now == layout:
            return name
        key = (name, layout)
        if key in self._converted and self.rng.random() < self.sharing:
            return self._converted[key]
        if layouts.order(now) != layouts.order(layout):
            name, now = self._transposed(name, now, layout)
        if now != layout:
            name = self._reshaped(name, now, layout)
        self._converted[key] = name
        return name

    def _transposed(self, name: str, now: Layout, layout: Layout) -> Value:
        self.note("Transpose")
        if sorted(now) != sorted(layout):
            bare = layouts.singles(now)
            if now != bare:
                name = self._reshaped(name, now, bare)
            now, layout = bare, layouts.singles(layout)
        rest = list(range(len(now)))
        perm = []
        for dimension in layout:
            position = next(i for i in rest if now[i] == dimension)
            rest.remove(position)
            perm.append(position)
        return self.op("Transpose", [name], perm=perm), layout

    def _reshaped(self, name: str, now: Layout, layout: Layout) -> str:
        """The same axes in the same order, in other dimensions."""
        squeezed = tuple(d for d in now if d) == layout
        unsqueezed = tuple(d for d in layout if d) == now
        form = self.rng.random()
        if squeezed and form < 0.5:
            self.note("Squeeze")
            axes = self._axes([i for i, d in enumerate(now) if not d], len(now))
            return self.op("Squeeze", [name, self.ints(*axes)])
        if unsqueezed and form < 0.5:
            self.note("Unsqueeze")
            axes = self._axes([i for i, d in enumerate(layout) if not d], len(layout))
            return self.op("Unsqueeze", [name, self.ints(*axes)])
        for axis in range(len(now) + 1):
            matrix = (tuple(layouts.order(now[:axis])), tuple(layouts.order(now[axis:])))
            if matrix == layout and form < 0.8:
                self.note("Flatten")
                return self.op("Flatten", [name], axis=axis)
        self.note("Reshape")
        return self.op("Reshape", [name, self.ints(*self._sizes(now, layout))])

    def _axes(self, axes: list[int], rank: int) -> list[int]:
        return [axis - rank for axis in axes] if self.rng.random() < 0.2 else axes

    def _sizes(self, now: Layout, layout: Layout) -> list[int]:
        sizes = [self.space.size(dimension) for dimension in layout]
        unknown = next((i for i, dimension in enumerate(layout) if 0 in dimension), None)
        if unknown is not None and (self.space.dynamic or self.rng.random() < 0.3):
            same = layout[unknown] == (0,) and unknown < len(now) and now[unknown] == (0,)
            sizes[unknown] = 0 if same and self.rng.random() < 0.5 else -1
        elif self.rng.random() < 0.3 and sizes:
            sizes[self.rng.randrange(len(sizes))] = -1
        return sizes

    def _aligned(
        self, values: Sequence[Value], node: Node, kinds: Sequence[frozenset[int]]
    ) -> tuple[list[str], Layout]:
        """Operands converted so that they can be broadcast, and the layout of the result."""
        axes = node.axes
        layout = self._common(values, axes, kinds)
        names, rank = [], 0
        for value, kind in zip(values, kinds, strict=True):
            now = value[1]
            whole = layouts.part(layout, kind)
            at_hand = (
                len(now) <= len(whole)
                and now == whole[len(whole) - len(now) :]
                and not any(whole[: len(whole) - len(now)])
            )
            if at_hand:
                target = now
            elif self.rng.random() < 0.4:
                target = layouts.stripped(whole)
            else:
                target = whole
            names.append(self.converted(value, target))
            rank = max(rank, len(target))
        return names, layout[len(layout) - rank :]

    def _common(self, values: Sequence[Value], axes: frozenset[int], kinds: Sequence[frozenset[int]]) -> Layout:
        at_hand = [layout for (_, layout), kind in zip(values, kinds, strict=True) if kind == axes]
        if at_hand and self.rng.random() < 0.9:
            layout = self.rng.choice(at_hand)
        elif axes == self.space.all:
            layout = self.view if self.rng.random() < 0.8 else layouts.draw_view(self.space, self.rng)
        else:
            layout = layouts.draw_for(axes, self.view, self.rng)
        if not all(layouts.fits(layout, kind) for kind in kinds):
            layout = tuple(single for d in layout for single in ([(axis,) for axis in d] or [()]))
        return layout
