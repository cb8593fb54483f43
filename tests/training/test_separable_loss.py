from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import BngradWarning, ModelError

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'
DENSE = "g (float[N,3] x, float[3,4] w) => (float loss) { y = MatMul(x, w)"
STEPS = "g (float[N,T,3] x, float[3,4] w) => (float loss) { y = MatMul(x, w) s = Mul(y, y)"
SEPARABLE = {
    "mean": f"{DENSE} e = Mul(y, y) loss = ReduceMean<keepdims = 0>(e) }}",
    "softmax-of-a-sample": f"{DENSE} s = Softmax<axis = 1>(y) e = Mul(s, s) loss = ReduceMean<keepdims = 0>(e) }}",
    "fixed-batch": """g (float[4,3] x, float[3,4] w) => (float loss)
        { y = MatMul(x, w) e = Mul(y, y) loss = ReduceMean<keepdims = 0>(e) }""",
    "batch-of-1": """g (float[1,3] x, float[3,4] w) => (float loss)
        { y = MatMul(x, w) e = Mul(y, y) loss = ReduceMean<keepdims = 0>(e) }""",
    "masked": """g (float[N,3] x, float[N,1] mask, float[3,4] w) => (float loss)
        { y = MatMul(x, w) e = Mul(y, mask) s = ReduceSum<keepdims = 0>(e) k = ReduceSum<keepdims = 0>(mask)
          loss = Div(s, k) }""",
    "ignored-tokens": """g (int64[N,T] ids, int64[N,T] t, float[3,4] w) => (float loss)
        { y = Gather(w, ids) z = Transpose<perm = [0, 2, 1]>(y)
          loss = SoftmaxCrossEntropyLoss<ignore_index = 0>(z, t) }""",
    "images-of-one-size": """g (float[N,1,H,W] x, float[2,1,9,9] w) => (float loss)
        { y = Conv(x, w) e = Mul(y, y) loss = ReduceMean<keepdims = 0>(e) }""",
    "batch-norm": """g (float[N,3] x, float[3,3] w, float[3] s, float[3] b, float[3] rm, float[3] rv)
        => (float loss) { y = MatMul(x, w) z, nm, nv = BatchNormalization<training_mode = 1>(y, s, b, rm, rv)
          e = Mul(z, z) loss = ReduceMean<keepdims = 0>(e) }""",
}
COUPLED = {
    "contrastive": f"""{DENSE} t = Transpose<perm = [1, 0]>(y) p = MatMul(y, t)
        loss = ReduceMean<keepdims = 0>(p) }}""",
    "centered-by-the-batch": f"""{DENSE} m = ReduceMean<axes = [0]>(y) d = Sub(y, m) e = Abs(d)
        loss = ReduceMean<keepdims = 0>(e) }}""",
    "divided-by-the-mean-deviation": f"""{DENSE} m = ReduceMean<axes = [0]>(y) d = Sub(y, m) a = Abs(d)
        v = ReduceMean<axes = [0]>(a) z = Div(d, v) e = Mul(z, z) loss = ReduceMean<keepdims = 0>(e) }}""",
    "softmax-over-the-batch": f"""{DENSE} s = Softmax<axis = 0>(y) e = Mul(s, s)
        loss = ReduceMean<keepdims = 0>(e) }}""",
    "largest-of-the-batch": f"""{DENSE} m = ReduceMax<axes = [0]>(y) e = Mul(y, m)
        loss = ReduceSum<keepdims = 0>(e) }}""",
    "mean-over-the-batch-and-a-mean": f"""{STEPS} m = ReduceMean<axes = [0]>(s)
        loss = ReduceMean<keepdims = 0>(m) }}""",
    "mean-over-the-batch-and-a-sum": f"""{STEPS} m = ReduceMean<axes = [0]>(s)
        loss = ReduceSum<keepdims = 0>(m) }}""",
    "sum-over-the-batch-and-a-mean": f"""{STEPS} a = Constant<value = int64[1] {{0}}>() m = ReduceSum(s, a)
        loss = ReduceMean<keepdims = 0>(m) }}""",
    "sum-added-to-samples": f"""{DENSE} s = Mul(y, y) t = ReduceSum<keepdims = 0>(s) d = Add(s, t)
        loss = ReduceMean<keepdims = 0>(d) }}""",
    "mean-of-samples-and-weights": f"""{DENSE} s = Mul(y, y) u = Mul(w, w) d = Concat<axis = 0>(s, u)
        loss = ReduceMean<keepdims = 0>(d) }}""",
    "sum-of-samples-by-their-number": f"""{DENSE} s = Mul(y, y) n = Shape<start = 0, end = 1>(x)
        k = Cast<to = 1>(n) d = Div(s, k) loss = ReduceSum<keepdims = 0>(d) }}""",
    "weight-by-place": f"""{DENSE} z = Constant<value = int64 {{0}}>() c = CumSum(y, z)
        loss = ReduceMean<keepdims = 0>(c) }}""",
    "small-term-of-pairs": f"""{DENSE} l = ReduceMean<keepdims = 0>(y) t = Transpose<perm = [1, 0]>(y)
        p = MatMul(y, t) e = Mul(p, p) m = ReduceMean<keepdims = 0>(e) k = Constant<value = float {{0.00001}}>()
        q = Mul(m, k) loss = Add(l, q) }}""",
    "pairs-above-a-margin": f"""{DENSE} t = Transpose<perm = [1, 0]>(y) p = MatMul(y, t)
        k = Constant<value = float {{9.0}}>() d = Sub(p, k) h = Relu(d) loss = ReduceMean<keepdims = 0>(h) }}""",
    "fixed-batch-reduced-twice": """g (float[4,3] x, float[3,4] w) => (float loss)
        { y = MatMul(x, w) s = Mul(y, y) m = ReduceMean<axes = [0]>(s) loss = ReduceSum<keepdims = 0>(m) }""",
    "fixed-batch": """g (float[4,3] x, float[3,4] w) => (float loss)
        { y = MatMul(x, w) s = Softmax<axis = 0>(y) e = Mul(s, s) loss = ReduceMean<keepdims = 0>(e) }""",
}
UNCHECKED = {
    "sum-over-a-fixed-batch": (
        """g (float[4,3] x, float[3,4] w) => (float loss)
           { y = MatMul(x, w) e = Mul(y, y) s = ReduceSum<keepdims = 0>(e) n = Constant<value = float {4.0}>()
             loss = Div(s, n) }""",
        "is a sum over a batch of fixed size",
    ),
    "needs-images-of-another-size": (
        """g (float[N,1,H,W] x, float[1,1,3,3] w, float[1,1,5,7] c) => (float loss)
           { y = Conv(x, w) e = Mul(y, c) f = Mul(e, y) loss = ReduceMean<keepdims = 0>(f) }""",
        "could not be checked",
    ),
    "always-0": (
        f"{DENSE} n = Abs(y) z = Neg(n) r = Relu(z) loss = ReduceMean<keepdims = 0>(r) }}",
        "is 0 for random",
    ),
    "not-finite": (
        f"""{DENSE} n = Neg(y) z = Abs(n) k = Neg(z) q = Sqrt(k) loss = ReduceMean<keepdims = 0>(q) }}""",
        "the loss of random data is not finite",
    ),
}


def model_of(text):
    """Parses a model whose inputs from w on are initializers."""
    model = onnx.parser.parse_model(HEADER + text)
    rng = np.random.default_rng(0)
    inputs = list(model.graph.input)
    first = [value.name for value in inputs].index("w")
    for value in inputs[first:]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.uniform(0.2, 1, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del model.graph.input[first:]
    return model


@pytest.mark.parametrize("case", SEPARABLE)
def test_terms_of_samples_are_accepted(case):
    training_graph = bngrad.differentiate(model_of(SEPARABLE[case]), sync=True)
    assert "AllReduce" in {node.op_type for node in training_graph.graph.node}


@pytest.mark.parametrize("case", COUPLED)
def test_terms_of_several_samples_are_refused(case):
    model = model_of(COUPLED[case])
    with pytest.raises(ModelError, match="depends on more than single samples"):
        bngrad.differentiate(model, sync=True)
    bngrad.differentiate(model)


def test_weights_of_0_hide_nothing():
    model = model_of(COUPLED["contrastive"])
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((3, 4), np.float32), "w"))
    with pytest.raises(ModelError, match="depends on more than single samples"):
        bngrad.differentiate(model, sync=True)


def test_state_without_dimensions_is_no_obstacle():
    model = model_of("""g (float[N,3] x, float[3,4] w, float c) => (float loss)
        { y = MatMul(x, w) z = Mul(y, c) e = Mul(z, z) loss = ReduceMean<keepdims = 0>(e) }""")
    bngrad.differentiate(model, wrt=["w", "c"], sync=True)  # without a warning


@pytest.mark.parametrize("case", UNCHECKED)
def test_warns_of_what_cannot_be_checked(case):
    text, reason = UNCHECKED[case]
    with pytest.warns(BngradWarning, match=reason):
        bngrad.differentiate(model_of(text), sync=True)
