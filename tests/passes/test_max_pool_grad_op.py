"""MaxPoolInputGrad, an op of ``bngrad``: which pools take it, what stays as it was, and derivatives of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.io.well_formed import require_well_formed
from bngrad.opset.domain import DOMAIN
from bngrad.opset.max_pool_grad import NAME
from bngrad.passes.lower.max_pool_grad_op import MaxPoolGradOpPass
from bngrad.runtime.session import session
from bngrad.validation.float64 import Evaluator, evaluate

SAME = 'auto_pad = "SAME_UPPER", strides = [2, 2]'
TAKEN = {
    # The attributes of MaxPool and those of the op that differ from the defaults.
    "2x2": ("float[N,2,6,8]", "kernel_shape = [2, 2], strides = [2, 2]", {"strides": [2, 2]}),
    "defaults": ("float[N,2,H,W]", "kernel_shape = [3, 2]", {}),
    "pads": (
        "float[N,2,H,W]",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 0, 1, 1]",
        {"strides": [2, 2], "pads": [1, 0, 1, 1]},
    ),
    "ceil": (
        "float[N,2,7,6]",
        "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1",
        {"strides": [2, 2], "ceil_mode": 1},
    ),
    "double": ("double[N,2,7,6]", "kernel_shape = [2, 2]", {}),
    "1-D": ("float[N,2,9]", "kernel_shape = [3]", {}),
    "3-D": ("float[N,2,4,5,6]", "kernel_shape = [2, 2, 2]", {}),
    "valid": ("float[N,2,H,W]", 'kernel_shape = [2, 2], auto_pad = "VALID"', {}),
    "same": (
        "float[N,2,7,8]",
        f"kernel_shape = [3, 3], {SAME}",
        {"strides": [2, 2], "pads": [1, 0, 1, 1]},
    ),
    "same lower": (
        "float[N,2,4,5]",
        'kernel_shape = [2, 4], auto_pad = "SAME_LOWER"',
        {"pads": [1, 2, 0, 1]},
    ),
}
LOWERED = {
    "float16": ("float16[N,2,6,8]", "kernel_shape = [2, 2]"),
    "dilations": ("float[N,2,6,8]", "kernel_shape = [2, 2], dilations = [2, 1]"),
    "same of symbolic sizes": ("float[N,2,H,W]", f"kernel_shape = [3, 3], {SAME}"),
    "same with gaps": ("float[N,2,8,10]", 'kernel_shape = [1, 1], auto_pad = "SAME_UPPER", strides = [3, 4]'),
}
MODEL = """<ir_version: 8, opset_import: ["": 18, "bngrad": 1]>
    g ({type} x, {scalar} w) => ({scalar} loss{more}) {{
        a = Mul (x, w)  y{indices} = MaxPool <{attributes}> (a)  q = Mul (y, y)
        {wide}
    }}"""


def forward(kind, attributes, *, indices="", more=""):
    """The sum of the squares of a pool's results."""
    scalar = kind.partition("[")[0]
    loss = "loss = ReduceSum <keepdims = 0> (q)"
    text = MODEL.format(type=kind, scalar=scalar, attributes=attributes, indices=indices, more=more, wide=loss)
    return onnx.parser.parse_model(text)


def gradient_of(model, **options):
    return bngrad.differentiate(model, loss="loss", wrt=["x"], **options)


def counts(model):
    """The nodes of the op, and the MaxPools with indices."""
    pools = [node for node in model.graph.node if node.op_type == "MaxPool"]
    ops = [node for node in model.graph.node if (node.domain, node.op_type) == (DOMAIN, NAME)]
    return len(ops), sum(len(node.output) > 1 for node in pools)


def attributes_of(node):
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def feeds_of(model, rng, **sizes):
    """Numbers without ties, in the types of the inputs."""
    sizes = {"N": 2, "H": 7, "W": 6, **sizes}
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in tensor.shape.dim]
        numbers = rng.permutation(int(np.prod(shape))).reshape(shape) / 16 + 1
        feeds[value.name] = np.asarray(numbers).astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return feeds


@pytest.mark.parametrize(("kind", "attributes", "differing"), TAKEN.values(), ids=TAKEN)
def test_pools_that_need_no_indices(kind, attributes, differing, rng):
    model = gradient_of(forward(kind, attributes))
    assert counts(model) == (1, 0)
    (node,) = [node for node in model.graph.node if node.domain == DOMAIN]
    rank = len(attributes_of(node)["kernel_shape"])
    defaults = {"ceil_mode": 0, "dilations": [1] * rank, "pads": [0] * 2 * rank, "strides": [1] * rank}
    assert attributes_of(node) == defaults | differing | {"kernel_shape": attributes_of(node)["kernel_shape"]}
    assert node.name.endswith("_Grad/MaxPoolGrad_0")
    onnx.checker.check_model(model, full_check=True)
    require_well_formed(ir.from_proto(model), "the model")
    feeds = feeds_of(model, rng)
    exact = evaluate(model, feeds, ["x_grad"])["x_grad"]
    lowered = gradient_of(forward(kind, attributes, indices=", i", more=", int64[] i"))
    assert counts(lowered) == (0, 1)
    for way in ("native", "function"):
        got, old = (session(m, way).run(["x_grad"], feeds)[0] for m in (model, lowered))
        np.testing.assert_array_equal(got, old)
        np.testing.assert_allclose(got, exact, rtol=1e-6)


@pytest.mark.parametrize(("kind", "attributes"), LOWERED.values(), ids=LOWERED)
def test_pools_that_keep_their_indices(kind, attributes):
    model = gradient_of(forward(kind, attributes))
    assert counts(model)[0] == 0
    assert not model.functions


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("conv_grad", True, (1, 0)), ("channels_last", True, (1, 0)), ("target", "training", (0, 1))],
)
def test_graphs_for_a_gpu_have_the_op_and_for_a_training_build_none(option, value, expected):
    model = gradient_of(forward("float[N,2,6,8]", "kernel_shape = [2, 2]"), **{option: value})
    assert counts(model) == expected


def test_a_step_with_less_memory_has_the_op(rng):
    model = gradient_of(onnx.ModelProto.FromString(RELU), memory="lean")
    assert counts(model) == (1, 0)
    feeds = feeds_of(model, rng)
    full = gradient_of(onnx.ModelProto.FromString(RELU))
    results = [session(m, "native").run(["x_grad"], feeds)[0] for m in (model, full)]
    np.testing.assert_array_equal(*results)


RELU = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> g (float[N,2,6,8] x) => (float loss) {
        a = Relu (x) y = MaxPool <kernel_shape = [3, 3]> (a)
        q = Mul (y, y) loss = ReduceSum <keepdims = 0> (q) }"""
).SerializeToString()


def test_indices_that_the_model_returns_stay():
    model = gradient_of(
        forward("float[N,2,6,8]", "kernel_shape = [2, 2]", indices=", i", more=", int64[N,2,5,7] i")
    )
    assert counts(model) == (0, 1)
    assert "i" in [value.name for value in model.graph.output]


def test_a_model_without_functions_needs_the_library():
    model = gradient_of(forward("float[N,2,6,8]", "kernel_shape = [2, 2]"), functions=False)
    assert counts(model) == (1, 0)
    assert not model.functions
    session(model, "native")
    with pytest.raises(Exception, match=NAME):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_second_rewrite_changes_nothing():
    model = gradient_of(forward("float[N,2,6,8]", "kernel_shape = [2, 2]"))
    again = bngrad.rewrite(onnx.ModelProto.FromString(model.SerializeToString()))
    assert again.graph.node == model.graph.node
    assert again.functions == model.functions


def test_attributes_of_a_function_are_lowered():
    """Their values are unknown until the function is inlined."""
    text = """<ir_version: 8, opset_import: ["": 18, "own": 1]>
        g (float[N,2,5,7] dy, float[N,2,6,8] x) => (float[N,2,6,8] dx) { dx = own.f <k = [2, 2]> (dy, x) }
        <domain: "own", opset_import: ["": 18]> f <k> (dy, x) => (dx) {
            y, i = MaxPool <kernel_shape: ints = @k> (x) dx = MaxPoolGrad <kernel_shape: ints = @k> (dy, i) }"""
    nodes = list(ir.from_proto(onnx.parser.parse_model(text)).functions["own", "f", ""])
    assert not any(map(MaxPoolGradOpPass().matches, nodes))


def test_a_pool_that_only_made_indices_is_removed():
    """The rule makes row-major indices beside the column-major ones that the model returns."""
    attributes = "kernel_shape = [2, 2], storage_order = 1"
    model = gradient_of(forward("float[N,2,6,8]", attributes, indices=", i", more=", int64[N,2,5,7] i"))
    assert counts(model) == (1, 1)
    assert sum(node.op_type == "MaxPool" for node in model.graph.node) == 1


def test_two_gradients_of_one_pool():
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[N,2,5,7] dy, float[N,2,6,8] x) => (float[N,2,6,8] dx, float[N,2,6,8] dz) {
            [p] y, i = MaxPool <kernel_shape = [2, 2]> (x) dx = MaxPoolGrad <kernel_shape = [2, 2]> (dy, i)
            dz = MaxPoolGrad <kernel_shape = [2, 2]> (dy, i) }"""
    assert counts(bngrad.rewrite(onnx.parser.parse_model(text))) == (2, 0)


@pytest.mark.parametrize("functions", [True, False], ids=["with functions", "without functions"])
@pytest.mark.parametrize("kind", ["float[N,2,7,6]", "double[N,2,7,6]"])
def test_its_gradient(kind, functions, rng):
    """Graphs with the op can be differentiated, as those with ScatterElements, with and without its definition."""
    attributes = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
    first = gradient_of(forward(kind, attributes), functions=functions)
    scalar = kind.partition("[")[0]
    first.graph.node.extend(
        [
            onnx.helper.make_node("Mul", ["x_grad", "x_grad"], ["cubes"]),
            onnx.helper.make_node("ReduceSum", ["cubes"], ["penalty"], keepdims=0),
        ]
    )
    element = onnx.TensorProto.DataType.Value(scalar.upper())
    first.graph.output.append(onnx.helper.make_tensor_value_info("penalty", element, []))
    second = bngrad.differentiate(first, loss="penalty", wrt=["w"])
    feeds = feeds_of(second, rng)
    exact = Evaluator(first)
    weight = feeds["w"].astype(np.float64)
    ahead, behind = (exact.from_any({**feeds, "w": weight + step})["penalty"] for step in (1e-4, -1e-4))
    got = evaluate(second, feeds, ["w_grad"])["w_grad"]
    np.testing.assert_allclose(got, (ahead - behind) / 2e-4, rtol=1e-6)
    native = session(second, "native").run(["w_grad"], feeds)[0]
    np.testing.assert_allclose(native, got, rtol=1e-5)
