"""Former finds of campaigns, minimized, and right since then: models and their feeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx.parser

from gradient_fuzz.cases import Case


class Regression(NamedTuple):
    """A model of which a gradient was wrong or NaN, or did not run."""

    text: str
    """The model in ONNX's text form, without its header; in opset 18 by default."""
    feeds: dict[str, list]
    opset: int = 18
    wrt: tuple[str, ...] = ()
    """The variables of the loss; by default the inputs."""


CASES = {
    "a-start-of-a-range-that-moves": Regression(
        """g (double x) => (double loss) <double limit = {2.2}, double delta = {0.5}> {
            y = Range(x, limit, delta) s = ReduceSum <keepdims = 0> (y) loss = Add(x, s) }""",
        {"x": 0.66},
    ),
    "class-weights-that-move": Regression(
        """g (float[2,3] x) => (float loss) <int64[2] t = {2, 0}, int64[1] rows = {0}> {
            w = ReduceMax <keepdims = 0> (x, rows) l = NegativeLogLikelihoodLoss <reduction = "sum"> (x, t, w)
            loss = Identity(l) }""",
        {"x": [[1.5, 0.25, -0.5], [0.3, 0.7, 1.25]]},
    ),
    "class-weights-of-softmax-that-move": Regression(
        """g (double[2,3] x) => (double loss) <int64[2] t = {2, 0}, int64[1] rows = {0}> {
            w = ReduceMean <keepdims = 0> (x, rows) loss = SoftmaxCrossEntropyLoss(x, t, w) }""",
        {"x": [[1.5, 0.25, 0.5], [0.3, 0.7, 1.25]]},
    ),
    "statistics-of-the-batch-in-a-frozen-batch-norm": Regression(
        """g (float[3,2] x, float[2] s) => (float loss) <int64[1] rows = {0}, float[3,2] k = {1, -2, 3, 1, 4, 1}> {
            q = Mul(x, x) v = ReduceMean <keepdims = 0> (q, rows) m = ReduceMean <keepdims = 0> (x, rows)
            y = BatchNormalization(x, s, s, m, v) z = Mul(y, k) loss = ReduceSum <keepdims = 0> (z) }""",
        {"x": [[0.5, -1.0], [1.5, 2.0], [-0.75, 0.25]], "s": [1.5, -0.5]},
    ),
    "a-padded-value-that-moves": Regression(
        """g (double[3] x) => (double loss) <int64[2] pads = {1, 2}> {
            v = ReduceMean <keepdims = 0> (x) y = Pad(x, pads, v) z = Mul(y, y)
            loss = ReduceSum <keepdims = 0> (z) }""",
        {"x": [1.0, 2.0, 4.0]},
    ),
    "a-root-behind-a-mask": Regression(
        """g (double[4] x, double[4] r) => (double loss) <double c = {0.1}> {
            p = Relu(r) s = Sqrt(p) m = Greater(x, c) y = Where(m, s, x) loss = ReduceSum <keepdims = 0> (y) }""",
        {"x": [0.6, -0.3, 0.2, 0.9], "r": [0.25, -1.0, -2.0, 4.0]},
    ),
    "a-tile-of-nothing": Regression(
        """g (double[N,1,3] x) => (double loss) <int64[3] repeats = {1, 2, 0}> {
            y = Tile(x, repeats) loss = ReduceSum <keepdims = 0> (y) }""",
        {"x": np.zeros((0, 1, 3)).tolist()},
    ),
    "a-pad-of-elements-of-nothing": Regression(
        """g (double[2,N,N] x) => (double loss) <int64[6] pads = {1, 0, 0, 0, 0, 0}> {
            y = Pad <mode = "reflect"> (x, pads) loss = ReduceSum <keepdims = 0> (y) }""",
        {"x": [[], []]},
    ),
    "a-maximum-of-what-is-rounded-to-float16": Regression(
        """g (float16[1,4] x, float16[1,4] w) => (float16 loss) <float16[1,1] least = {13376}> {
            d = Sub(w, x) y = Max(least, d) loss = ReduceSum <keepdims = 0> (y) }""",
        {
            "x": [[0.25, -0.0673828125, -2.271484375, -1.13671875]],
            "w": [[-0.2083740234375, 1.091796875, 1.2353515625, -0.6142578125]],
        },
        opset=25,
    ),
    "a-pad-of-edges-in-front-of-a-dimension-of-0": Regression(
        """g (double[2,2,0] x) => (double loss) <int64[6] pads = {0, 0, 0, 1, 0, 0}> {
            y = Pad <mode = "edge"> (x, pads) loss = ReduceSum <keepdims = 0> (y) }""",
        {"x": [[[], []], [[], []]]},
    ),
    "a-pad-of-edges-in-front-of-a-dimension-that-is-0": Regression(
        """g (double[2,2,N] x) => (double loss) <int64[6] pads = {0, 0, 0, 1, 0, 0}> {
            y = Pad <mode = "edge"> (x, pads) loss = ReduceSum <keepdims = 0> (y) }""",
        {"x": [[[], []], [[], []]]},
    ),
    "a-frozen-mean-that-is-computed-from-a-weight-as-the-scale-is": Regression(
        """g (double[1,1,1,2] x) => (double loss)
            <double[2] w = {0.75, 0.5}, int64[1] rows = {0}, double[1] v = {0.8}, double[1,1,1,2] k = {1, -2}> {
            c = ReduceMax(w, rows)
            y = BatchNormalization(x, c, c, c, v) z = Mul(y, k) loss = ReduceSum <keepdims = 0> (z) }""",
        {"x": [[[[0.3, -0.7]]]]},
        wrt=("w", "x"),
    ),
    "depth-to-space-of-images-of-nothing": Regression(
        """g (float[1,18,1,0] x) => (float loss) {
            y = DepthToSpace <blocksize = 3, mode = "CRD"> (x) loss = ReduceSum <keepdims = 0> (y) }""",
        {"x": np.zeros((1, 18, 1, 0)).tolist()},
    ),
    "a-running-variance-that-is-computed-from-a-weight": Regression(
        """g (double[2,2] x) => (double loss)
            <double[2] w = {0.75, 0.5}, double[2] b = {0, 1}, double[2] m = {0, 0}> {
            v = Exp(w) y, mean, var = BatchNormalization <training_mode = 1, momentum = 0.5> (x, w, b, m, v)
            s = Add(var, y) z = Mul(s, s) loss = ReduceSum <keepdims = 0> (z) }""",
        {"x": [[0.3, -0.7], [1.0, 0.5]]},
        wrt=("w", "x"),
    ),
    "a-slice-with-steps-and-no-axes": Regression(
        """g (float[4,3] x) => (float loss)
            <int64[1] s = {0}, int64[1] e = {9223372036854775807}, int64[1] p = {2}> {
            y = Slice(x, s, e, , p) z = Mul(y, y) loss = ReduceSum <keepdims = 0> (z) }""",
        {"x": [[1, 2, 3], [4, 5, 6], [-1, -2, -3], [-4, -5, -6]]},
    ),
    "a-slice-with-computed-starts-and-no-axes": Regression(
        """g (float[4,3] x, int64[1] s) => (float loss) <int64[1] e = {9223372036854775807}, int64[1] p = {2}> {
            y = Slice(x, s, e, , p) z = Mul(y, y) loss = ReduceSum <keepdims = 0> (z) }""",
        {"x": [[1, 2, 3], [4, 5, 6], [-1, -2, -3], [-4, -5, -6]], "s": [0]},
        wrt=("x",),
    ),
    "a-slice-with-a-copied-start-and-no-axes": Regression(
        """g (float[4,3] x) => (float loss)
            <int64[1] s = {0}, int64[1] e = {9223372036854775807}, int64[1] p = {2}> {
            t = Identity(s) y = Slice(x, t, e, , p) z = Mul(y, y) loss = ReduceSum <keepdims = 0> (z) }""",
        {"x": [[1, 2, 3], [4, 5, 6], [-1, -2, -3], [-4, -5, -6]]},
    ),
    "a-region-in-float16": Regression(
        """g (float16[1,1,4,4] x) => (float16 loss) <float16[8] roi = {0, 0, 0, 0, 15360, 15360, 14336, 15360},
            float[4] scales = {1, 1, 1.5, 1}> {
            y = Resize <coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear"> (x, roi, scales)
            loss = ReduceSum <keepdims = 0> (y) }""",
        {"x": [[[[1, 2, 3, 4], [0.5, -1, 2, -4], [2, 1, 0, -1], [3, 3, 1, 0]]]]},
    ),
}
"""The regressions of the rules, and of later passes over their nodes."""


def case(name: str) -> Case:
    """A regression as a case."""
    text, feeds, opset, wrt = CASES[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    arrays = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        array = np.asarray(feeds[value.name], dtype)
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        arrays[value.name] = array if array.size else np.zeros((*array.shape, *shape[array.ndim :]), dtype)
    return Case(model, arrays, wrt or tuple(arrays), story=name)
