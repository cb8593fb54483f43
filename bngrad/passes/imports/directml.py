"""DirectML's batch-norm gradient -> BatchNormalizationGrad with frozen statistics.

The node has the members of DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC in their order: five inputs, three outputs
and one attribute, spelled ``Epsilon`` or ``epsilon``::

    DML_BATCH_NORMALIZATION_GRAD(Input, InputGradient, Mean, Variance, Scale)    {Epsilon}
        -> (OutputGradient, OutputScaleGradient, OutputBiasGradient)
    =>  inv_std = 1 / sqrt(Variance + Epsilon)
        bngrad.BatchNormalizationGrad(InputGradient, Input, Scale, Mean, inv_std, axes)    {training_mode=0}

The domain may be any. The name of the operator type, DML_OPERATOR_BATCH_NORMALIZATION_GRAD, is accepted too, as is
BatchNormalizationGrad in com.microsoft.dml, ONNX Runtime's domain for DirectML. The op of that name in
com.microsoft is ORT's own, with other inputs and another dX: see `imports/ort.py`.

DirectML defines::

    OutputGradient      = InputGradient * (Scale / sqrt(Variance + Epsilon))
    OutputScaleGradient = sum(InputGradient * (Input - Mean) / sqrt(Variance + Epsilon))
    OutputBiasGradient  = sum(InputGradient)

Mean and Variance are thus constants, as with training_mode 0 of ``bngrad``. The axes are the dimensions in which
Mean, Variance and Scale have size 1. The parameters of the ``bngrad`` op lack these dimensions, so the parameters
are squeezed and the two gradients unsqueezed. A dimension in which Input has size 1 too counts as an axis, which
does not change the result.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import inverse_std
from bngrad.opset.axes import MAX_RANK
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.node_form import NodeForm
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.opset.known_shapes import KnownShape

_OP_TYPES = ("DML_BATCH_NORMALIZATION_GRAD", "DML_OPERATOR_BATCH_NORMALIZATION_GRAD")
_QUALIFIED = ("com.microsoft.dml", "BatchNormalizationGrad")
_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

_FORM = NodeForm(
    inputs=("InputTensor", "InputGradientTensor", "MeanTensor", "VarianceTensor", "ScaleTensor"),
    outputs=("OutputGradientTensor", "OutputScaleGradientTensor", "OutputBiasGradientTensor"),
    epsilon_names=("Epsilon", "epsilon"),
)
_DATA = ("InputTensor", "InputGradientTensor", "OutputGradientTensor")
_PARAMETERS = (
    "MeanTensor",
    "VarianceTensor",
    "ScaleTensor",
    "OutputScaleGradientTensor",
    "OutputBiasGradientTensor",
)

_ADVICE = "give MeanTensor, VarianceTensor or ScaleTensor a static shape; inline functions, whose values have none"


class _Tensor(NamedTuple):
    """An input or output of a node with its name in DirectML."""

    role: str
    value: ir.Value

    def __str__(self) -> str:
        return f"{self.role} {self.value.name!r}"

    @property
    def shape(self) -> KnownShape:
        """The shape, which must be known."""
        return known_shape(self.value) or ()

    @property
    def rank(self) -> int:
        return len(self.shape)


class ImportDirectmlPass(RewritePass):
    """Rewrites every DML_BATCH_NORMALIZATION_GRAD.

    Matches: data of float or float16 with 1 to 8 dimensions, any of which may be axes.
    Refuses: types and shapes that DirectML's tensor constraints forbid, as far as they are known; parameter sizes
    that are neither 1 nor the data's; and shapes from which the axes cannot be determined.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return node.op_type in _OP_TYPES or (node.domain, node.op_type) == _QUALIFIED

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        rules = (_FORM.violations, _type_violations, _dimension_count_violations, _size_violations, _unknown_axes)
        return next(itertools.chain.from_iterable(rule(node) for rule in rules), None)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        x, dy, mean, variance, scale = (value for value in node.inputs if value is not None)
        emit = Emitter(node, context)
        reduced = [dimension for dimension, is_axis in enumerate(_reduced(node) or ()) if is_axis]
        axes = emit.axes(reduced)

        def without_axes(value: ir.Value) -> ir.Value:
            return emit.op("Squeeze", value, axes) if reduced else value

        # Data is float or float16, so statistics in float are right even if the type is unknown.
        inv_std = inverse_std(emit, variance, _FORM.epsilon(node), ir.DataType.FLOAT)
        dx, dscale, dbias = emit.bngrad(
            "BatchNormalizationGrad",
            dy,
            x,
            without_axes(scale),
            without_axes(emit.cast(mean, ir.DataType.FLOAT)),
            without_axes(inv_std),
            axes=axes,
            training_mode=0,
        )
        used = {i for i, value in enumerate(node.outputs) if value.name}
        with_axes = {
            i: emit.op("Unsqueeze", d, axes) for i, d in ((1, dscale), (2, dbias)) if i in used and reduced
        }
        results = {0: dx, 1: dscale, 2: dbias} | with_axes
        emit.replace({i: value for i, value in results.items() if i in used})


# ---- reasons for a refusal ----


def _type_violations(node: ir.Node) -> Iterator[str]:
    """Checks that all eight tensors "must have the same DataType", FLOAT32 or FLOAT16."""
    first: tuple[_Tensor, ir.DataType] | None = None
    for tensor in _tensors(node):
        dtype = tensor.value.dtype
        if dtype is None:
            continue
        if dtype not in _DTYPES:
            yield f"its {tensor} is {dtype.name.lower()}; expected float or float16"
        first = first or (tensor, dtype)
        if dtype != first[1]:
            yield f"its {tensor} is {dtype.name.lower()}; expected {first[1].name.lower()} like its {first[0]}"


def _dimension_count_violations(node: ir.Node) -> Iterator[str]:
    """Checks that all eight tensors "must have the same DimensionCount", 1 to 8."""
    known = _shaped_tensors(node)
    for tensor in known:
        if not 1 <= tensor.rank <= MAX_RANK:
            yield f"its {tensor} has DimensionCount {tensor.rank}; expected 1 to {MAX_RANK}"
        if tensor.rank != known[0].rank:
            yield (
                f"its {tensor} has DimensionCount {tensor.rank}; expected {known[0].rank} like its {known[0]}: "
                "each dimension to sum over has size 1, as in [1, C, 1, 1]"
            )


def _size_violations(node: ir.Node) -> Iterator[str]:
    """Checks that all data has one shape, and all parameters one with each size either 1 or the data's."""
    data, parameters = _known_shapes(node)
    for group in (data, parameters):
        for one, other in itertools.combinations(group, 2):
            if not may_be_equal(one.shape, other.shape):
                got, expected = shape_text(other.shape), shape_text(one.shape)
                yield f"its {other} has shape {got}; expected {expected} like its {one}"
    for one, other in itertools.product(parameters, data):
        for dimension, (size, of_data) in enumerate(zip(one.shape, other.shape, strict=True)):
            if size != 1 and not may_be_equal((size,), (of_data,)):
                expected = "1" if of_data == 1 else f"1 or {of_data}"
                yield f"its {one} has size {size} in dimension {dimension}; expected {expected} as for its {other}"


def _unknown_axes(node: ir.Node) -> Iterator[str]:
    """Checks that the axes are known: the sizes of the parameters, static in DirectML, determine them."""
    reduced = _reduced(node)
    if reduced is None:
        yield f"no parameter has a known shape, so the dimensions to sum over are unknown; {_ADVICE}"
    elif None in reduced:
        tensor = _known_shapes(node)[1][0]
        yield (
            f"its {tensor} has shape {shape_text(tensor.shape)}, so it is unknown whether to sum over dimension "
            f"{reduced.index(None)}; {_ADVICE}"
        )


# ---- what is known of a node ----


def _tensors(node: ir.Node) -> list[_Tensor]:
    inputs = zip(_FORM.inputs, node.inputs, strict=False)
    outputs = zip(_FORM.outputs, node.outputs, strict=False)
    return [_Tensor(role, value) for role, value in (*inputs, *outputs) if value is not None]


def _shaped_tensors(node: ir.Node) -> list[_Tensor]:
    """Returns the tensors whose shapes are known."""
    return [tensor for tensor in _tensors(node) if tensor.value.shape is not None]


def _known_shapes(node: ir.Node) -> tuple[list[_Tensor], list[_Tensor]]:
    """Returns the data and the parameters whose shapes are known."""
    known = _shaped_tensors(node)
    return [t for t in known if t.role in _DATA], [t for t in known if t.role in _PARAMETERS]


def _reduced(node: ir.Node) -> list[bool | None] | None:
    """Whether each dimension is an axis, None where unknown; None alone if no parameter has a known shape."""
    data, parameters = ([tensor.shape for tensor in group] for group in _known_shapes(node))
    if not parameters:
        return None
    return [
        _is_axis({shape[d] for shape in parameters}, {shape[d] for shape in data})
        for d in range(len(parameters[0]))
    ]


def _is_axis(sizes: set[int | str | None], of_data: set[int | str | None]) -> bool | None:
    """Whether a dimension is an axis, from its sizes in the parameters and in the data; None if unknown."""
    if 1 in sizes | of_data:
        # A parameter has size 1 or the data's.
        return True
    # A parameter whose symbolic size is the data's is not reduced, whatever the size is.
    if any(isinstance(size, str) for size in sizes & of_data) or any(isinstance(size, int) for size in sizes):
        return False
    return None
