"""Models that `prepare_forward` refuses, as the oracle would fail or be wrong, and neighbours that it takes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from bngrad.errors import InputError, ModelError
from bngrad.options import ForwardOptions
from bngrad.oracle import prepare_forward
from oracle_cases import BATCH_NORM, FRESH, TO_LOSS, gradients, model, parse, sum_of

ONES = np.ones((4, 2), np.float32)


def frozen(count=1, opset=17):
    attribute = "<training_mode = 0>" if opset >= 14 else ""
    lines = "\n".join(f"y{i + 1} = BatchNormalization {attribute} (y{i}, s, b, rm, rv)" for i in range(count))
    body = f"y0 = Relu (x)\n{lines}\nloss = ReduceSum <keepdims = 0> (y{count})"
    forward = model(body, initializers=FRESH, opset=opset)
    for index, node in enumerate(forward.graph.node[1:-1]):
        node.name = f"bn{index}"
    return forward


def float64():
    forward = parse("m (double[4,2] x, double[2] w) => (double loss) { " + sum_of("b = Relu (a)") + "}")
    assert forward.graph.input[0].type.tensor_type.elem_type == TensorProto.DOUBLE
    return forward


def mixed(element):
    return model(sum_of(f"h = Cast <to = {element}> (a)\n i = Mul (h, h)\n b = Cast <to = 1> (i)"))


def external():
    forward = model(sum_of("b = Relu (a)"))
    forward.graph.initializer[0].data_location = TensorProto.EXTERNAL
    forward.graph.initializer[0].external_data.add(key="location", value="w.bin")
    return forward


def newest_with_new_op():
    forward = model(sum_of("b = Relu (a)"), opset=24, ir=10)
    forward.graph.node.append(helper.make_node("TensorScatter", ["x", "x"], ["ts"]))
    return forward


TWO_LOSSES = model(
    sum_of("b = Relu (a)") + "\n other = ReduceMean <keepdims = 0> (b)", outputs="float loss, float other"
)
NO_LOSS = model("a = Mul (x, w)\n loss = Relu (a)", outputs="float[4,2] loss")
ONE_BY_ONE = model("a = Mul (x, w)\n loss = ReduceSum (a)", outputs="float[1,1] loss")
PLAIN = model(sum_of("b = Relu (a)"))
NORMED = model(BATCH_NORM.format(TO_LOSS), "float[4,2] x, float[4,2] t, int64[2] k", initializers=FRESH)
IN_BRANCH = model(
    """top = ReduceMax <keepdims = 0> (x)
    flag = Equal (top, top)
    a = Mul (x, w)
    b = If (flag) <
        then_branch = g () => (float[4,2] t) { t = BatchNormalization (a, w, w, w, w) },
        else_branch = h () => (float[4,2] e) { e = Relu (a) }>
    loss = ReduceSum <keepdims = 0> (b)"""
)

NO_MEAN = FRESH.replace("float[2] rm = {0.0, 0.0},", "")

IMAGES = "float[1,2,6,6] x"
KERNEL = "float[2,2,3,3] w = {" + ", ".join(["1"] * 36) + "}"


def one_node(node, inputs="float[4,2] x", initializers="float[2] w = {2.0, 3.0}", opset=17):
    body = f"a = Mul (x, w)\n b = {node}\n loss = ReduceSum <keepdims = 0> (b)"
    return model(body, inputs, initializers=initializers, opset=opset)


def convolution(attributes):
    body = f"b = Conv <{attributes}> (x, w)\n loss = ReduceSum <keepdims = 0> (b)"
    return model(body, IMAGES, initializers=KERNEL)


def pool(attributes, shape="[1,1,6,6]"):
    return one_node(f"AveragePool <{attributes}> (a)", f"float{shape} x", "float w = {2.0}")


REFUSED = {
    "a frozen one in a branch": (
        IN_BRANCH,
        {},
        "^BatchNormalization node 't' .* is frozen, in the body .* silently trains it; use --builder bngrad",
    ),
    "padding as it comes": (convolution('auto_pad = "SAME_UPPER"'), {}, "auto_pad = SAME_UPPER: .* is wrong"),
    "pooling alike": (
        pool('kernel_shape = [3, 3], auto_pad = "SAME_LOWER"'),
        {},
        "AveragePool .* auto_pad = SAME_LOWER",
    ),
    "pooling with holes": (
        one_node(
            "AveragePool <kernel_shape = [2, 2], dilations = [2, 2]> (a)",
            "float[1,1,6,6] x",
            "float w = {2.0}",
            19,
        ),
        {},
        "AveragePool .* has dilations",
    ),
    "padding that counts, rounded up": (
        pool("kernel_shape = [4, 4], strides = [4, 4], ceil_mode = 1, count_include_pad = 1, pads = [1, 1, 1, 1]"),
        {},
        "has ceil_mode and count_include_pad",
    ),
    "overlap in three dimensions": (
        pool("kernel_shape = [2, 2, 2]", "[1,1,3,3,3]"),
        {},
        "has three spatial dimensions: .* is wrong",
    ),
    "three dimensions": (
        pool("kernel_shape = [2, 2, 2], strides = [2, 2, 2]", "[1,1,4,4,4]"),
        {},
        "has three spatial dimensions: .* is wrong",
    ),
    "layer norm with a bias of one element": (
        one_node("LayerNormalization (a, w, one)", initializers="float[2] w = {2, 3}, float[1] one = {1}"),
        {},
        "has a scale or a bias that is repeated: .* is wrong",
    ),
    "negative slope": (one_node("LeakyRelu <alpha = -0.1> (a)"), {}, "has a negative alpha"),
    "approximate gelu": (
        one_node('Gelu <approximate = "tanh"> (a)', opset=20),
        {},
        "has approximate = tanh: .* is wrong",
    ),
    "choice that broadcasts": (
        one_node("Where (k, a, w)", "float[4,2] x, bool[4,2] k"),
        {},
        "Where .* broadcasts: .* is wrong",
    ),
    "power of lower rank": (
        one_node("Pow (w, x)"),
        {},
        "has a base of lower rank than its exponent",
    ),
    "float64": (float64(), {}, r"'loss' is double\[\]; .* expects a float scalar.*; .* use --builder bngrad"),
    "float64, loss named": (float64(), {"loss": "loss"}, r"'loss' is double\[\]; .* expects a float scalar"),
    "float16 inside": (mixed(10), {}, r"'h' of Cast .* is float16\[4, 2\]; .* float only"),
    "float64 inside": (mixed(11), {}, r"'h' of Cast .* is double\[4, 2\]; .* float only"),
    "bfloat16 inside": (mixed(16), {}, r"'h' of Cast .* is bfloat16\[4, 2\]; .* float only"),
    "two losses": (TWO_LOSSES, {}, r"has 2 float scalar outputs; .*'loss' \(float\[\]\), 'other' \(float\[\]\)"),
    "no loss": (NO_LOSS, {}, r"no float scalar outputs; .* are 'loss' \(float\[4, 2\]\)"),
    "loss of one element": (
        ONE_BY_ONE,
        {"loss": "loss"},
        r"is float\[1, 1\]; .* expects a float scalar, .* keepdims = 0",
    ),
    "loss misspelled": (
        PLAIN,
        {"loss": "los"},
        "'los' is not a value of this model; did you mean 'loss'?",
    ),
    "loss an input": (PLAIN, {"loss": "x"}, "is an input of the graph"),
    "weight misspelled": (
        NORMED,
        {"wrt": ["ss"]},
        "'ss' is not an input or initializer of this model; did you mean 's'",
    ),
    "weight unheard of": (
        NORMED,
        {"wrt": ["zebra"]},
        "of this model, which has 'b', 'k', 'rm', 'rv', 's' and 2 more",
    ),
    "value between nodes": (NORMED, {"wrt": ["y"]}, "'y' is computed by the model"),
    "running mean": (
        NORMED,
        {"wrt": ["rm"]},
        "does not depend on 'rm': it is a running statistic of BatchNormalization node 'y' ",
    ),
    "integers": (NORMED, {"wrt": ["k"]}, r"'k' \(int64\[2\]\) has no gradient; expected a float"),
    "what the loss ignores": (
        model(sum_of("b = Relu (a)") + "\n u = Neg (x2)", "float[4,2] x, float[4,2] x2"),
        {"wrt": ["x2"]},
        "loss 'loss' does not depend on 'x2'$",
    ),
    "no weights at all": (
        model("a = Neg (x)\n loss = ReduceSum <keepdims = 0> (a)", initializers=""),
        {},
        "depends on no weights, .*; for gradients of inputs, differentiate takes --wrt .*: 'x'",
    ),
    "running mean given out": (
        model(
            """y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, rm, rv)
            z, nm2, nv2 = BatchNormalization <training_mode = 1> (y, s, b, rm, rv)
            loss = ReduceSum <keepdims = 0> (z)""",
            "float[4,2] x, float[2] rm",
            "float loss, float[2] rm",
            NO_MEAN,
        ),
        {"options": ForwardOptions(shared_statistics="chain")},
        "'rm' of BatchNormalization node 'y' .* is read by the graph's outputs too, .* overwrites it in place",
    ),
    "Split with idle outputs": (model(sum_of("b, c = Split <axis = 1> (a)")), {}, r"Split .*\('c'\).* use Slice"),
    "ReduceL2 without keepdims": (
        model("a = Mul (x, w)\n loss = ReduceL2 <keepdims = 0> (a)"),
        {},
        "ReduceL2 .* keepdims = 1 and Squeeze",
    ),
    "two symbolic dimensions": (
        model(sum_of("b = Add (a, z)"), "float[N,2] x, float[M,2] z"),
        {},
        "Add .* dimensions 'M' and 'N'",
    ),
    "two symbolic dimensions of a bias": (
        model(sum_of("b = Gemm (a, k, z)"), "float[N,2] x, float[2,3] k, float[M,3] z"),
        {},
        "Gemm .* dimensions 'M' and 'N'",
    ),
    "a mask that is used": (
        model(sum_of("d, mask = Dropout (a)\n c = Cast <to = 1> (mask)\n b = Mul (d, c)")),
        {},
        "^Dropout node 'd' .* its output 'mask' is used; expected only d",
    ),
    "a training graph": (
        model("a = Mul (x, w)\n b = com.microsoft.ReluGrad (a, a)\n loss = ReduceSum <keepdims = 0> (b)"),
        {},
        r"training graph already: it has com\.microsoft\.ReluGrad node .*; pass the forward model",
    ),
    "an op newer than the oracle": (newest_with_new_op(), {}, "opsets up to 21, .* has 24, and onnx cannot"),
}


@pytest.mark.parametrize(("forward", "arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(forward, arguments, message):
    before = forward.SerializeToString()
    with pytest.raises(ModelError, match=message) as caught:
        prepare_forward(forward, **arguments)
    assert "\n" not in str(caught.value)
    assert forward.SerializeToString() == before


def test_weights_elsewhere():
    with pytest.raises(InputError, match=r"'w\.bin', of tensor 'w': it does not exist"):
        prepare_forward(external())


ACCEPTED = {
    "Split with all outputs": model(sum_of("d, c = Split <axis = 1> (a)\n b = Mul (d, c)")),
    "Split away from the loss": model(sum_of("b = Relu (a)\n d, c = Split <axis = 1> (a)")),
    "ReduceL2 with keepdims": model(sum_of("b = ReduceL2 (a)")),
    "float64 away from the loss": model(sum_of("b = Relu (a)\n d = Cast <to = 11> (a)\n e = Neg (d)")),
    "one symbolic dimension": model(sum_of("b = Add (a, z)"), "float[N,2] x, float[N,2] z"),
    "a symbolic dimension and 1": model(sum_of("b = Add (a, z)"), "float[N,2] x, float[1,2] z"),
    "two losses, one named": TWO_LOSSES,
    "integers on the way": model(sum_of("i = Constant <value_ints = [1, 0]> ()\n b = Gather <axis = 1> (a, i)")),
}


@pytest.mark.parametrize("forward", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(oracle, forward):
    prepared = prepare_forward(forward, "loss")
    feeds = {name: ONES for name in ("x", "z") if any(value.name == name for value in forward.graph.input)}
    if "z" in feeds and forward.graph.input[1].type.tensor_type.shape.dim[0].dim_value == 1:
        feeds["z"] = ONES[:1]
    assert all(np.isfinite(value).all() for value in gradients(oracle, prepared, **feeds).values())
