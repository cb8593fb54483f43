"""The ops that ONNX Runtime's optimizer fuses from others, split again: models that it saved have them.

A node that is not in the table, or has a form that its function does not know, stays and has no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from bngrad.autodiff.fused_attention import group_query_attention
from bngrad.graph.node_reader import dtype_of, like
from bngrad.opset.op_attributes import CONV
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bngrad.passes.lower.site import Site

    Parts: TypeAlias = Callable[[Site], Sequence[ir.Value | None] | str | None]
    """A function that makes the nodes of a fused op, and returns its outputs.

    It returns None, or a text for the user, where it does not know the form of the node.
    """

UNKNOWN_FORM = "bngrad.unknown_form"
"""The key in the ``meta`` of a node that is not split for the text."""

_GEMM = ("alpha", "beta", "transA", "transB")
_GEMM_NUMBERS = ("activation_alpha", "activation_beta")
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""The attributes of each activation; the limits of Clip are inputs."""


def _matmul(site: Site) -> Sequence[ir.Value] | None:
    """FusedMatMul(A, B) is alpha A B, of which each may be transposed before.

    ``transA`` exchanges the last two dimensions; ``transBatchA`` moves the first one before the last, and is done
    before.
    """
    operands = [site.x(0), site.x(1)]
    for index, name in enumerate(("A", "B")):
        flags = site.attribute(f"trans{name}", 0), site.attribute(f"transBatch{name}", 0)
        if not any(flags):
            continue
        if (shape := operands[index].shape) is None:
            return None
        perm = list(range(len(shape)))
        if len(perm) < 2:
            continue
        if flags[1]:
            perm.insert(-1, perm.pop(0))
        if flags[0]:
            perm[-2:] = perm[:-3:-1]
        operands[index] = site.op("Transpose", operands[index], perm=perm)
    y, alpha = site.op("MatMul", *operands), site.attribute("alpha", 1.0)
    return [y if alpha == 1 else site.op("Mul", y, like(site, alpha, site.x(0)))]


def _gemm(site: Site) -> Sequence[ir.Value] | None:
    """FusedGemm(A, B, C) is the activation of a Gemm."""
    names = [name for name in _GEMM_NUMBERS if name in site.node.attributes]
    numbers = [site.attribute(name, 0.0) for name in names]
    return _activated(site, "Gemm", site.node.inputs, _GEMM, numbers)


def _conv(site: Site) -> Sequence[ir.Value] | None:
    """FusedConv(X, W, B, Z) is the activation of Conv(X, W, B) + Z."""
    numbers = site.node.attributes.get("activation_params")
    return _activated(site, "Conv", site.node.inputs[:3], CONV, [] if numbers is None else numbers.as_floats())


def _activated(
    site: Site,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    names: Sequence[str] | Mapping[str, Sequence[int | str]],
    numbers: Sequence[float],
) -> Sequence[ir.Value] | None:
    attributes = {name: value for name, value in site.node.attributes.items() if name in names}
    activation = str(site.attribute("activation", ""))
    if activation not in _ACTIVATIONS or len(numbers) < len(_ACTIVATIONS[activation]):
        return None
    y = site.op(op_type, *inputs, **attributes)
    if op_type == "Conv" and site.has(3):
        y = site.op("Add", y, site.x(3))
    parameters = dict(zip(_ACTIVATIONS[activation], numbers, strict=False))
    if activation == "Clip":
        return [site.op("Clip", y, *(like(site, number, site.x(0)) for number in parameters.values()))]
    return [site.op(activation, y, **parameters) if activation else y]


def _layer_norm(site: Site) -> Sequence[ir.Value | None]:
    """SkipLayerNormalization(X, skip, gamma, beta, bias) is a LayerNormalization of X + skip + bias."""
    total, epsilon = _sum(site, 4), site.attribute("epsilon", 1e-12)
    y = site.op("LayerNormalization", total, site.x(2), site.optional(3), axis=-1, epsilon=epsilon)
    return [y, None, None, total]


def _skip_rms_norm(site: Site) -> Sequence[ir.Value | None]:
    """SkipSimplifiedLayerNormalization(X, skip, gamma, bias) is the next op of X + skip + bias."""
    total = _sum(site, 3)
    return [_root_mean_square(site, total, site.x(2), 1e-12), None, None, total]


def _rms_norm(site: Site) -> Sequence[ir.Value | None] | None:
    """SimplifiedLayerNormalization(X, gamma) is x / sqrt(E[x^2] + epsilon) gamma, along the last dimension."""
    x, axis = site.x(0), site.attribute("axis", -1)
    if axis != -1 and (x.shape is None or axis != len(x.shape) - 1):
        return None
    return [_root_mean_square(site, x, site.x(1), 1e-5)]


def _root_mean_square(site: Site, x: ir.Value, gamma: ir.Value, default: float) -> ir.Value:
    x = site.op("Cast", x, to=int(ir.DataType.FLOAT))
    mean = site.op("ReduceMean", site.op("Mul", x, x), site.int64([-1]))
    epsilon = site.constant(site.attribute("epsilon", default), ir.DataType.FLOAT)
    ratio = site.op("Div", x, site.op("Sqrt", site.op("Add", mean, epsilon)))
    return site.op("Mul", site.op("Cast", ratio, to=int(dtype_of(gamma))), gamma)


def _sum(site: Site, bias: int) -> ir.Value:
    total = site.op("Add", site.x(0), site.x(1))
    return site.op("Add", total, site.x(bias)) if site.has(bias) else total


FUSED_OPS: Mapping[tuple[str, str], Parts] = {
    (MICROSOFT, "FusedConv"): _conv,
    (MICROSOFT, "FusedGemm"): _gemm,
    (MICROSOFT, "FusedMatMul"): _matmul,
    (MICROSOFT, "GroupQueryAttention"): group_query_attention,
    (MICROSOFT, "SkipLayerNormalization"): _layer_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_rms_norm,
    ("", "SimplifiedLayerNormalization"): _rms_norm,
}
