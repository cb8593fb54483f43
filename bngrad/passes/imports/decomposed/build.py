"""The ops that replace batch norms, with their operands, as nodes that are in no graph yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.graph.batch_norm_terms import statistics_dtype
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.passes.imports.decomposed.batch_norm import dbias_of, dscale_of
from bngrad.passes.imports.decomposed.express import UnexpressedError, channels, singles
from bngrad.passes.imports.decomposed.polynomial import ONE, WHOLE, scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.algebra import Variance
    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.batch_norm import Backward, Forward, Group, Split, Statistics
    from bngrad.passes.imports.decomposed.express import Expressions
    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.polynomial import Polynomial


class Data(NamedTuple):
    """The data operand of an op."""

    value: ir.Value
    dtype: ir.DataType
    axes: list[int]
    layout: Layout
    channels: Layout
    """The layout of its parameters."""


class BuiltOp(NamedTuple):
    """A new op, and the forms of its outputs."""

    data: Data
    outputs: Sequence[ir.Value]
    forms: list[Polynomial | None]
    """The form of each output after the first; None for an output that replaces nothing."""
    unit: float = 1.0
    """The dY operand of a gradient, divided by its group's dY."""


class Builder:
    """Builds the ops of one graph, each once.

    Args:
        forms: The forms of its values.
        differentiable: Whether only the running statistics, which have a gradient, replace values.
    """

    def __init__(self, forms: Forms, *, differentiable: bool) -> None:
        self._forms, self._algebra, self._differentiable = forms, forms.algebra, differentiable
        self._made: dict[object, BuiltOp] = {}
        self.data: set[ir.Value] = set()
        """The values that ops take as data."""
        self.statistics: dict[int, BuiltOp] = {}
        """The proven forward op of each variance, by the variance's atom."""

    def result(self, make: Expressions, value: ir.Value, split: Split, axes: AxesOf) -> ir.Value:
        """A value that is a sum of batch norms."""
        layout = self._forms.layouts.of(value)
        assert layout is not None, "it has a form"  # noqa: S101
        dtype = self.dtype(value)
        terms = [self.forward(make, forward, dtype, layout, axes).outputs[0] for forward in split.forward]
        terms += [self.backward(make, dX.group, dtype, layout, axes, of=dX).outputs[0] for dX in split.backward]
        total = make.total([make.moved(term, layout) for term in terms], layout, dtype)
        for monomial, number in split.rest.items():
            term = make.product(monomial, abs(number), layout, dtype)
            total = make.declare(make.op("Add" if number > 0 else "Sub", total, term), layout, dtype)
        return total

    def forward(self, make: Expressions, norm: Forward, dtype: ir.DataType, like: Layout, axes: AxesOf) -> BuiltOp:
        """The op of a forward batch norm: Y, and its statistics if they are the batch's."""
        key = (norm.key, dtype)
        if key in self._made:
            return self._made[key]
        data = self._data(make, norm.statistics, dtype, like)
        variance = norm.statistics.variance
        if variance is None:
            built = self._inference(make, norm, data)
        else:
            built = self._training(make, norm, data, variance, axes)
        self._made[key] = built
        return built

    def confirm(self, split: Split, dtype: ir.DataType) -> None:
        """Lets gradients take their statistics from the forward ops of a value."""
        for forward in split.forward:
            if forward.statistics.variance is not None:
                built = self._made[(forward.key, dtype)]
                self.statistics.setdefault(forward.statistics.variance.atom, built)

    def _training(self, make: Expressions, norm: Forward, data: Data, variance: Variance, axes: AxesOf) -> BuiltOp:
        kind = statistics_dtype(data.value)
        parameters = [make.vector(form, data.channels, data.dtype) for form in (norm.scale, norm.bias)]
        zeros = [make.filled(0.0, data.channels, kind) for _ in range(2)]
        outputs = make.bngrad(
            "BatchNormalizationTraining",
            data.value,
            *parameters,
            *zeros,
            axes=axes(data.axes),
            epsilon=variance.epsilon,
            momentum=0.0,
            unbiased_running_var=0,
        )
        make.declare(outputs[0], data.layout, data.dtype)
        for output in outputs[1:]:
            make.declare(output, data.channels, kind)
        deviation = self._algebra.deviation(variance)
        mean, inv_std = norm.statistics.mean, norm.statistics.inv_std
        running = [mean, deviation, None, None]
        return BuiltOp(data, outputs, running if self._differentiable else [None, deviation, mean, inv_std])

    def _inference(self, make: Expressions, norm: Forward, data: Data) -> BuiltOp:
        """ONNX's own op, whose channels are dimension 1."""
        if norm.running_variance is None:
            raise UnexpressedError("its variance is not given")
        kept = tuple(axis for dimension in data.channels for axis in dimension)
        reduced = [data.layout[place] for place in data.axes]
        layout = (*reduced[:1], kept, *reduced[1:])
        x = make.moved(data.value, layout)
        forms = (norm.scale, norm.bias, norm.statistics.mean, norm.running_variance)
        parameters = [make.vector(form, (kept,), data.dtype) for form in forms]
        y = make.declare(make.op("BatchNormalization", x, *parameters, epsilon=norm.epsilon), layout, data.dtype)
        return BuiltOp(data, [make.moved(y, data.layout)], [])

    def backward(
        self,
        make: Expressions,
        group: Group,
        dtype: ir.DataType,
        like: Layout,
        axes: AxesOf,
        *,
        of: Backward | None = None,
    ) -> BuiltOp:
        """The op of a gradient: dX, dscale, dbias.

        Args:
            make: Builds the nodes.
            group: The gradient.
            dtype: The type of the data.
            like: The layout that is preferred.
            axes: Builds the constant for the reduced axes.
            of: The dX, if the graph has it.
        """
        key = group.dY, group.statistics.x, group.statistics.over, dtype
        if key in self._made:
            return self._made[key]
        data = self._data(make, group.statistics, dtype, like)
        dY, unit = make.data(group.dY, dtype, self._algebra.varies(group.statistics.x), data.layout)
        dY = make.moved(dY, data.layout)
        self.data.add(dY)
        scale = make.vector({ONE: 1.0} if of is None else scaled(of.scale, 1 / unit), data.channels, dtype)
        mean, inv_std = self._statistics(make, group.statistics, data, axes)
        training = group.statistics.variance is not None if of is None else of.training
        outputs = make.bngrad(
            "BatchNormalizationGrad",
            dY,
            data.value,
            scale,
            mean,
            inv_std,
            axes=axes(data.axes),
            training_mode=int(training),
        )
        make.declare(outputs[0], data.layout, dtype)
        for output in outputs[1:]:
            make.declare(output, data.channels, dtype)
        built = BuiltOp(data, outputs, [dscale_of(self._algebra, group), dbias_of(self._algebra, group)], unit)
        self._made[key] = built
        return built

    def _statistics(
        self, make: Expressions, statistics: Statistics, data: Data, axes: AxesOf
    ) -> tuple[ir.Value, ir.Value]:
        """The mean and inv_std of a gradient, from the forward op if there is one."""
        kind = statistics_dtype(data.value)
        if statistics.variance is None:
            mean = make.vector(statistics.mean, data.channels, kind)
            return mean, self._inverse(make, statistics.inv_std, data, kind)
        forward = self.statistics.get(statistics.variance.atom)
        if forward is not None:
            saved = [make.moved(make.typed(value, kind), data.channels) for value in forward.outputs[3:5]]
            return saved[0], saved[1]
        outputs = make.bngrad(
            "BatchNormalizationStatistics", data.value, axes=axes(data.axes), epsilon=statistics.variance.epsilon
        )
        for output in outputs:
            make.declare(output, data.channels, kind)
        return outputs[0], outputs[1]

    def _inverse(self, make: Expressions, form: Polynomial, data: Data, kind: ir.DataType) -> ir.Value:
        """A given inv_std: a leaf, or 1 / sqrt of a given sum."""
        ((monomial, number),) = form.items()
        roots = [atom for atom, exponent in monomial if exponent % WHOLE and self._algebra.base(atom)]
        if not roots:
            return make.vector(form, data.channels, kind)
        existing = make.existing(form, data.channels)
        if existing is not None:
            return make.moved(make.typed(existing, kind), data.channels)
        base = self._algebra.base(roots[0])
        if base is None or monomial != ((roots[0], -1),):
            raise UnexpressedError("inv_std is not the reciprocal root of one sum")
        root = make.declare(make.op("Sqrt", make.vector(base, data.channels, kind)), data.channels, kind)
        inverse = make.declare(make.op("Reciprocal", root), data.channels, kind)
        if number != 1.0:
            factor = make.filled(number, data.channels, kind)
            inverse = make.declare(make.op("Mul", inverse, factor), data.channels, kind)
        return inverse

    def _data(self, make: Expressions, statistics: Statistics, dtype: ir.DataType, like: Layout) -> Data:
        value, unit = make.data(statistics.x, dtype, self._algebra.varies(statistics.x), like)
        if unit != 1.0:
            raise UnexpressedError("the graph has no value for the data")
        layout = self._forms.layouts.of(value)
        assert layout is not None, "see `Expressions.data`"  # noqa: S101
        if any(set(dimension) & statistics.over and not set(dimension) <= statistics.over for dimension in layout):
            value = make.moved(value, singles(layout))
            layout = singles(layout)
        axes, kept = channels(layout, statistics.over)
        self.data.add(value)
        return Data(value, dtype, axes, layout, kept)

    def dtype(self, value: ir.Value) -> ir.DataType:
        """The type of the ops for a value.

        Raises:
            UnexpressedError: Batch norms do not support its type.
        """
        if value.dtype not in SUPPORTED_DTYPES:
            raise UnexpressedError("its type is unknown or unsupported")
        return value.dtype


if TYPE_CHECKING:
    from collections.abc import Callable

    AxesOf = Callable[[Sequence[int]], ir.Value]
