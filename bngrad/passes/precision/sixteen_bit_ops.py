"""The ops that compute in 16 bits under mixed precision; every other op computes in float32.

========================= =================================================================================
kind                      computes in 16 bits
========================= =================================================================================
product                   always: its operands are cast, weights included; devices sum it in float32
moves, selects, adds few  where its data have 16 bits already, so that no cast is needed between products
batch norm                the same, but its parameters and statistics stay float32
========================= =================================================================================

Not in the table are ops whose result or gradient sums many terms outside of a product (means of images,
broadcasting), and functions that enlarge a relative error or leave the range of float16: exp, log, powers,
softmax, losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.opset.functions import DOMAIN
from bngrad.opset.known_shapes import known_shape
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir


@dataclass(frozen=True)
class SixteenBitOp:
    """An op that computes in 16 bits."""

    data: tuple[int, ...] | None = (0,)
    """The indices of the inputs that decide; None for all."""
    limits: tuple[int, ...] = ()
    """The indices of further inputs of the same type, which are cast with them."""
    outputs: tuple[int, ...] | None = None
    """The indices of the outputs of that type; None for all floats."""
    casts: bool = False
    """True if float32 data are cast; False if the op is in float32 then."""
    one_shape: bool = False
    """True if the op is in float32 where data are broadcast, as the gradient then sums many terms."""

    def data_of(self, node: ir.Node) -> dict[int, ir.Value]:
        """Returns the inputs that decide, by index."""
        return _present(node, range(len(node.inputs)) if self.data is None else self.data)

    def inputs_of(self, node: ir.Node) -> dict[int, ir.Value]:
        """Returns the inputs that have 16 bits, by index."""
        return self.data_of(node) | _present(node, self.limits)

    def outputs_of(self, node: ir.Node) -> list[ir.Value]:
        """Returns the outputs that have 16 bits, if they are floats."""
        return list(node.outputs if self.outputs is None else [node.outputs[index] for index in self.outputs])

    def allows_shapes_of(self, node: ir.Node) -> bool:
        """Tests whether the shapes of the data allow 16 bits."""
        if not self.one_shape:
            return True
        shapes = {known_shape(value) for value in self.data_of(node).values()}
        return len(shapes) == 1 and all(shape is not None and None not in shape for shape in shapes)


def _present(node: ir.Node, indices: Iterable[int]) -> dict[int, ir.Value]:
    inputs = dict(enumerate(node.inputs))
    return {index: value for index in indices if (value := inputs.get(index)) is not None}


_PRODUCT = SixteenBitOp(data=None, casts=True)
_BATCH_NORM = SixteenBitOp(outputs=(0,))

SIXTEEN_BIT_OPS: dict[tuple[str, str], SixteenBitOp] = {
    **{("", name): _PRODUCT for name in ("Conv", "ConvTranspose", "Gemm", "MatMul")},
    **{
        ("", name): SixteenBitOp()
        for name in (
            *("AveragePool", "DepthToSpace", "Dropout", "Flatten", "GlobalMaxPool", "Identity", "LeakyRelu"),
            *("MaxPool", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze"),
        )
    },
    ("", "Clip"): SixteenBitOp(limits=(1, 2)),
    ("", "Pad"): SixteenBitOp(limits=(2,)),
    ("", "Concat"): SixteenBitOp(data=None),
    **{("", name): SixteenBitOp(data=None, one_shape=True) for name in ("Add", "Sum")},
    ("", "BatchNormalization"): _BATCH_NORM,
    BATCH_NORM_INTERNAL: _BATCH_NORM,
    (DOMAIN, "BatchNormalizationTraining"): _BATCH_NORM,
}
"""The ops by domain and name."""
