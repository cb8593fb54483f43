"""Gradients of Attention.

The probabilities P are an output of the forward node, so that masks, causality, windows and lengths need no
formula here: P is 0 where a key is hidden, and in rows that see no key at all. Query heads that share a head of
keys become rows of one matrix, so that no key is repeated.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.heads import split_heads
from bngrad.autodiff.rule import gradient
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.node_reader import like
from bngrad.opset.op_attributes import ANY, FLAG

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_RAW, _CAPPED, _MASKED, _PROBABILITIES = range(4)
"""The values of qk_matmul_output_mode: what the fourth output is."""
_MODE = "qk_matmul_output_mode"
_SIDES = ("left", "right")


@gradient(
    "Attention",
    inputs=(0, 1, 2, 3, 4, 5),
    versions=(23, 24, 25),
    attributes={
        "is_causal": FLAG,
        _MODE: (_RAW, _CAPPED, _MASKED, _PROBABILITIES),
        **dict.fromkeys(("kv_num_heads", "q_num_heads"), ANY),
        **dict.fromkeys(("left_window_size", "right_window_size"), ANY),
        **dict.fromkeys(("scale", "softcap", "softmax_precision"), ANY),
    },
)
def attention(back: Backward) -> Gradients:
    """For S = c Q K^T, T = cap tanh(S / cap), P = softmax(T + mask) and Y = P V, with past keys before K.

    ::

    dV = P^T dY            dP = dY V^T            dT = P (dP - sum of dP P)
    dmask = sum of dT      dS = dT (1 - tanh^2)   dQ = c dS K              dK = c dS^T Q

    A gradient of the fourth output, which is S, T, T + mask or P, is added to that of the same name.
    """
    dtype = back.x(0).dtype
    for index in range(1, 6):
        if back.needs(index) and back.x(index).dtype != dtype:
            back.refuse(f"its input {index} is {back.x(index).dtype}; expected {dtype}, as its first input")
    return _Attention(back).gradients()


class _Attention:
    """One node. Its q, k and v are [batch, heads, length, size]; k and v include the past ones."""

    def __init__(self, back: Backward) -> None:
        self._back = back
        self._dY, self._d_k, self._d_v, self._d_products = (*back.all_dY, None, None, None)[:4]
        self._mode = back.attribute(_MODE, _RAW)
        self._q = self._by_head(back.x(0), "q_num_heads")
        self._new = [self._by_head(back.x(index), "kv_num_heads") for index in (1, 2)]
        if self._d_products is not None and self._keys is None:
            back.refuse("the loss depends on its fourth output, for an unknown number of keys; expected a number")
        self._k, self._v = (back.y(1), back.y(2)) if back.has(4) else self._new

    def gradients(self) -> Gradients:
        """Returns the gradient of each input."""
        back = self._back
        dP = dT = dV = dM = None
        if self._dY is not None:
            dY = self._rows(self._by_head(self._dY, "q_num_heads"))
            if back.needs(2) or back.needs(5):
                dV = self._product(self._rows(self._p), dY, transposed=0)
            if any(map(back.needs, (0, 1, 3, 4))):
                dP = self._product(dY, self._v, transposed=1)
        dP = self._with_products(dP, _PROBABILITIES)
        if dP is not None:
            dT = back.microsoft("SoftmaxGrad_13", dP, self._rows(self._p), axis=-1)
        dT = self._with_products(dT, _MASKED)
        if dT is not None and back.needs(3):
            dM = self._of_mask(dT)
        dQ, dK = self._of_scores(self._with_products(dT, _CAPPED))
        new_k, past_k = self._of_keys(1, dK, self._d_k)
        new_v, past_v = self._of_keys(2, dV, self._d_v)
        return [dQ, new_k, new_v, dM, past_k, past_v, None]

    @property
    def _keys(self) -> int | None:
        """The number of keys and past keys, if all are known: else onnx and ONNX Runtime infer others for P."""
        past = [self._back.x(index) for index in (4, 5)] if self._back.has(4) else []
        lengths = [length for part in (*self._new, *past) if isinstance(length := _dimensions(part)[2], int)]
        return sum(lengths) // 2 if len(lengths) == 2 + len(past) else None

    @cached_property
    def _p(self) -> ir.Value:
        """The probabilities: the fourth output of the node, or of a copy of it where that is something else."""
        back = self._back
        if self._mode == _PROBABILITIES or not back.has_output(3):
            back.node.attributes[_MODE] = ir.AttrInt64(_MODE, _PROBABILITIES)
            p = back.y(3)
        else:
            p = self._p_of_copy()
        if self._keys is None:
            # A Concat would be fused with the Reshape, which then depends on the wrong sizes.
            queries, keys = back.op("Shape", self._q, start=0, end=3), back.op("Shape", self._k, start=2, end=3)
            parts = [(queries, back.int64([1])), (back.int64([1, 1, 1]), keys)]
            sizes = back.op("Mul", *(back.op("Concat", *part, axis=0) for part in parts))
            p = back.op("Reshape", p, sizes)
        p.type = self._q.type
        p.shape = ir.Shape([*_dimensions(self._q)[:3], self._keys])
        return p

    def _p_of_copy(self) -> ir.Value:
        """Makes a copy that has no past keys: ONNX Runtime refuses past keys if nothing reads the present ones."""
        back = self._back
        positions = [back.attribute("is_causal", 0), *(back.attribute(f"{s}_window_size", -1) + 1 for s in _SIDES)]
        if back.has(4) and any(positions):
            back.refuse(f"it has past keys, positions and {_MODE} = {self._mode}; expected {_PROBABILITIES}")
        attributes = {name: value for name, value in back.attributes().items() if not name.endswith("_num_heads")}
        inputs = [self._q, self._k, self._v, back.optional(3), *([None, None, back.x(6)] if back.has(6) else [])]
        words = ["again", "", "", "probabilities"]
        return back.outputs_of("Attention", *inputs, outputs=words, **attributes | {_MODE: _PROBABILITIES})[3]

    def _with_products(self, gradient: ir.Value | None, mode: int) -> ir.Value | None:
        """Adds the gradient of the fourth output, where that is what a mode says."""
        if self._d_products is None or self._mode != mode:
            return gradient
        other = self._rows(self._d_products)
        return other if gradient is None else self._back.op("Add", gradient, other)

    def _of_mask(self, dT: ir.Value) -> ir.Value:
        """Sums over what the mask was repeated along; keys beyond its end are hidden."""
        back, mask, p = self._back, self._back.x(3), self._p
        back.rank(mask)
        dT = self._shaped_as(dT, p) if self._shares_keys else dT
        last = _dimensions(mask)[-1]
        if last is None or last != _dimensions(p)[3]:
            dT = back.op("Slice", dT, back.int64([0]), back.op("Shape", mask, start=-1), back.int64([3]))
        dT.type, dT.shape = mask.type, ir.Shape([*_dimensions(p)[:3], last])
        return sum_to(back, dT, mask, dT)

    def _of_scores(self, dT: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
        """Returns the gradients with respect to Q, and to all keys."""
        back, cap = self._back, self._back.attribute("softcap", 0.0)
        keys_needed = back.needs(1) or back.needs(4)
        if not (back.needs(0) or keys_needed):
            return None, None
        q = self._rows(self._scaled(self._q))
        if dT is not None and cap:
            ratio = back.op("Div", self._product(q, self._k, transposed=1), like(back, cap, self._q))
            bent = back.op("Tanh", ratio)
            slope = back.op("Sub", like(back, 1, self._q), back.op("Mul", bent, bent))
            dT = back.op("Mul", dT, slope)
        dS = self._with_products(dT, _RAW)
        if dS is None:
            return None, None
        dQ = dK = None
        if back.needs(0):
            dQ = self._product(dS, self._scaled(self._k))
            dQ = self._as_input(0, self._shaped_as(dQ, self._q) if self._shares_keys else dQ)
        if keys_needed:
            dK = self._product(dS, q, transposed=0)
        return dQ, dK

    def _of_keys(
        self, index: int, gradient: ir.Value | None, of_output: ir.Value | None
    ) -> tuple[ir.Value | None, ir.Value | None]:
        """Returns the gradients of the new keys or values, input ``index``, and of the past ones."""
        back = self._back
        if gradient is None or of_output is None:
            gradient = of_output if gradient is None else gradient
        else:
            gradient = back.op("Add", gradient, of_output)
        past = back.optional(index + 3)
        if gradient is None or past is None:
            return None if gradient is None else self._as_input(index, gradient), None
        lengths = [back.op("Shape", value, start=2, end=3) for value in (past, self._new[index - 1])]
        sizes = back.op("Concat", *lengths, axis=0)
        of_past, of_new = back.outputs_of("Split", gradient, sizes, outputs=["past", "new"], axis=2)
        return self._as_input(index, of_new), of_past

    def _scaled(self, x: ir.Value) -> ir.Value:
        back, size = self._back, _dimensions(self._q)[3]
        if "scale" in back.node.attributes:
            factor = like(back, back.attribute("scale", 1.0), self._q)
        elif isinstance(size, int):
            factor = like(back, size**-0.5, self._q)
        else:
            sizes = back.cast(back.op("Shape", self._q, start=3, end=4), ir.DataType.FLOAT)
            factor = back.op("CastLike", back.op("Reciprocal", back.op("Sqrt", sizes)), self._q)
        return back.op("Mul", x, factor)

    def _product(self, a: ir.Value, b: ir.Value, transposed: int | None = None) -> ir.Value:
        """Makes a product of matrices, of which one may be transposed; for double see `matrix`."""
        back = self._back
        if transposed is None:
            return back.op("MatMul", a, b)
        operands = [a, b]
        operands[transposed] = back.op("Transpose", operands[transposed], perm=[0, 1, 3, 2])
        if self._q.dtype == ir.DataType.DOUBLE:
            return back.op("Einsum", *operands, equation="bhmk,bhkn->bhmn")
        return back.op("MatMul", *operands)

    @cached_property
    def _shares_keys(self) -> bool:
        """True if several heads of queries may read one head of keys."""
        heads = [_dimensions(value)[1] for value in (self._q, self._new[0])]
        return not (isinstance(heads[0], int) and heads[0] == heads[1])

    def _rows(self, x: ir.Value) -> ir.Value:
        """Turns heads that share keys into rows: [batch, heads of keys, heads for each * length, ...]."""
        back = self._back
        if not self._shares_keys:
            return x
        batch, heads, length, last = (back.op("Shape", x, start=axis, end=axis + 1) for axis in range(4))
        groups = back.op("Shape", self._new[0], start=1, end=2)
        rows = back.op("Mul", back.op("Div", heads, groups), length)
        # Sizes of 0 are where x has them, too: ONNX Runtime fuses such a Concat, and then ignores allowzero.
        return back.op("Reshape", x, back.op("Concat", batch, groups, rows, last, axis=0))

    def _shaped_as(self, x: ir.Value, other: ir.Value) -> ir.Value:
        return self._back.op("Reshape", x, self._back.op("Shape", other), allowzero=1)

    def _by_head(self, x: ir.Value, attribute: str) -> ir.Value:
        """Converts [batch, length, heads * size] to [batch, heads, length, size]; four dimensions stay."""
        back = self._back
        if back.rank(back.x(0)) == 4:
            return x
        parts = split_heads(back, x, back.attribute(attribute, 1))
        result = back.op("Transpose", parts, perm=[0, 2, 1, 3])
        assert parts.shape is not None, "see split_heads"  # noqa: S101
        result.type, result.shape = x.type, ir.Shape([parts.shape[axis] for axis in (0, 2, 1, 3)])
        return result

    def _as_input(self, index: int, gradient: ir.Value) -> ir.Value:
        """Converts a gradient to the dimensions of the input."""
        back = self._back
        if back.rank(back.x(0)) == 4:
            return gradient
        return self._shaped_as(back.op("Transpose", gradient, perm=[0, 2, 1, 3]), back.x(index))


def _dimensions(value: ir.Value) -> list[int | str | None]:
    """Returns the dimensions of a value of four, or of a mask: None for those that are not known."""
    if value.shape is None:
        return [None] * 4
    return [size if isinstance(size, int) else size.value for size in value.shape]
