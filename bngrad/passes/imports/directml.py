"""DirectML's batch-norm gradient -> BatchNormalizationGrad with frozen statistics.

The node has the members of DML_BATCH_NORMALIZATION_GRAD_OPERATOR_DESC in their order: five inputs, three outputs
and one attribute, spelled ``Epsilon`` or ``epsilon``.

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

from bngrad.opset.axes import MAX_RANK
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.passes.imports.checks import only_epsilon, only_epsilon_reasons
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import NUMBER, ForeignNode, ForeignOp, is_data
from bngrad.passes.imports.operands import Operands, typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bngrad.opset.known_shapes import KnownShape
    from bngrad.passes.base import Context

_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_ADVICE = "give MeanTensor, VarianceTensor or ScaleTensor a static shape; inline functions, whose values have none"


class _Tensor(NamedTuple):
    """An input or output of a node with its name in DirectML."""

    role: str
    quantity: str
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


class _Node(ForeignNode):
    """A node whose axes are the dimensions in which its parameters have size 1."""

    collapsed = False

    @property
    def axes(self) -> Sequence[int]:
        return [dimension for dimension, is_axis in enumerate(self.reduced() or ()) if is_axis]

    def tensors(self) -> list[_Tensor]:
        """Returns the inputs and outputs that the node has."""
        inputs = zip(self.op.inputs.items(), self.node.inputs, strict=False)
        outputs = zip(self.op.outputs.items(), self.node.outputs, strict=False)
        return [_Tensor(*names, value) for names, value in (*inputs, *outputs) if value is not None]

    def shaped(self) -> list[_Tensor]:
        """Returns the tensors whose shapes are known."""
        return [tensor for tensor in self.tensors() if tensor.value.shape is not None]

    def shaped_groups(self) -> tuple[list[_Tensor], list[_Tensor]]:
        """Returns the data and the parameters whose shapes are known."""
        shaped = self.shaped()
        return [t for t in shaped if is_data(t.quantity)], [t for t in shaped if not is_data(t.quantity)]

    def reduced(self) -> list[bool | None] | None:
        """Returns which dimensions are reduced, None where unknown; None if no parameter has a known shape."""
        data, parameters = ([tensor.shape for tensor in group] for group in self.shaped_groups())
        if not parameters:
            return None
        return [
            _is_axis({shape[d] for shape in parameters}, {shape[d] for shape in data})
            for d in range(len(parameters[0]))
        ]


def _is_axis(sizes: set[int | str | None], of_data: set[int | str | None]) -> bool | None:
    """Tests whether a dimension is an axis, from its sizes in the parameters and in the data; None if unknown."""
    if 1 in sizes | of_data:
        # A parameter has size 1 or the data's.
        return True
    # A parameter whose symbolic size is the data's is not reduced, whatever the size is.
    if any(isinstance(size, str) for size in sizes & of_data) or any(isinstance(size, int) for size in sizes):
        return False
    return None


# ---- reasons for a refusal ----


def _type_violations(node: _Node) -> Iterator[str]:
    """Checks that all eight tensors "must have the same DataType", FLOAT32 or FLOAT16."""
    first: tuple[_Tensor, ir.DataType] | None = None
    for tensor in node.tensors():
        dtype = tensor.value.dtype
        if dtype is None:
            continue
        if dtype not in _DTYPES:
            yield f"its {tensor} is {dtype.name.lower()}; expected float or float16"
        first = first or (tensor, dtype)
        if dtype != first[1]:
            yield f"its {tensor} is {dtype.name.lower()}; expected {first[1].name.lower()} like its {first[0]}"


def _dimension_count_violations(node: _Node) -> Iterator[str]:
    """Checks that all eight tensors "must have the same DimensionCount", 1 to 8."""
    shaped = node.shaped()
    for tensor in shaped:
        if not 1 <= tensor.rank <= MAX_RANK:
            yield f"its {tensor} has DimensionCount {tensor.rank}; expected 1 to {MAX_RANK}"
        if tensor.rank != shaped[0].rank:
            yield (
                f"its {tensor} has DimensionCount {tensor.rank}; expected {shaped[0].rank} like its {shaped[0]}: "
                "each dimension to sum over has size 1, as in [1, C, 1, 1]"
            )


def _size_violations(node: _Node) -> Iterator[str]:
    """Checks that all data has one shape, and all parameters one with each size either 1 or the data's."""
    data, parameters = node.shaped_groups()
    for group in (data, parameters):
        for first, second in itertools.combinations(group, 2):
            if not may_be_equal(first.shape, second.shape):
                got, expected = shape_text(second.shape), shape_text(first.shape)
                yield f"its {second} has shape {got}; expected {expected} like its {first}"
    for tensor, like in itertools.product(parameters, data):
        for dimension, (size, of_data) in enumerate(zip(tensor.shape, like.shape, strict=True)):
            if size != 1 and not may_be_equal((size,), (of_data,)):
                expected = "1" if of_data == 1 else f"1 or {of_data}"
                got = f"its {tensor} has size {size} in dimension {dimension}"
                yield f"{got}; expected {expected} as for its {like}"


def _unknown_axes(node: _Node) -> Iterator[str]:
    """Checks that the axes are known: the sizes of the parameters, static in DirectML, determine them."""
    reduced = node.reduced()
    if reduced is None:
        yield f"no parameter has a known shape, so the dimensions to sum over are unknown; {_ADVICE}"
    elif None in reduced:
        tensor = node.shaped_groups()[1][0]
        yield (
            f"its {tensor} has shape {shape_text(tensor.shape)}, so it is unknown whether to sum over dimension "
            f"{reduced.index(None)}; {_ADVICE}"
        )


# ---- the rewrite ----


class _Operands(Operands):
    """Operands whose parameters lack the axes."""

    def parameter(self, quantity: str, dtype: ir.DataType | None = None) -> ir.Value:
        value = super().parameter(quantity, dtype)
        return typed(self.emit.op("Squeeze", value, self.axes), value.dtype) if self.node.axes else value


def _rewrite(node: ForeignNode, context: Context) -> None:
    operands = _Operands(node, context)
    # Data is float or float16, so statistics in float are right even if the type is unknown.
    statistics = operands.frozen_statistics("mean", "variance", only_epsilon(node), ir.DataType.FLOAT)
    results = operands.apply("BatchNormalizationGrad", statistics, training_mode=0)
    for quantity in ("dscale", "dbias"):
        if quantity in node.outputs and node.axes:
            results[quantity] = operands.emit.op("Unsqueeze", results[quantity], operands.axes)
    operands.replace(results)


_GRADIENT = ForeignOp(
    "InputTensor: X, InputGradientTensor: dY, MeanTensor: mean, VarianceTensor: variance, ScaleTensor: scale "
    "-> OutputGradientTensor: dX, OutputScaleGradientTensor: dscale, OutputBiasGradientTensor: dbias",
    attributes={"Epsilon": NUMBER, "epsilon": NUMBER},
    checks=[only_epsilon_reasons, _type_violations, _dimension_count_violations, _size_violations, _unknown_axes],
    rewrite=_rewrite,
)


class ImportDirectmlPass(DialectPass):
    """Rewrites every DML_BATCH_NORMALIZATION_GRAD.

    Matches: data of float or float16 with 1 to 8 dimensions, any of which may be axes.
    Refuses: types and shapes that DirectML's tensor constraints forbid, as far as they are known; parameter sizes
    that are neither 1 nor the data's; and shapes from which the axes cannot be determined.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {
        "DML_BATCH_NORMALIZATION_GRAD": _GRADIENT,
        "DML_OPERATOR_BATCH_NORMALIZATION_GRAD": _GRADIENT,
        ("com.microsoft.dml", "BatchNormalizationGrad"): _GRADIENT,
    }
    NODE = _Node
