"""The shares of all ranks, and their gradients, add up to the loss of the whole batch and its gradients."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from bngrad import L1, BCEWithLogits, CrossEntropy
from bngrad.autodiff.share_loss import KEY
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import ModelError
from bngrad.passes.pipeline import for_target
from bngrad.training.loss_functions import LOSS_FUNCTIONS
from bngrad.training.losses import append_loss

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'
N = 7
CLASS_WEIGHTS = "cw = Constant<value = float[4] {1.0, 2.0, 0.5, 3.0}>()"
LOGITS = "g (float[N,3] x, int64[N] t, float[3,4] w) => (float loss) { y = MatMul(x, w)"
SQUARES = "g (float[N,3] x, float[3,2] w) => (float loss) { y = MatMul(x, w) s = Mul(y, y)"
PENALTY = "c = Constant<value = float {0.1}>() ww = Mul(w, w) p = ReduceSum<keepdims = 0>(ww) q = Mul(p, c)"
POSITIVES = f"""{LOGITS} l = SoftmaxCrossEntropyLoss<reduction = "sum">(y, t) two = Constant<value = int64 {{2}}>()
    p = Greater(t, two) c = Cast<to = 1>(p) k = ReduceSum<keepdims = 0>(c)"""

LOSSES = {
    "mean": f"{SQUARES} loss = ReduceMean<keepdims = 0>(s) }}",
    "mean-of-shape-1": f"{SQUARES} m = ReduceMean(s) loss = Squeeze(m) }}",
    "mean-flattened-and-cast-like": f"""{SQUARES} m = ReduceMean<keepdims = 0>(s) f = Flatten<axis = 0>(m)
        c = CastLike(f, w) loss = Squeeze(c) }}""",
    "mean-of-means-of-samples": f"{SQUARES} m = ReduceMean<axes = [1]>(s) loss = ReduceMean<keepdims = 0>(m) }}",
    "sum": f"{SQUARES} loss = ReduceSum<keepdims = 0>(s) }}",
    "cross-entropy": f"{LOGITS} loss = SoftmaxCrossEntropyLoss(y, t) }}",
    "cross-entropy-sum": f'{LOGITS} loss = SoftmaxCrossEntropyLoss<reduction = "sum">(y, t) }}',
    "ignored": f"{LOGITS} loss = SoftmaxCrossEntropyLoss<ignore_index = 2>(y, t) }}",
    "class-weights": f"{LOGITS} {CLASS_WEIGHTS} loss = SoftmaxCrossEntropyLoss(y, t, cw) }}",
    "class-weights-and-ignored": (
        f"{LOGITS} {CLASS_WEIGHTS} loss = SoftmaxCrossEntropyLoss<ignore_index = 2>(y, t, cw) }}"
    ),
    "nll": f"{LOGITS} l = LogSoftmax<axis = 1>(y) loss = NegativeLogLikelihoodLoss<ignore_index = 2>(l, t) }}",
    "penalty-of-weights": f"{LOGITS} l = SoftmaxCrossEntropyLoss(y, t) {PENALTY} loss = Add(l, q) }}",
    "penalty-and-a-sum": f"{SQUARES} l = ReduceSum<keepdims = 0>(s) {PENALTY} loss = Sub(l, q) }}",
    "divided-by-the-batch-size": f"""{SQUARES} l = ReduceSum<keepdims = 0>(s) shape = Shape(x)
        i = Constant<value = int64 {{0}}>() n = Gather(shape, i) c = Cast<to = 1>(n) loss = Div(l, c) }}""",
    "divided-by-a-slice-of-the-shape": f"""{SQUARES} l = ReduceSum<keepdims = 0>(s)
        n = Shape<start = 0, end = 1>(x) c = Cast<to = 1>(n) k = Squeeze(c) loss = Div(l, k) }}""",
    "divided-by-the-features": f"""{SQUARES} l = ReduceSum<keepdims = 0>(s) n = Shape<start = 1>(x)
        c = Cast<to = 1>(n) k = Squeeze(c) loss = Div(l, k) }}""",
    "divided-by-the-positives": f"{POSITIVES} loss = Div(l, k) }}",
    "divided-by-the-positives-guarded": f"""{POSITIVES} d = Div(l, k) zero = Constant<value = float {{0.0}}>()
        none = Equal(k, zero) loss = Where(none, zero, d) }}""",
    "two-means": f"""{LOGITS} l = SoftmaxCrossEntropyLoss<ignore_index = 2>(y, t) a = Abs(y)
        m = ReduceMean<keepdims = 0>(a) n = Neg(m) half = Constant<value = float {{0.5}}>() h = Mul(half, n)
        loss = Sum(l, h, h) }}""",
}
FUNCTIONS = {
    "cross_entropy-smooth": CrossEntropy(label_smoothing=0.25, ignore_index=2),
    "cross_entropy-smooth-weights": CrossEntropy(label_smoothing=0.25, weight=[1, 2, 0.5, 3]),
    "cross_entropy-smooth-sum": CrossEntropy(label_smoothing=0.25, reduction="sum"),
    "l1-sum": L1(reduction="sum"),
    "bce-weights": BCEWithLogits(pos_weight=[1, 2, 3, 4]),
    **{name: kind() for name, kind in LOSS_FUNCTIONS.items()},
}
FORWARD = "g (float[N,3] x, float[3,4] w) => (float[N,4] y) { y = MatMul(x, w) }"
SPLITS = {"two-ranks": [3], "three-ranks": [2, 4], "a-row-each": [1, 2, 3, 4, 5, 6]}


def model_of(case):
    if case in LOSSES:
        return ir.from_proto(onnx.parser.parse_model(HEADER + LOSSES[case]))
    return append_loss(ir.from_proto(onnx.parser.parse_model(HEADER + FORWARD)), FUNCTIONS[case]).model


def graph_of(model, *, share):
    training = training_graph(model, loss="loss", wrt=["w"], share=share)
    result = for_target(training.model, target="stock", functions=False)[0]
    kept = [value for value in result.graph.outputs if value.name in ("loss", "w_grad")]
    result.graph.outputs[:] = sorted(kept, key=lambda value: value.name)
    return ir.to_proto(result)


def feeds_of(model, rng):
    """Draws data; the first two labels are ignored where label 2 is."""
    feeds = {}
    for value in model.graph.inputs:
        shape = [size if isinstance(size, int) else N for size in value.shape]
        if value.dtype == ir.DataType.INT64:
            feeds[value.name] = np.array([2, 2, *rng.integers(0, 4, N - 2)])
        else:
            feeds[value.name] = rng.uniform(0.1, 0.9, shape).astype(np.float32)
    return feeds


def on_ranks(proto, feeds):
    """Returns the outputs of each rank, with AllGather as the stack of the ranks' vectors."""
    gathers = [node for node in proto.graph.node if node.op_type == "AllGather"]
    if not gathers:
        return [ReferenceEvaluator(proto).run(None, values) for values in feeds]
    (gather,) = gathers
    assert gather.attribute[0].s.decode() == KEY
    index = list(proto.graph.node).index(gather)
    before, after = onnx.ModelProto(), onnx.ModelProto()
    for part, removed in ((before, slice(index, None)), (after, slice(index, index + 1))):
        part.CopyFrom(proto)
        del part.graph.node[removed]
    del before.graph.output[:]
    before.graph.output.append(helper.make_tensor_value_info(gather.input[0], TensorProto.DOUBLE, None))
    after.graph.input.append(helper.make_tensor_value_info(gather.output[0], TensorProto.DOUBLE, None))
    gathered = np.stack([ReferenceEvaluator(before).run(None, values)[0] for values in feeds])
    return [ReferenceEvaluator(after).run(None, {**values, gather.output[0]: gathered}) for values in feeds]


@pytest.mark.parametrize("case", [*LOSSES, *FUNCTIONS])
def test_shares_add_up(case, rng):
    model = model_of(case)
    feeds = feeds_of(model, rng)
    whole_graph, share_graph = (graph_of(model, share=share) for share in (False, True))
    (want,) = on_ranks(whole_graph, [feeds])
    for split, rows_of_ranks in SPLITS.items():
        of_ranks = [
            {name: array if name == "w" else array[rows] for name, array in feeds.items()}
            for rows in np.split(np.arange(N), rows_of_ranks)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # onnx's evaluator divides the labels of nothing by 0
            got = on_ranks(share_graph, of_ranks)
        for name, whole, shares in zip(("loss", "w_grad"), want, zip(*got, strict=True), strict=True):
            message = f"{name}, {split}"
            np.testing.assert_allclose(np.sum(shares, axis=0), whole, rtol=2e-6, atol=2e-6, err_msg=message)


REFUSED = {
    "root": (f"{SQUARES} m = ReduceMean<keepdims = 0>(s) loss = Sqrt(m) }}", "Sqrt node 'loss'"),
    "product-of-means": (
        f"{SQUARES} m = ReduceMean<keepdims = 0>(s) n = ReduceMean<keepdims = 0>(y) loss = Mul(m, n) }}",
        "Mul node 'loss'",
    ),
    "constant-by-a-mean": (
        f"""{SQUARES} m = ReduceMean<keepdims = 0>(s) c = Constant<value = float {{1.0}}>() loss = Div(c, m) }}""",
        "Div node 'loss'",
    ),
    "largest": (f"{SQUARES} loss = ReduceMax<keepdims = 0>(s) }}", "ReduceMax node 'loss'"),
    "sum-of-squared-means": (
        f"""{SQUARES} z = ReduceMean<axes = [0], keepdims = 0>(y) zz = Mul(z, z)
            loss = ReduceSum<keepdims = 0>(zz) }}""",
        "ReduceSum node 'loss'",
    ),
    "sum-by-a-sum-with-a-gradient": (
        f"""{SQUARES} l = ReduceSum<keepdims = 0>(s) a = Abs(y) k = ReduceSum<keepdims = 0>(a)
            loss = Div(l, k) }}""",
        "Div node 'loss'",
    ),
    "one-of-the-terms": (
        f"{SQUARES} m = ReduceMean<keepdims = 0>(s) e = Exp(m) loss = Add(m, e) }}",
        "Exp node 'e'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_by_name(case):
    text, node = REFUSED[case]
    model = ir.from_proto(onnx.parser.parse_model(HEADER + text))
    with pytest.raises(ModelError, match="does not follow from the losses of its parts") as error:
        training_graph(model, loss="loss", wrt=["w"], share=True)
    assert node in str(error.value)
    assert "neither a mean nor a sum over the batch" in str(error.value)
