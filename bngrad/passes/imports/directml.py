"""DirectML's batch-norm gradient -> BatchNormalizationGrad with frozen statistics.

The node form is the members of DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC in their order: five inputs, three
outputs, one attribute, spelled ``Epsilon`` or ``epsilon``::

    DML_BATCH_NORMALIZATION_GRAD(Input, InputGradient, Mean, Variance, Scale)    {Epsilon}
        -> (OutputGradient, OutputScaleGradient, OutputBiasGradient)
    =>  inv_std = 1 / sqrt(Variance + Epsilon)
        bngrad.BatchNormalizationGrad(InputGradient, Input, Scale, Mean, inv_std, axes)    {training_mode=0}

in any domain; the operator type's name, DML_OPERATOR_BATCH_NORMALIZATION_GRAD, will do too. In com.microsoft.dml,
the domain that ONNX Runtime has for DirectML, it may also be BatchNormalizationGrad. (The op of that name in
com.microsoft is ORT's own, with other inputs and another dX: see `imports/ort.py`.)

DirectML defines::

    OutputGradient      = InputGradient * (Scale / sqrt(Variance + Epsilon))
    OutputScaleGradient = sum(InputGradient * (Input - Mean) / sqrt(Variance + Epsilon))
    OutputBiasGradient  = sum(InputGradient)

so Mean and Variance are constants: training_mode 0 of ours. Summed over are the dimensions where Mean, Variance
and Scale have extent 1, whichever those are; these become axes. Our op takes parameters without them, so they are
squeezed, and the two gradients unsqueezed. A dimension where Input has extent 1 as well is summed over too, which
changes nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import inverse_std
from bngrad.opset.known_shapes import shape_text
from bngrad.opset.reference import MAX_RANK
from bngrad.passes.base import Context, ImportPass
from bngrad.passes.imports.node_form import NodeForm
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Iterator

    Extent = int | ir.SymbolicDim

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

_ADVICE = "give MeanTensor, VarianceTensor or ScaleTensor a static shape (and inline functions, which have none)"


class _Tensor(NamedTuple):
    """An input or output of a node, and what DirectML calls it."""

    role: str
    value: ir.Value

    def __str__(self) -> str:
        return f"{self.role} {self.value.name!r}"

    @property
    def dims(self) -> tuple[Extent, ...]:
        """Its shape, which must be known."""
        return tuple(self.value.shape or ())

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def sizes(self) -> str:
        """Its shape as text."""
        return shape_text(self.dims)


class ImportDirectmlPass(ImportPass):
    """Rewrites every DML_BATCH_NORMALIZATION_GRAD.

    Matches: 1 to 8 dimensions, any of which may be summed over, in float and float16.
    Refuses: what DirectML's tensor constraints rule out, as far as types and shapes are known; parameters' extents
    that are neither 1 nor the data's; and shapes that do not tell which dimensions to sum over.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `ImportPass`."""
        return node.op_type in _OP_TYPES or (node.domain, node.op_type) == _QUALIFIED

    def refusal(self, node: ir.Node) -> str | None:
        """See `ImportPass`."""
        rules = (_FORM.malformed, _type_violations, _dimension_count_violations, _size_violations, _axes_unknown)
        return next(itertools.chain.from_iterable(rule(node) for rule in rules), None)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `ImportPass`."""
        x, dy, mean, variance, scale = (value for value in node.inputs if value is not None)
        emit = Emitter(node, context)
        reduced = [d for d, over in enumerate(_summed_over(node) or ()) if over]
        axes = emit.axes(reduced)

        def without_axes(value: ir.Value) -> ir.Value:
            # Squeeze takes no axes for all axes of extent 1; here they are the same, but there is nothing to do.
            return emit.op("Squeeze", value, axes) if reduced else value

        # Data is float or float16, so statistics in float are right even where nothing says which.
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


# ---- what is refused ----


def _type_violations(node: ir.Node) -> Iterator[str]:
    """All eight tensors "must have the same DataType", FLOAT32 or FLOAT16."""
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
    """All eight "must have the same DimensionCount", 1 to 8."""
    known = _shaped(node)
    for tensor in known:
        if not 1 <= tensor.rank <= MAX_RANK:
            yield f"its {tensor} has DimensionCount {tensor.rank}; expected 1 to {MAX_RANK}"
        if tensor.rank != known[0].rank:
            yield (
                f"its {tensor} has DimensionCount {tensor.rank}; expected {known[0].rank} like its {known[0]}: "
                "each dimension to sum over has extent 1 in it (as in [1, C, 1, 1])"
            )


def _size_violations(node: ir.Node) -> Iterator[str]:
    """Data "must have the same Sizes", so must parameters; an extent of theirs is 1 or that of the data."""
    data, parameters = ([t for t in _shaped(node) if t.role in group] for group in (_DATA, _PARAMETERS))
    for group in (data, parameters):
        for one, other in itertools.combinations(group, 2):
            if any(map(_differ, one.dims, other.dims)):
                yield f"its {other} has the shape {other.sizes}; expected {one.sizes} like its {one}"
    for one, other in itertools.product(parameters, data):
        for d, (extent, of_data) in enumerate(zip(one.dims, other.dims, strict=True)):
            if extent != 1 and _differ(extent, of_data):
                expected = "1" if of_data == 1 else f"1 or {of_data}"
                yield f"its {one} has extent {extent} in dimension {d}; expected {expected} as for its {other}"


def _differ(extent: Extent, other: Extent) -> bool:
    return isinstance(extent, int) and isinstance(other, int) and extent != other


def _axes_unknown(node: ir.Node) -> Iterator[str]:
    """DirectML's tensors have static sizes, and only those of the parameters say what to sum over."""
    summed = _summed_over(node)
    if summed is None:
        yield f"the shape of no parameter is known, so nothing says which dimensions to sum over: {_ADVICE}"
    elif None in summed:
        tensor = next(tensor for tensor in _shaped(node) if tensor.role in _PARAMETERS)
        yield (
            f"its {tensor} has the shape {tensor.sizes}, which does not say whether dimension "
            f"{summed.index(None)} is one to sum over: {_ADVICE}"
        )


# ---- what is known of a node ----


def _tensors(node: ir.Node) -> list[_Tensor]:
    inputs = zip(_FORM.inputs, node.inputs, strict=False)
    outputs = zip(_FORM.outputs, node.outputs, strict=False)
    return [_Tensor(role, value) for role, value in (*inputs, *outputs) if value is not None]


def _shaped(node: ir.Node) -> list[_Tensor]:
    """The tensors whose shapes are known."""
    return [tensor for tensor in _tensors(node) if tensor.value.shape is not None]


def _summed_over(node: ir.Node) -> list[bool | None] | None:
    """Whether each dimension is summed over, None where that is not known; None if no parameter has a shape."""
    data, parameters = ([t.dims for t in _shaped(node) if t.role in group] for group in (_DATA, _PARAMETERS))
    if not parameters:
        return None
    return [
        _is_summed({dims[d] for dims in parameters}, {dims[d] for dims in data}) for d in range(len(parameters[0]))
    ]


def _is_summed(extents: set[Extent], of_data: set[Extent]) -> bool | None:
    """Whether a dimension is summed over, by all that is known of its extent in the parameters and in the data."""
    if 1 in extents | of_data:
        # A parameter has extent 1 or that of the data.
        return True
    # A parameter with the extent of the data, by its name, has nothing to sum over whatever that is.
    named = {extent for extent in extents & of_data if isinstance(extent, ir.SymbolicDim) and extent.value}
    if named or any(isinstance(extent, int) for extent in extents):
        return False
    return None
