"""Refusals of the rules, and their messages."""

from __future__ import annotations

import pytest

from autodiff.cases.normalization import norm
from autodiff.gradient_cases import Case, differentiated, in_standard_onnx
from autodiff.small_models import differentiated as of
from autodiff.small_models import model, output_names
from bngrad.errors import ModelError, UnsupportedNodeError


def case(inputs, body, **more):
    return Case("refused", inputs, body, **more)


LSTM = "float[T, N, 3] x, float[1, 8, 3] w, float[1, 8, 2] r"
RNN = "float[T, N, 3] x, float[2, 2, 3] w, float[2, 2, 2] r"
RECURRENT = {
    "clip": ("clip = 0.0", "it has clip = 0; expected a positive number"),
    "unknown activation": (
        'activations = ["Sigmoid", "Tanh", "Sine"]',
        "it has activations Sigmoid, Tanh, Sine; expected 3 per direction, of Affine, Elu",
    ),
    "too few activations": ('activations = ["Sigmoid", "Tanh"]', "expected 3 per direction"),
    "alpha of ONNX's default": (
        'activations = ["Sigmoid", "Tanh", "ThresholdedRelu"]',
        "it leaves out alpha or beta of ThresholdedRelu, which ONNX Runtime takes to be 0",
    ),
    "beta of ONNX's default": (
        'activations = ["Sigmoid", "Affine", "Tanh"], activation_alpha = [0.5]',
        "it leaves out alpha or beta of Affine",
    ),
}
RNNS = {
    "name in lower case": ('activations = ["tanh", "tanh"]', "it has activations tanh, tanh; expected one per"),
    "default of alpha": ('activations = ["Elu", "Tanh"]', "it leaves out alpha or beta of Elu"),
    "alpha of the second direction": (
        'activations = ["Tanh", "Elu"], activation_alpha = [0.5]',
        "ONNX Runtime reads another alpha or beta of Elu than ONNX says; expected one for each direction",
    ),
    "other alpha of the second direction": (
        'activations = ["Tanh", "Elu"], activation_alpha = [0.5, 0.3]',
        "ONNX Runtime reads another alpha or beta of Elu",
    ),
}

REFUSED = {
    **{
        f"lstm, {name}": (case(LSTM, f"y = LSTM <hidden_size = 2, {attributes}> (x, w, r)"), message)
        for name, (attributes, message) in RECURRENT.items()
    },
    **{
        f"rnn, {name}": (
            case(RNN, f'y = RNN <hidden_size = 2, direction = "bidirectional", {attributes}> (x, w, r)'),
            message,
        )
        for name, (attributes, message) in RNNS.items()
    },
    "gelu, an unknown approximation": (
        case("float[N] x", 'y = Gelu <approximate = "sine"> (x)', opset=20),
        r"Gelu node 'Gelu_0' .*approximate = 'sine'; expected one of none, tanh",
    ),
    "matmul of unknown rank": (
        case("float[2, 3] a, int64[K] n, float[3, 4] b", "t = Reshape(a, n) y = MatMul(t, b)", wrt=("a",)),
        "MatMul node 'MatMul_1'.*the rank of 't' is not known",
    ),
    "columns to an image of three dimensions, dilated": (
        case(
            "float[N, 4, 2] x",
            "y = Col2Im <dilations = [1, 1, 2]> (x, image, block)",
            initializers="int64[3] image = {2, 1, 4}, int64[3] block = {2, 1, 2}",
        ),
        r"it has dilations \[1, 1, 2\]; expected two spatial dimensions",
    ),
    "mean and variance over no axes": (
        case("float[N, 3] x", "y = MeanVarianceNormalization <axes : ints = []> (x)"),
        "its axes are empty",
    ),
    "p-norm pool, p = 0": (
        case("float[N, 2, 6] x", "y = LpPool <kernel_shape = [2], p = 0> (x)"),
        "its p is 0; expected 1 or more",
    ),
    "max pool, dilated and padded to the same size": (
        case(
            "float[N, 2, 6, 6] x",
            'y = MaxPool <auto_pad = "SAME_UPPER", dilations = [1, 2], kernel_shape = [2, 2]> (x)',
        ),
        "auto_pad = SAME_UPPER and dilations .* expected pads",
    ),
    "max pool, a window that begins behind the data": (
        case(
            "float[1, 2, 3, 2] x",
            "y = MaxPool <ceil_mode = 1, kernel_shape = [1, 2], pads = [0, 1, 0, 1], strides = [1, 3]> (x)",
        ),
        "2 windows along axis 3, but ONNX Runtime computes 1",
    ),
    "average pool, a window that begins behind the data": (
        case(
            "float[1, 1, 2, 3] x",
            "y = AveragePool <ceil_mode = 1, kernel_shape = [1, 2], pads = [0, 1, 0, 1], strides = [3, 1]> (x)",
        ),
        "windows along axis 2, but ONNX Runtime computes 1",
    ),
    "max pool, the same without pads": (
        case(
            "float[1, 2, 6, 6] x",
            'y = MaxPool <auto_pad = "VALID", ceil_mode = 1, kernel_shape = [1, 1], strides = [4, 4]> (x)',
        ),
        "3 windows along axis 2, but ONNX Runtime computes 2",
    ),
    "max pool, the same beside the gradient": (
        case(
            "float[1, 2, 3, 3] x, float[2, 3, 1] w",
            'p = MaxPool <auto_pad = "VALID", ceil_mode = 1, kernel_shape = [1, 1], strides = [1, 3]> (x) '
            "y = Add (w, p)",
            wrt=("w",),
        ),
        "2 windows along axis 3, but ONNX Runtime computes 1",
    ),
    "transposed convolution to less than its data, of which onnx infers no spatial dimensions": (
        case(
            "float[1, 1, 5, 1] x, float[1, 1, 2, 3] w, float[1, 1, 4, 3] k",
            "t = ConvTranspose <dilations = [1, 2], output_shape = [4, 3]> (x, w) s = Mul(t, t) y = Mul(s, k)",
        ),
        r"ConvTranspose node .* is unsupported: its output 't' has inferred shape \[1,1\], its data 4 dimensions",
    ),
    "tile of unknown rank": (
        case("float[8] x, int64[K] n, int64[K] t", "r = Reshape (x, n) y = Tile (r, t)"),
        "rank of 'r' is not known",
    ),
    "resize that crops and keeps the aspect": (
        case(
            "float[2, 2, 5, 4] x, float[8] r, int64[4] s",
            'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize", '
            'keep_aspect_ratio_policy = "not_larger"> (x, r, , s)',
        ),
        "it has tf_crop_and_resize and keep_aspect_ratio_policy 'not_larger'; expected stretch",
    ),
    "regions that depend on weights": (
        case("float[1, 2, 5, 4] x, float[N, 4] r, int64[N] b", "y = RoiAlign (x, r, b)", wrt=("x", "r")),
        "it has no gradient with respect to input 1, 'r'.*expected a constant",
    ),
    "regions of MaxRoiPool that depend on weights": (
        case(
            "float[1, 2, 5, 4] x, float[N, 5] r", "y = MaxRoiPool <pooled_shape = [1, 2]> (x, r)", wrt=("x", "r")
        ),
        "MaxRoiPool node .* it has no gradient with respect to input 1, 'r'.*expected a constant",
    ),
    "grid of parameters of unknown length": (
        case("float[1, 2, K] t, int64[4] s", "y = AffineGrid (t, s)", wrt=("t",), opset=20),
        "the last dimension of its theta is not known",
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
    "batch norm, saved statistics in the loss": (
        case(
            "float[N, 3] x, float[3] s",
            "y, m, v, saved, i = com.microsoft.BatchNormInternal <training_mode = 1> (x, s, s, s, s)",
            outputs=("y", "saved"),
        ),
        "the loss depends on the statistics that it saves; expected only its Y and running statistics",
    ),
    "batch norm of ORT's dialect in inference mode": (
        case(
            "float[N, 3] x, float[3] s",
            "y, m, v = com.microsoft.BatchNormInternal <training_mode = 0> (x, s, s, s, s)",
        ),
        "it has training_mode = 0; expected 1",
    ),
    "instance norm of unknown rank": (
        case(
            "float[2, 3, 4] x, int64[K] n, float[3] s, float[3] b",
            "t = Reshape(x, n) y = InstanceNormalization(t, s, b)",
        ),
        "the rank of 't' is not known",
    ),
    "LRN of unknown channels": (
        norm("", "LRN", "N, C, H, W", attributes="size = 3", inputs="x"),
        "the number of channels of its X is unknown",
    ),
    "LRN of no channels": (
        norm("", "LRN", "N, 3, H, W", attributes="size = 0", inputs="x"),
        "its size is 0; expected at least 1",
    ),
    "LRN of more channels than a matrix can have": (
        norm("", "LRN", "N, 8193, H, W", attributes="size = 3", inputs="x"),
        "its X has 8193 channels; expected at most 8192",
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


SUM = "loss = ReduceSum <keepdims = 0> (y)"
NO_GRADIENT = (
    r"cannot be differentiated: it has no gradient with respect to input {}, '{}', which is a value of --wrt"
)
# op: (input, its name, inputs of the model, nodes that compute y from x and these)
WITHOUT_GRADIENT = {
    "Dropout": (1, "r", "float r, bool t", "y = Dropout (x, r, t)"),
    "Resize, scales": (2, "r", "float[1] r", "y = Resize (x, , r)"),
    "Resize, roi": (
        1,
        "r",
        "float[2] r",
        """k = Constant <value_floats = [2.0]> ()
        y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, k)""",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_an_input_without_a_gradient_is_refused_where_it_is_not_constant(name):
    index, operand, inputs, body = WITHOUT_GRADIENT[name]
    op = name.split(",")[0]
    message = rf"{op} node '\w+' \(outputs y\) " + NO_GRADIENT
    explicit = model(f"float[3] x, {inputs}", f"{body} {SUM}")
    for wrt in ([operand], ["x", operand]):
        with pytest.raises(UnsupportedNodeError, match=message.format(index, operand)):
            of(explicit, wrt=wrt)
    # It depends on x, as the data do.
    kind = inputs.split(" r")[0]
    axes = "" if "[" in kind else "<keepdims = 0>"
    computed = {"float": f"r = ReduceMax {axes} (x)", "float[1]": "r = ReduceMax (x)"}.get(
        kind, "r = Slice (x, b, e)"
    )
    more = "float[3] x, bool t, int64[1] b, int64[1] e"
    with pytest.raises(UnsupportedNodeError, match=message.format(index, "r")):
        of(model(more, f"{computed} {body} {SUM}"), wrt=["x"])


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_an_input_without_a_gradient_may_depend_on_anything_else(name):
    """On data that nothing is differentiated with respect to; or on x, beside the way to the loss."""
    _, operand, inputs, body = WITHOUT_GRADIENT[name]
    constant = model(f"float[3] x, float[3] z, {inputs}", f"{body} {SUM}")
    assert "x_grad" in output_names(of(constant, wrt=["x"]))
    computed = model(f"float[3] x, {inputs.replace(' r', ' q')}", f"r = Exp (q) {body} {SUM}")
    assert "x_grad" in output_names(of(computed, wrt=["x"]))
    beside = model(f"float[3] x, {inputs}", f"{body.replace('y =', 'beside =')} y = Mul (x, x) {SUM}")
    assert "x_grad" in output_names(of(beside, wrt=["x"]))
    with pytest.raises(ModelError, match=f"does not depend on '{operand}'"):
        of(beside, wrt=[operand])


def test_an_input_without_a_gradient_makes_no_default_weight():
    """An initializer that such an input is computed from is not a default weight either."""
    forward = model(
        "float[3] x, bool t",
        f"h = Mul (x, w) q = Exp (r) y = Dropout (h, q, t) {SUM}",
        initializers="float[3] w = {1, 2, 3}, float r = {-1}",
    )
    assert output_names(of(forward)) == ["loss", "w_grad"]


@pytest.mark.parametrize("what", ["axes left out", "empty axes", "computed axes"])
@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"])
def test_what_may_reduce_nothing(op, what):
    """Some runtimes return the input then, others still compute everything except the sum."""
    axes = {"axes left out": "", "empty axes": ", none", "computed axes": ", given"}[what]
    body = f"y = {op} <noop_with_empty_axes = 1> (x{axes})"
    refused = case("float[N, 3] x, int64[K] given", body, initializers="int64[0] none = {}")
    reason = f"{op} node '{op}_0'.*it has noop_with_empty_axes = 1 and no constant axes; expected axes"
    with pytest.raises(UnsupportedNodeError, match=reason):
        differentiated(refused)


NOT_LOWERED = {
    "scatter, product, by indices of unknown length": (
        "float[4] x, int64[2, K] i, float[2] u",
        'y = ScatterND <reduction = "mul"> (x, i, u)',
        "the last dimension of its indices is not known; expected a number",
    ),
    "gather of unknown rank": (
        "float[8] x, int64[K] n, int64[2] i",
        "r = Reshape (x, n) y = Gather (r, i)",
        "rank of its dX is not known",
    ),
    "gather by indices of unknown length": (
        "float[8] x, int64[2, K] i",
        "y = GatherND (x, i)",
        "last dimension of its indices is not known",
    ),
}


@pytest.mark.parametrize("name", NOT_LOWERED)
def test_what_is_not_made_standard_onnx(name):
    inputs, body, reason = NOT_LOWERED[name]
    with pytest.raises(UnsupportedNodeError, match=reason):
        in_standard_onnx(differentiated(case(inputs, body)))


def test_a_loss_of_indices():
    """No gradient flows back through them."""
    body = "p, i = MaxPool <kernel_shape = [2, 2]> (x) y = Cast <to = 1> (i)"
    with pytest.raises(ModelError, match="does not depend on 'x'"):
        differentiated(case("float[N, 2, 6, 6] x", body))


HIDDEN = {
    "bits": "b = BitCast <to = 6> (e) m = Max(b, b) z = BitCast <to = 1> (m)",
    "text": "b = Cast <to = 8> (e) m = Identity(b) z = Cast <to = 1> (m)",
}


@pytest.mark.parametrize("how", HIDDEN)
def test_a_float_in_another_form_is_refused_where_it_is_not_constant(how):
    """There is another path from x to the loss, so that a gradient reaches x."""
    body = f"e = Exp (x) {HIDDEN[how]} y = Mul (x, z) {SUM}"
    with pytest.raises(
        UnsupportedNodeError, match=r"node '\w+' \(outputs b\) .* it outputs as bits or text; expected a constant"
    ):
        of(model("float[3] x", body, opset=26), wrt=["x"])
    constant = f"{HIDDEN[how].replace('(e)', '(c)')} y = Mul (x, z) {SUM}"
    assert "x_grad" in output_names(of(model("float[3] x, float[3] c", constant, opset=26), wrt=["x"]))
    beside = f"e = Exp (x) {HIDDEN[how]} y = Mul (x, x) {SUM}"
    assert "x_grad" in output_names(of(model("float[3] x", beside, opset=26), wrt=["x"]))
