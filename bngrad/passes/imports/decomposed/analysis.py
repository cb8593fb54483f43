"""The values of a graph that are sums of batch norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.same_values import readers
from bngrad.passes.imports.decomposed.algebra import Algebra
from bngrad.passes.imports.decomposed.forms import Forms
from bngrad.passes.imports.decomposed.layouts import Layouts
from bngrad.passes.imports.decomposed.ops.moves import MOVES
from bngrad.passes.imports.decomposed.ops.record import op_of
from bngrad.passes.imports.decomposed.ops.reductions import REDUCTIONS, reduced_dimensions
from bngrad.passes.imports.decomposed.polynomial import add, as_number, atoms
from bngrad.passes.imports.decomposed.split_form import split

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.algebra import Over
    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.batch_norm import Forward, Group, Split
    from bngrad.passes.imports.decomposed.polynomial import Monomial, Polynomial


_FEWEST_TERMS = 3
"""The fewest terms in the form of a dX, and of a batch norm with a bias."""


class Analysis:
    """The forms of a graph, and the values that are sums of batch norms.

    Args:
        nodes: The nodes of a graph in order, whose values have inferred types.
        kept: Initializers that are no constants, see `Layouts`.
        inner: Whether a batch norm without scale and bias that only arithmetic reads is also a result.
        guards: See `Forms`.
    """

    def __init__(
        self, nodes: Collection[ir.Node], kept: Collection[ir.Value], *, inner: bool, guards: bool
    ) -> None:
        self.layouts = Layouts(nodes, kept)
        self.algebra = Algebra(self.layouts.axes)
        self.forms = Forms(self.layouts, self.algebra, guards=guards)
        self.forms.before_multiplying = self._finish_factor
        self.results: dict[ir.Value, Split] = {}
        """The values that are batch norms, or sums of batch norms and other data."""
        for node in nodes:
            self.forms.visit(node)
            for value in node.outputs:
                if value in self.forms.by_value:
                    self._finish(value)
        variances = {forward.statistics.variance for result in self.results.values() for forward in result.forward}
        for value in list(self.forms.by_value):
            match = self._inner(value, affine=not inner)
            if match is not None and not variances & {forward.statistics.variance for forward in match.forward}:
                variances |= {forward.statistics.variance for forward in match.forward}
                self.results[value] = match

    @property
    def groups(self) -> dict[object, Group]:
        """The gradients that have a dX, by their keys."""
        groups = [backward.group for result in self.results.values() for backward in result.backward]
        return {group.key: group for group in groups}

    def is_read_elsewhere(self, value: ir.Value) -> bool:
        """Returns whether something other than arithmetic reads a value, perhaps in another shape."""
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if current.is_graph_output():
                return True
            for node, _ in current.uses():
                if node not in self.layouts.explained or op_of(node).chooses:
                    return True
                if node.op_type in MOVES:
                    waiting.append(node.outputs[0])
        return False

    def reduces_batch(self, x: Monomial, over: Over) -> bool:
        """Returns whether the reduced axes are a batch norm's: the first dimension is among them, not all are."""
        leaves = [value for atom, _ in x if (value := self.algebra.leaf_of(atom)) is not None]
        value = max(leaves, key=lambda leaf: len(self.forms.varies(leaf)), default=None)
        layout = None if value is None else self.layouts.of(value)
        if not layout or value is None:
            return False
        if not layout[0]:
            return any(not source[0] and 0 in dimensions for source, dimensions in self._reductions(x))
        if not set(layout[0]) <= over:
            return False
        if not set().union(*layout) <= over:
            return True
        return () in layout and all(len(dimensions) < len(source) for source, dimensions in self._reductions(x))

    def _reductions(self, x: Monomial) -> Iterator[tuple[Layout, list[int]]]:
        """The layouts of the data's reductions, and the dimensions that each reduces."""
        for value in self.forms.with_form({x: 1.0}):
            layout = self.layouts.of(value)
            for node, _ in readers(value) if layout else ():
                if node.op_type in REDUCTIONS and node in self.layouts.explained and layout:
                    yield layout, reduced_dimensions(node, len(layout)) or []

    def _finish(self, value: ir.Value) -> None:
        """Makes a value a leaf if it is the result of batch norms.

        That is: if something other than arithmetic reads it, or if it has a scale and a bias and is not rounded
        to 16 bits next. A batch norm without them keeps its form: a gradient may be written with it.
        """
        read_elsewhere = self.is_read_elsewhere(value)
        match = self._split(value) if read_elsewhere or len(self.forms.by_value[value]) >= _FEWEST_TERMS else None
        whole = (
            match is not None and _is_whole(match) and not any(node.op_type == "Cast" for node, _ in value.uses())
        )
        if match is None or not (read_elsewhere or whole):
            return
        self.results[value] = match
        if match.backward or match.rest or any(_is_affine(forward) for forward in match.forward):
            self.forms.make_leaf(value)

    def _finish_factor(self, value: ir.Value, other: ir.Value) -> None:
        """The same for a dX that is multiplied by data, such as the mask of a ReLU, before that is done."""
        if value not in self.forms.by_value or len(self.forms.by_value[value]) < _FEWEST_TERMS:
            return
        match = self._split(value)
        if match is not None and any(
            backward.group.statistics.over & self.forms.varies(other) for backward in match.backward
        ):
            self.results[value] = match
            self.forms.make_leaf(value)

    def _inner(self, value: ir.Value, *, affine: bool) -> Split | None:
        """A forward batch norm that is part of a product, so that only arithmetic reads it."""
        outputs = [node.outputs[0] for node, _ in readers(value) if node.outputs]
        if value in self.results or all(self.forms.is_leaf(output) for output in outputs):
            return None
        match = self._split(value)
        if match is None or match.backward or (affine and not all(map(_is_affine, match.forward))):
            return None
        finished = all(self.forms.is_leaf(output) or self._split(output) is not None for output in outputs)
        return None if finished else match

    def _split(self, value: ir.Value) -> Split | None:
        form = self.forms.of(value)
        if len(form) < 2 or all(self.algebra.leaf_of(atom) is not None for atom in atoms(form)):
            return None
        match = split(self.algebra, form)
        if match is None:
            # The a * dY of a dX may be in a sum with other data.
            leaves = sorted(form.keys() & self.forms.plain_sums.keys())
            match = split(self.algebra, self._with_summands(form, leaves)) if leaves else None
            if match is not None:
                self.forms.opened.update(self.algebra.leaf_of(atom) for atom in atoms(leaves))
        if match is None:
            return None
        if all(self.reduces_batch(statistics.x, statistics.over) for statistics in match.statistics):
            return match
        return None

    def _with_summands(self, form: Polynomial, leaves: Collection[Monomial]) -> Polynomial:
        """A form with sums of data instead of the leaves that they are."""
        for leaf in leaves:
            factor = form[leaf]
            form = add(add(form, {leaf: factor}, -1.0), self.forms.plain_sums[leaf], factor)
        return form


def _is_affine(forward: Forward) -> bool:
    """Returns whether a batch norm has a scale or a bias."""
    return as_number(forward.scale) is None or bool(forward.bias)


def _is_whole(match: Split) -> bool:
    """Returns whether a value is one batch norm with scale and bias."""
    if match.backward or match.rest or len(match.forward) != 1:
        return False
    return as_number(match.forward[0].scale) is None and bool(match.forward[0].bias)
