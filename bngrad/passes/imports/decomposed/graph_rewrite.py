"""The rewrite of one graph: builds the replacements of its batch norms, proves them, and inserts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import BngradError
from bngrad.graph.fresh_names import int64_constant
from bngrad.graph.nodes import remove_unused
from bngrad.passes.imports.decomposed.analysis import Analysis
from bngrad.passes.imports.decomposed.batch_norm import Backward, Split, batch_statistics
from bngrad.passes.imports.decomposed.build import Builder
from bngrad.passes.imports.decomposed.candidates import Candidate, lookalikes, name_of
from bngrad.passes.imports.decomposed.channel_values import (
    as_gradients,
    frozen_scale,
    gradient_groups,
    marks_of,
)
from bngrad.passes.imports.decomposed.cycles import values_in_cycle
from bngrad.passes.imports.decomposed.express import Expressions, UnexpressedError
from bngrad.passes.imports.decomposed.polynomial import as_number, atoms, equal, scaled
from bngrad.passes.imports.decomposed.proof import Proof, tolerance_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bngrad.graph.fresh_names import Names
    from bngrad.passes.imports.decomposed.algebra import Over, Variance
    from bngrad.passes.imports.decomposed.batch_norm import Group, Statistics
    from bngrad.passes.imports.decomposed.build import BuiltOp
    from bngrad.passes.imports.decomposed.polynomial import Monomial

_CYCLE = "its scale or bias depends on its statistics"


class GraphRewrite:
    """Recognizes the batch norms of one graph.

    Args:
        graph: The graph.
        names: The source of new names.
        kept: Initializers that are not constants.
        inner: See `Analysis`.
        forward_only: Whether to leave gradients alone.
    """

    def __init__(
        self, graph: ir.Graph, names: Names, kept: Collection[ir.Value], *, inner: bool, forward_only: bool
    ) -> None:
        self._graph, self._names, self._forward_only = graph, names, forward_only
        self._places = {node: place for place, node in enumerate(graph)}
        self._analysis = Analysis(list(graph), kept, inner=inner, guards=not forward_only)
        self._forms = self._analysis.forms
        self._builder = Builder(self._forms, differentiable=forward_only)
        self._axes: dict[tuple[int, ...], ir.Node] = {}
        self._nodes: list[ir.Node] = []
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._proofs: dict[tuple[Monomial, Over], Proof] = {}
        self._taken: dict[object, Candidate] = {}
        self.refused: list[Candidate] = []

    @property
    def has_roots(self) -> bool:
        """True if a sum is taken to a power, as by a root, without which nothing is normalized."""
        algebra = self._analysis.algebra
        return bool(algebra.variances) or any(True for _ in algebra.bases())

    def run(self) -> list[Candidate]:
        """Rewrites the graph, and returns the batch norms that were replaced."""
        # Forward first: gradients take their statistics from there.
        for value, split in sorted(self._analysis.results.items(), key=lambda item: bool(item[1].backward)):
            if not (self._forward_only and split.backward):
                self._take(value, split)
        with_atom = self._values_by_atom()
        if not self._forward_only:
            for group in gradient_groups(self._analysis):
                marked = (with_atom.get(atom, ()) for atom in marks_of(self._analysis, group))
                for value in dict.fromkeys(value for values in marked for value in values):
                    self._take_gradient(value, group)
        algebra = self._analysis.algebra
        for atom, built in self._builder.statistics.items():
            sums = (mark for mark in atoms(built.forms[2] or {}) if algebra.sum_of(mark) is not None)
            marked = (with_atom.get(mark, ()) for mark in (atom, *sums))
            for value in dict.fromkeys(value for values in marked for value in values):
                self._take_statistic(value, built, algebra.variance_of[atom])
        self._break_cycles()
        self.refused += lookalikes(self._analysis)
        self._commit()
        return list(self._taken.values())

    def _values_by_atom(self) -> dict[int, list[ir.Value]]:
        """The values, in the order of the graph, by the atoms of their forms."""
        values: dict[int, list[ir.Value]] = {}
        for value in list(self._forms.by_value):
            if value not in self._analysis.results:
                for atom in atoms(self._forms.of(value)):
                    values.setdefault(atom, []).append(value)
        return values

    def _take(self, value: ir.Value, split: Split) -> None:
        """Replaces a value that is a sum of batch norms."""
        make, kind = self._maker(value), _kind(split.statistics[0], forward=bool(split.forward))
        try:
            dtype = self._builder.dtype(value)
            new = self._builder.result(make, value, split, self._axes_of)
        except UnexpressedError as error:
            self._refuse(value, kind, str(error))
            return
        if self._put(value, new, split.statistics[0], kind):
            self._builder.confirm(split, dtype)
            for forward in split.forward:
                kind = _kind(forward.statistics, forward=True)
                self._taken.setdefault(forward.key, Candidate(name_of(value), kind, True, ""))
            for backward in split.backward:
                self._take_group(value, backward.group)

    def _take_gradient(self, value: ir.Value, group: Group) -> None:
        """Replaces a value that is an output of a gradient, other than the dX of training."""
        form = self._forms.of(value)
        if value in self._replaced or not form:
            return
        make, frozen, split = self._maker(value), None, None
        if group.statistics.variance is None and self._analysis.is_read_elsewhere(value):
            frozen = frozen_scale(self._analysis, form, group)
        kind = _kind(group.statistics, forward=False)
        try:
            if frozen is not None:
                split = Split([], [Backward(group, frozen[0], training=False)], frozen[1])
            result = self._builder.result
            new = result(make, value, split, self._axes_of) if split else self._combined(make, value, group)
        except UnexpressedError as error:
            self._refuse(value, kind, str(error))
            return
        if new is not None and self._put(value, new, group.statistics, kind):
            self._take_group(value, group)

    def _take_group(self, value: ir.Value, group: Group) -> None:
        training = group.key in self._analysis.groups
        kind = "backward" if training else _kind(group.statistics, forward=False)
        self._taken.setdefault(group.key, Candidate(name_of(value), kind, True, ""))

    def _combined(self, make: Expressions, value: ir.Value, group: Group) -> ir.Value | None:
        """A value by the dscale and the dbias of a gradient; None if it must not be replaced."""
        gradients = as_gradients(self._analysis, self._forms.of(value), group)
        layout = self._forms.layouts.of(value)
        if gradients is None or layout is None:
            return None
        factors = [as_number(gradients.factor), as_number(gradients.shift)]
        exact = not gradients.rest and sorted(map(str, factors)) == ["0.0", "1.0"]
        if not exact and not self._analysis.is_read_elsewhere(value):
            return None
        dtype = self._builder.dtype(value)
        built = self._builder.backward(make, group, dtype, layout, self._axes_of)
        terms = [
            make.scaled(make.moved(output, layout), scaled(factor, 1 / built.unit), layout, dtype)
            for output, factor in zip(built.outputs[1:], (gradients.factor, gradients.shift), strict=True)
            if factor
        ]
        if gradients.rest:
            terms.append(make.vector(gradients.rest, layout, dtype))
        return make.total(terms, layout, dtype)

    def _take_statistic(self, value: ir.Value, built: BuiltOp, variance: Variance) -> None:
        """Replaces a value that is a statistic of a forward op."""
        form, layout = self._forms.of(value), self._forms.layouts.of(value)
        if value in self._replaced or layout is None or value.dtype is None:
            return
        for output, output_form in zip(built.outputs[1:], built.forms, strict=True):
            if output_form is None or not equal(form, output_form) or self._depends(output.producer(), value):
                continue
            make = self._maker(value)
            try:
                new = make.moved(make.typed(output, value.dtype), layout)
            except UnexpressedError:
                return
            self._put(value, new, batch_statistics(self._analysis.algebra, variance), "forward")
            return

    def _put(self, value: ir.Value, new: ir.Value, statistics: Statistics, kind: str) -> bool:
        """Replaces a value if the replacement is proven; returns whether it is."""
        key = statistics.x, statistics.over
        if key not in self._proofs:
            self._proofs[key] = Proof(self._forms, *key)
        try:
            difference = self._proofs[key].difference(value, new)
        except (ArithmeticError, AssertionError, BngradError, LookupError, TypeError, ValueError) as error:
            self._refuse(value, kind, f"it cannot be run in float64: {error!r}")
            return False
        if difference > tolerance_of(value):
            self._refuse(value, kind, f"it differs from the op by {difference:.1e} in float64")
            return False
        if self._depends(new.producer(), value):
            self._refuse(value, kind, _CYCLE)
            return False
        self._replaced[value] = new
        return True

    def _depends(self, node: ir.Node | None, value: ir.Value) -> bool:
        """Returns whether the parameters of a new op are computed from a value that it replaces.

        Its data cannot be: the value is computed from that.
        """
        data = self._builder.data
        place = self._place(value)
        seen: set[ir.Value] = set()
        waiting = [] if node is None else [operand for operand in node.inputs if operand is not None]
        while waiting:
            current = waiting.pop()
            if current is value:
                return True
            maker = current.producer()
            # Nodes before the value do not read it; new ones have no place.
            if current not in seen and current not in data and maker is not None and self._place(current) >= place:
                waiting += [operand for operand in maker.inputs if operand is not None]
            seen.add(current)
        return False

    def _place(self, value: ir.Value) -> int:
        """The place of a value in the order of the graph: -1 for inputs, and after all others for new ones."""
        maker = value.producer()
        return -1 if maker is None else self._places.get(maker, len(self._places))

    def _refuse(self, value: ir.Value, kind: str, reason: str) -> None:
        self.refused.append(Candidate(name_of(value), kind, False, reason))

    def _maker(self, value: ir.Value) -> Expressions:
        return Expressions(self._forms, self._names, str(value.name), self._nodes)

    def _axes_of(self, axes: Sequence[int]) -> ir.Value:
        """The constant for reduced axes."""
        key = tuple(axes)
        if key not in self._axes:
            name = self._names.fresh("bngrad_axes_" + "_".join(map(str, key)))
            self._axes[key] = int64_constant(key, name)
        return self._axes[key].outputs[0]

    def _break_cycles(self) -> None:
        """Drops replacements that depend on each other: statistics first."""
        while cycle := values_in_cycle(self._replaced):
            results = self._analysis.results
            value = next((candidate for candidate in cycle if candidate not in results), cycle[0])
            del self._replaced[value]
            if value in results:
                name = name_of(value)
                self._taken = {key: candidate for key, candidate in self._taken.items() if candidate.name != name}
                self._refuse(
                    value, _kind(results[value].statistics[0], forward=bool(results[value].forward)), _CYCLE
                )

    def _commit(self) -> None:
        """Puts the new nodes into the graph, and removes those that nothing reads."""
        new_nodes = [*self._axes.values(), *self._nodes]
        self._graph.extend(new_nodes)
        makers = [maker for old in self._replaced if (maker := old.producer()) is not None]
        named: set[ir.Value] = set()
        for old, new in self._replaced.items():
            self._replace(old, new, named)
        remove_unused([*makers, *new_nodes])
        if self._replaced:
            self._graph.sort()

    def _replace(self, old: ir.Value, new: ir.Value, named: set[ir.Value]) -> None:
        """Replaces a value by a new one, which takes over its name."""
        if new in named and not old.is_graph_output():
            old.replace_all_uses_with(new)
            return
        if new in named:
            copy = ir.node("Identity", [new], name=self._names.fresh(f"{old.name}_Identity"))
            self._graph.append(copy)
            new = copy.outputs[0]
        named.add(new)
        name, old.name = old.name, self._names.fresh(f"{old.name}_replaced")
        new.name, new.type, new.shape = name, old.type or new.type, old.shape or new.shape
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(new, replace_graph_outputs=True)


def _kind(statistics: Statistics, *, forward: bool) -> str:
    frozen = "frozen " if statistics.variance is None else ""
    return f"{frozen}{'forward' if forward else 'backward'}"
