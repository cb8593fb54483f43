"""What the rules refuse, and what they say."""

from __future__ import annotations

import pytest

from autodiff.cases.normalization import norm
from autodiff.gradient_cases import Case, differentiated, in_standard_onnx
from bngrad.errors import ModelError, UnsupportedNodeError


def case(inputs, body, **more):
    return Case("refused", inputs, body, **more)


REFUSED = {
    "gelu, an unknown approximation": (
        case("float[N] x", 'y = Gelu <approximate = "sine"> (x)', opset=20),
        r"Gelu node 'Gelu_0' .*approximate = 'sine'; expected one of none, tanh",
    ),
    "matmul of unknown rank": (
        case("float[2, 3] a, int64[K] n, float[3, 4] b", "t = Reshape(a, n) y = MatMul(t, b)", wrt=("a",)),
        "MatMul node 'MatMul_1'.*the rank of 't' is not known",
    ),
    "max pool, indices in column-major order": (
        case("float[N, 2, 6, 6] x", "y = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x)"),
        "it has storage_order = 1",
    ),
    "tile of unknown rank": (
        case("float[8] x, int64[K] n, int64[K] t", "r = Reshape (x, n) y = Tile (r, t)"),
        "rank of 'r' is not known",
    ),
    "resize that keeps the aspect": (
        case(
            "float[2, 2, 5, 4] x, int64[4] s",
            'y = Resize <keep_aspect_ratio_policy = "not_larger"> (x, , , s)',
        ),
        "keep_aspect_ratio_policy 'not_larger'; expected stretch",
    ),
    "resize of unknown rank": (
        case(
            "float[8] x, int64[K] n",
            "r = Reshape (x, n) s = Constant <value_floats = [2.0]> () y = Resize (r, , s)",
        ),
        "rank of 'r'",
    ),
    "pad of unknown rank": (
        case("float[8] x, int64[K] n, int64[L] p", 'r = Reshape (x, n) y = Pad <mode = "edge"> (r, p)'),
        "rank of 'r'",
    ),
    "pad of computed axes": (
        case("float[8] x, int64[2] p, int64[1] a", 'y = Pad <mode = "edge"> (x, p, , a)'),
        "mode 'edge' and axes that are computed; expected constant axes",
    ),
    "layer norm, one scale": (
        norm("", "LayerNormalization", "N, H, W", "1"),
        "a scale of the shape of X from axis -1 on",
    ),
    "layer norm, scale of too many axes": (
        norm("", "LayerNormalization", "N, H, 5", "H, 5"),
        r"its scale is \[H,5\] and its X \[N,H,5\]",
    ),
    "RMS norm, scale of rank 2": (
        norm("", "RMSNormalization", "N, H, 5", "1, 5", "", "x, s", opset=23),
        "its scale is",
    ),
    "layer norm, mean in the loss": (
        case("float[N, H, 5] x, float[5] s", "y, m, i = LayerNormalization(x, s)", outputs=("y", "m")),
        "the loss depends on an output of it other than the first",
    ),
    "instance norm of unknown rank": (
        case(
            "float[2, 3, 4] x, int64[K] n, float[3] s, float[3] b",
            "t = Reshape(x, n) y = InstanceNormalization(t, s, b)",
        ),
        "the rank of 't' is not known",
    ),
    "batch norm of unknown rank": (
        case(
            "float[2, 3, 4] x, int64[K] n, float[3] s, float[3] m",
            "t = Reshape(x, n) y = BatchNormalization(t, s, s, m, s)",
        ),
        "the rank of 't' is not known",
    ),
    "LRN of unknown channels": (
        norm("", "LRN", "N, C, H, W", attributes="size = 3", inputs="x"),
        "nobody knows how many channels its X has",
    ),
    "batch norm of a vector": (
        case("float[N] x, float[1] s", "y = BatchNormalization(x, s, s, s, s)"),
        "its X has rank 1; expected 2 to 8",
    ),
    "batch norm of mixed types": (
        case("float[N, 3] x, double[3] s", "y = BatchNormalization(x, s, s, s, s)"),
        "its input 's' is double; expected float",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_differentiated(name):
    refused, reason = REFUSED[name]
    with pytest.raises(UnsupportedNodeError, match=reason):
        differentiated(refused)


@pytest.mark.parametrize("what", ["axes left out", "empty axes", "computed axes"])
@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"])
def test_what_may_reduce_nothing(op, what):
    """By some it is the identity then, by others all but the sum is still computed."""
    axes = {"axes left out": "", "empty axes": ", none", "computed axes": ", given"}[what]
    body = f"y = {op} <noop_with_empty_axes = 1> (x{axes})"
    refused = case("float[N, 3] x, int64[K] given", body, initializers="int64[0] none = {}")
    reason = f"{op} node '{op}_0'.*it has noop_with_empty_axes = 1 and no constant axes; expected axes"
    with pytest.raises(UnsupportedNodeError, match=reason):
        differentiated(refused)


NOT_LOWERED = {
    "scatter elements, product": (
        "float[4] x, int64[2] i, float[2] u",
        'y = ScatterElements <reduction = "mul"> (x, i, u)',
        "it has reduction 'mul'; expected none or add",
    ),
    "scatter, largest": (
        "float[4] x, int64[2, 1] i, float[2] u",
        'y = ScatterND <reduction = "max"> (x, i, u)',
        "it has reduction 'max'; expected none or add",
    ),
    "gather of unknown rank": (
        "float[8] x, int64[K] n, int64[2] i",
        "r = Reshape (x, n) y = Gather (r, i)",
        "rank of its dX is not known",
    ),
    "gather by indices of unknown length": (
        "float[8] x, int64[2, K] i",
        "y = GatherND (x, i)",
        "last extent of its indices is not known",
    ),
}


@pytest.mark.parametrize("name", NOT_LOWERED)
def test_what_is_not_made_standard_onnx(name):
    inputs, body, reason = NOT_LOWERED[name]
    with pytest.raises(UnsupportedNodeError, match=reason):
        in_standard_onnx(differentiated(case(inputs, body)))


def test_a_loss_of_indices():
    """They are no gradient's way back."""
    body = "p, i = MaxPool <kernel_shape = [2, 2]> (x) y = Cast <to = 1> (i)"
    with pytest.raises(ModelError, match="does not depend on 'x'"):
        differentiated(case("float[N, 2, 6, 6] x", body))
