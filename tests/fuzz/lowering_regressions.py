"""Former findings of campaigns about ONNX Runtime's training ops, which `rewrite` lowers."""

from __future__ import annotations

import onnx

from fuzz.regressions import Regression, function, not_utf8, set_field

RELU_GRAD = "g (float[3] dy, float[3] y) => (float[3] dx) { dx = com.microsoft.ReluGrad(dy) }"
CONV_GRAD = """g (float[1,4,2,2] dy, float[1,4,3,3] x, float[4,1,2,2] w) => (float[4,1,2,2] dw)
    { dx, dw = com.microsoft.ConvGrad(dy, x, w) }"""
SLICE_GRAD = """g (float[2] dy) => (float[4] dx)
    <int64[1] shape = {4}, int64[1] starts = {1}, int64[1] ends = {3}, int64[1] axes = {0}>
    { dx = com.microsoft.SliceGrad(dy, shape, starts, ends, axes) }"""
RESIZE_GRAD = """g (float[1,1,6] dy, float[1,1,2] x) => (float[1,1,2] dx)
    <float[3] scales = {1, 1, 3}, float[1] one = {1}, float[0] none = {}>
    { dx = com.microsoft.ResizeGrad(dy, x, none, scales) }"""
UNTYPED = """g (float[3] dy, float[3] y) => (float[3] dx) { dx = local.F(dy, y) }"""


CASES = {
    "too-few-inputs-of-a-training-op": Regression(
        "rewrite", RELU_GRAD, "(outputs dx) has no input 1, which ReluGrad requires"
    ),
    "a-training-op-of-no-known-type": Regression(
        "rewrite", UNTYPED + function("F (a, b) => (c) { c = com.microsoft.ReluGrad(a, b) }"),
        "the type of 'b' is not known; expected a model that shape inference can read",
    ),
    "pads-of-another-rank": Regression(
        "rewrite",
        "g (float[1,1,2] dy, float[1,1,3] x, float[1,1,2] w) => (float[1,1,3] dx) "
        "{ dx, dw = com.microsoft.ConvGrad <kernel_shape = [2], pads = [0, 0, 0, 0]> (dy, x, w) }",
        "cannot be rewritten: its pads are [0, 0, 0, 0]; expected 2 numbers",
    ),
    "a-stride-of-nothing": Regression(
        "rewrite",
        "g (float[1,1,2] dy, float[1,1,3] x, float[1,1,2] w) => (float[1,1,3] dx) "
        "{ dx, dw = com.microsoft.ConvGrad <kernel_shape = [2], strides = [0]> (dy, x, w) }",
        "cannot be rewritten: its strides are [0]; expected 1 numbers of at least 1",
    ),
    "windows-over-data-of-another-rank": Regression(
        "rewrite",
        "g (float[1,1,2] dy, float[1,1,3,3] x, float[1,1,2] w) => (float[1,1,3,3] dx) "
        "{ dx, dw = com.microsoft.ConvGrad <kernel_shape = [2]> (dy, x, w) }",
        "the tensor 'x' of a gradient has 4 dimensions; expected 3: batch, channels, and one for each",
    ),
    "a-gradient-of-a-resize-without-its-data": Regression(
        "rewrite",
        "g (float[1,1,4] dy) => (float[1,1,2] dx) { dx = com.microsoft.ResizeGrad(dy) }",
        "the type and rank of its X are not known",
    ),
    "a-resize-by-no-rule": Regression(
        "rewrite",
        "g (float[1,1,4] dy, float[1,1,2] x) => (float[1,1,2] dx) "
        '{ dx = com.microsoft.ResizeGrad <coordinate_transformation_mode = "none"> (dy, x) }',
        "it has coordinate_transformation_mode = 'none'; expected one of half_pixel, half_pixel_symmetric,",
    ),
    "a-concat-without-its-axis": Regression(
        "inspect", "g (float[3] x) => (float[6] y) { y, n = com.microsoft.ConcatTraining(x, x) }", "",
    ),
    "windows-larger-than-their-data": Regression(
        "rewrite",
        """g (float[1,1,3] x, float[1,1,5] w, float[N,5,1] dy, int64[N,5,1] i)
            => (float[1,1,M] y, float[N,4,1] dx) { y = Conv(x, w) shape = Shape(y)
            dx = com.microsoft.GatherNDGrad <batch_dims = 1> (shape, i, dy) }""",
        "Conv node (outputs y) is not valid: its output 'y' has inferred shape [1,1,-1]; expected sizes of 0",
    ),
    "an-output-shape-of-another-rank": Regression(
        "rewrite",
        """g (float[1,1,2,2] dy, float[1,1,3,3] x, float[1,1,2,2] w) => (float[1,1,3,3] dx)
            { dx, dw = com.microsoft.ConvTransposeGrad <output_shape = [3]> (dy, x, w) }""",
        "cannot be rewritten: its output_shape is [3]; expected 2 numbers",
    ),
    "weights-of-another-rank": Regression(
        "rewrite", CONV_GRAD.replace("Grad(", "Grad <kernel_shape = [2]> ("),
        "it has weights with 4 dimensions, and others with 3; expected 3 or more: batch, channels, and those of",
    ),
    "windows-without-dimensions": Regression(
        "rewrite", "g (float[1,4] dy, float[1,4] x, float[4,4] w) => (float[1,4] dx) "
        "{ dx, dw = com.microsoft.ConvGrad(dy, x, w) }",
        "it has weights with 2 dimensions, and others with 2; expected 3 or more: batch, channels, and those of",
    ),
    "a-kernel-of-100000000-elements": Regression(
        "rewrite", CONV_GRAD.replace("Grad(", "Grad <group = 4> (").replace("[4,1,2,2]", "[4,1,1,100000000]"),
        "its kernel has 100000000 elements; expected 16384 at most",
    ),
    "as-many-elements-for-all-channels": Regression(
        "rewrite", CONV_GRAD.replace("[4,1,2,2]", "[4,4,1,100000000]"),
        "its kernel has 100000000 elements; expected 4194304 at most",
    ),
    "a-loss-of-no-reduction": Regression(
        "rewrite",
        """g (float dy, float[N,3] p, int64[N] t) => (float[N,3] dx)
            { dx = com.microsoft.SoftmaxCrossEntropyLossGrad <reduction = "all"> (dy, p, t) }""",
        "has reduction = 'all'; expected one of none, sum, mean",
    ),
    "a-label-that-is-no-number": Regression(
        "rewrite",
        """g (float dy, float[N,3] p, int64[N] t) => (float[N,3] dx)
            { dx = com.microsoft.SoftmaxCrossEntropyLossGrad <ignore_index = "a"> (dy, p, t) }""",
        "has the attribute 'ignore_index' STRING; expected INT",
    ),
    "a-flag-of-two": Regression(
        "rewrite",
        """g (float[N] dy, bool[N] m, float r) => (float[N] dx) <bool[2] t = {0, 1}>
            { dx = com.microsoft.DropoutGrad (dy, m, r, t) }""",
        "'t', a flag, has 2 elements; expected 1",
    ),
    "a-gather-along-no-axis": Regression(
        "rewrite",
        """g (int64[2] s, int64[3] i, float[3,4] dy) => (float[5,4] dx)
            { dx = com.microsoft.GatherGrad <axis = 7> (s, i, dy) }""",
        "cannot be rewritten: its axis is 7, of data with 2 dimensions; expected -2 to 1",
    ),
    "a-gather-from-a-number": Regression(
        "rewrite",
        "g (int64[0] s, int64[3] i, float[3] dy) => (float x) { x = com.microsoft.GatherGrad (s, i, dy) }",
        "its axis is 0, of data with 0 dimensions; expected data with at least one dimension",
    ),
    "indices-longer-than-a-shape": Regression(
        "rewrite",
        """g (int64[2] s, int64[3,100000000] i, float[3,4] dy) => (float[5,4] dx)
            { dx = com.microsoft.GatherNDGrad (s, i, dy) }""",
        "it has batch_dims 0 and indices of length 100000000; expected 1 to 2 together",
    ),
    "indices-that-are-one-number": Regression(
        "rewrite",
        """g (int64[2] s, int64 i, float[3,4] dy) => (float[5,4] dx)
            { dx = com.microsoft.GatherNDGrad (s, i, dy) }""",
        "the last dimension of its indices is not known; expected a number",
    ),
    "a-layer-of-no-axis": Regression(
        "rewrite",
        """g (float[2,3] dy, float[2,3] x, float[3] s, float[2,1] m, float[2,1] v) => (float[2,3] dx)
            { dx = com.microsoft.LayerNormalizationGrad <axis = 9> (dy, x, s, m, v) }""",
        "its axis is 9, of data with 2 dimensions; expected -2 to 1",
    ),
    "a-softmax-of-no-axis": Regression(
        "rewrite",
        """g (float[2,3] dy, float[2,3] y) => (float[2,3] dx)
            { dx = com.microsoft.SoftmaxGrad <axis = 9> (dy, y) }""",
        "its axis is 9, of data with 2 dimensions; expected -2 to 1",
    ),
    "a-slice-of-axes-that-are-not-there": Regression(
        "rewrite", SLICE_GRAD.replace("axes = {0}", "axes = {4}"),
        "cannot be rewritten: its axes are [4]; expected distinct axes from -1 to 0",
    ),
    "a-slice-with-an-end-too-many": Regression(
        "rewrite", SLICE_GRAD.replace("int64[1] ends = {3}", "int64[2] ends = {3, 3}"),
        "cannot be rewritten: it has 1 starts, 2 ends and 1 axes; expected as many of each",
    ),
    "a-group-of-more-than-there-are-channels": Regression(
        "rewrite", CONV_GRAD.replace("ConvGrad(", "ConvGrad <group = 4611686018427387905> ("),
        "cannot be rewritten: its group is 4611686018427387905; expected a divisor of its channels",
    ),
    "a-gradient-of-four-bits": Regression(
        "rewrite", RELU_GRAD.replace("=> (float[3] dx)", "=> (uint8[3] dx)"),
        "cannot be rewritten: its output 'dx' is uint8; expected one of bfloat16, double, float, float16",
    ),
    "a-resize-by-infinity": Regression(
        "rewrite", RESIZE_GRAD, "cannot be rewritten: its scales are [1.0, 1.0, inf]; expected numbers above 0",
        lambda m: m.graph.initializer[0].CopyFrom(
            onnx.helper.make_tensor("scales", onnx.TensorProto.FLOAT, [3], [1, 1, float("inf")])
        ),
    ),
    "a-gradient-of-gathering-without-indices": Regression(
        "rewrite",
        """g (int64[2] shape) => (float[4,2] dx) { dx = com.microsoft.GatherNDGrad (shape) }""",
        "cannot be rewritten: the last dimension of its indices is not known; expected a number",
    ),
    "a-convolution-over-one-dimension": Regression(
        "rewrite",
        """g (float[4] dy, float[1,4,3,3] x, float[4,4,2,2] w) => (float[4,4,2,2] dw)
            { dx, dw = com.microsoft.ConvGrad <kernel_shape = [2, 2]> (dy, x, w) }""",
        "the tensor 'dy' of a gradient has 1 dimensions; expected 4: batch, channels, and one for each",
    ),
    "a-slice-with-a-step-too-many": Regression(
        "rewrite",
        SLICE_GRAD.replace("axes = {0}", "axes = {0}, int64[2] steps = {1, 1}").replace("axes)", "axes, steps)"),
        "cannot be rewritten: it has 1 starts, 1 ends, 1 axes and 2 steps; expected as many of each",
    ),
    "elements-gathered-along-no-axis": Regression(
        "rewrite",
        """g (float[2] dy, int64[2] i) => (float[4] dx) <int64[1] shape = {4}>
            { dx = com.microsoft.GatherElementsGrad <axis = 3> (dy, shape, i) }""",
        "cannot be rewritten: its axis is 3, of data with 1 dimensions; expected -1 to 0",
    ),
    "a-slice-from-a-fraction": Regression(
        "rewrite", SLICE_GRAD.replace("int64[1] starts = {1}", "float[1] starts = {1.5}"),
        "its input 'starts' is float; expected integers",
    ),
    "a-resize-with-a-scale-too-few": Regression(
        "rewrite",
        RESIZE_GRAD.replace("scales)", "one)"),
        "its scales are 1 numbers; expected 3, one for each axis",
    ),
    "a-resize-of-axes-that-are-not-there": Regression(
        "rewrite", RESIZE_GRAD.replace("ResizeGrad", "ResizeGrad <axes = [0, 1, 5]>"),
        "its axes are [0, 1, 5]; expected distinct axes from -3 to 2",
    ),
    "a-policy-that-is-no-text": Regression(
        "rewrite",
        RESIZE_GRAD.replace("Grad(", 'Grad <keep_aspect_ratio_policy = "XYZ"> (').replace("scales)", "none)"),
        "it has keep_aspect_ratio_policy = '\\\\x80YZ'; expected one of stretch, not_larger, not_smaller",
        lambda m: not_utf8(m, b"XYZ"),
    ),
    "an-output-that-its-op-does-not-have": Regression(
        "rewrite",
        """g (float[2,3] dy, float[2,3] y) => (float[2,3] z) <float[2,3] more>
            { dx, more = com.microsoft.SoftmaxGrad_13(dy, y) z = Neg(more) }""",
        "(outputs dx, more) cannot be rewritten: its output 'more' is used; expected only dx",
    ),
    "a-resize-of-another-rank": Regression(
        "rewrite", RESIZE_GRAD.replace("float[1,1,6] dy", "float[1,6] dy"),
        "cannot be rewritten: its dY has 2 dimensions, its X 3; expected as many",
    ),
    "a-resize-to-the-nearest-that-is-smoothed": Regression(
        "rewrite", RESIZE_GRAD.replace("ResizeGrad", "ResizeGrad <antialias = 1>"),
        "cannot be rewritten: it has antialias and mode 'nearest'; expected linear or cubic",
    ),
    "a-stride-past-all-data": Regression(
        "rewrite",
        """g (float[N,4,3,3] dy, float[N,2,9,10] x, float[4,2,2,2] w) => (float[N,2,9,10] dx)
            { dx, dw = com.microsoft.ConvGrad <strides = [2147483647, 4]> (dy, x, w) }""",
        "cannot be rewritten: it has 1 windows along dimension 2, and a gradient for 3; expected as many",
    ),
    "a-transposed-convolution-to-another-extent": Regression(
        "rewrite",
        """g (float[N,2,9,4] dy, float[N,4,3,3] x, float[4,2,2,2] w) => (float[4,2,2,2] dw)
            { dx, dw = com.microsoft.ConvTransposeGrad <strides = [7, 1]> (dy, x, w) }""",
        "cannot be rewritten: its windows span 16 elements along dimension 2, and its gradient has 9; expected as",
    ),
    "a-gradient-of-an-activation-of-another-shape": Regression(
        "rewrite", "g (float[2,3] dy, float[2,4] x) => (float[2,3] dx) { dx = com.microsoft.GeluGrad(dy, x) }",
        "cannot be rewritten: its tensors have the shapes [2, 3] and [2, 4]; expected one shape",
    ),
    "a-gradient-of-another-type": Regression(
        "rewrite",
        """g (float16[1,4,2,2] dy, float[1,4,2,2] x, float[4,4,1,1] w) => (float[1,4,2,2] dx)
            { dx, dw = com.microsoft.ConvGrad(dy, x, w) }""",
        "cannot be rewritten: its tensors are float and float16; expected one type",
    ),
    "a-gradient-for-another-type": Regression(
        "rewrite", RELU_GRAD.replace("=> (float[3] dx)", "=> (double[3] dx)").replace("(dy)", "(dy, y)"),
        "cannot be rewritten: its tensors are double and float; expected one type",
    ),
    "a-group-that-its-weights-do-not-have": Regression(
        "rewrite", CONV_GRAD.replace("float[4,1,2,2] dw", "float[4,1,2,2] dw, float[1,4,3,3] dx"),
        "cannot be rewritten: its data have 4 channels, its weights are for 1; expected as many",
    ),
    "weights-for-more-channels": Regression(
        "rewrite",
        """g (float[1,6,2,2] dy, float[1,3,2,2] x, float[5,3,1,1] w) => (float[1,3,2,2] dx)
            { dx, dw = com.microsoft.ConvGrad(dy, x, w) }""",
        "cannot be rewritten: its gradient has 6 channels, its weights are for 5; expected as many",
    ),
    "transposed-weights-for-more-channels": Regression(
        "rewrite",
        """g (float[1,4,2,2] dy, float[1,3,2,2] x, float[3,3,1,1] w) => (float[1,3,2,2] dx)
            { dx, dw = com.microsoft.ConvTransposeGrad(dy, x, w) }""",
        "cannot be rewritten: its gradient has 4 channels, its weights are for 3; expected as many",
    ),
    "a-gradient-of-a-pool-that-reads-nothing": Regression(
        "rewrite",
        """g (float[1,1,2,2] dy) => (float[1,1,H,W] dx)
            { dx = AveragePoolGrad <kernel_shape = [2, 2]> (dy) y = local.AveragePool() }""",
        "the spatial shape of its output is unknown",
        lambda m: [
            set_field(node, "name", name)
            for node, name in zip(m.graph.node, ("p_Grad/AveragePoolGrad_0", "p"), strict=True)
        ],
    ),
    "a-bias-of-another-extent": Regression(
        "rewrite",
        """g (float[2,3] dy, float[2,3] x, float[2] b) => (float[2,3] dx)
            { dx = com.microsoft.BiasFastGeluGrad_dX(dy, x, b) }""",
        "its bias has the shape [2], its X [2, 3]; expected the last dimensions of X",
    ),
    "a-bias-of-more-dimensions": Regression(
        "rewrite",
        """g (float[3] dy, float[3] x, float[2,3] b) => (float[3] dx)
            { dx = com.microsoft.BiasGeluGrad_dX(dy, x, b) }""",
        "its bias has the shape [2, 3], its X [3]; expected the last dimensions of X",
    ),
    "a-gradient-of-a-relu-of-another-shape": Regression(
        "rewrite",
        """g (float[2,3,4] dz, float[2,3,5] z, float[2,3,5] x, float[3] s, float[3] m, float[3] v)
            => (float[2,3,5] dx) <int64[2] axes = {0, 2}> { dy = com.microsoft.ReluGrad(dz, z)
            dx, ds, db = bngrad.BatchNormalizationGrad <training_mode = 1> (dy, x, s, m, v, axes) }""",
        "dZ has shape [2, 3, 4] and Z [2, 3, 5]; expected equal shapes",
        header='<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "bngrad" : 1]>',
    ),
}  # fmt: skip
