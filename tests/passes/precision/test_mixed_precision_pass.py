"""Mixed precision: which nodes compute in 16 bits, where casts are, and that the model stays what it was."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.autodiff.prepare_forward import prepare
from bngrad.opset.functions import NEWEST_OPSET
from bngrad.options import ForwardOptions
from bngrad.passes.precision.mixed_precision import MINIMUM_OPSET, MixedPrecisionPass
from bngrad.passes.precision.sixteen_bit_ops import SIXTEEN_BIT_OPS
from bngrad.passes.prepare.infer_types import InferTypesPass
from models import light
from residual_network import network

DIGITS = Path(__file__).parents[3] / "models" / "digits_resnet20.onnx"
TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


def mixed(model, dtype="float16"):
    """A model in mixed precision, which onnx's checker accepts."""
    result = ir.from_proto(model)
    InferTypesPass()(result)
    MixedPrecisionPass(TYPES[dtype])(result)
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    return result


def parse(body, inputs="float[N,4,6,6] x", outputs="float[N,4,6,6] z", opset=22):
    weights = "float[4,4,1,1] w, float[4] b, float[4,1,1] t, float[4] m, float[4] v"
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g ({inputs}, {weights}) => ({outputs}) {{ {body} }}"""
    )


def types_of(model):
    """The type of the first output of each node that is no cast, by op."""
    return {
        node.name or node.op_type: node.outputs[0].dtype.name.lower()
        for node in model.graph
        if node.op_type != "Cast"
    }


def casts(model):
    return [(n.inputs[0].name, n.outputs[0].dtype.name.lower()) for n in model.graph if n.op_type == "Cast"]


NODES = {
    "a product takes float32": ("z = Conv (x, w)", {"Conv": "float16"}),
    "data that no product computed": ("y = Relu (x) z = Identity (y)", {"Relu": "float", "Identity": "float"}),
    "after a product": ("y = Conv (x, w) z = Relu (y)", {"Conv": "float16", "Relu": "float16"}),
    "a batch norm": (
        "y = Conv (x, w) z = BatchNormalization (y, b, b, m, v)",
        {"Conv": "float16", "BatchNormalization": "float16"},
    ),
    "a batch norm of the data": ("z = BatchNormalization (x, b, b, m, v)", {"BatchNormalization": "float"}),
    "a residual": ("y = Conv (x, w) r = Conv (y, w) z = Add (y, r)", {"Conv": "float16", "Add": "float16"}),
    "a residual of float32": ("y = Conv (x, w) z = Add (x, y)", {"Conv": "float16", "Add": "float"}),
    "a bias in float32": (
        "y = Conv (x, w) z = Add (y, t)",
        {"Conv": "float16", "Add": "float"},
    ),
    "a broadcast": (
        "y = Conv (x, w) p = GlobalMaxPool (y) z = Add (y, p)",
        {"Conv": "float16", "GlobalMaxPool": "float16", "Add": "float"},
    ),
    "the mean of a window": (
        "y = Conv (x, w) z = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (y)",
        {"Conv": "float16", "AveragePool": "float16"},
    ),
    "the mean of an image": (
        "y = Conv (x, w) p = GlobalAveragePool (y) z = Add (y, p)",
        {"Conv": "float16", "GlobalAveragePool": "float", "Add": "float"},
    ),
    "a bound": (
        "y = Conv (x, w) h = Constant <value = float {6}> () z = Clip (y, , h)",
        {"Conv": "float16", "Constant": "float", "Clip": "float16"},
    ),
    "a function": (
        "y = Conv (x, w) s = Sigmoid (y) z = Relu (s)",
        {"Conv": "float16", "Sigmoid": "float", "Relu": "float"},
    ),
    "one of two is float32": (
        "y = Conv (x, w) a, c = Split <num_outputs = 2, axis = 1> (y) d = Exp (a) z = Concat <axis = 1> (d, c)",
        {"Conv": "float16", "Split": "float16", "Exp": "float", "Concat": "float"},
    ),
}


@pytest.mark.parametrize("case", NODES)
def test_the_nodes_in_16_bits(case):
    body, expected = NODES[case]
    model = mixed(parse(body))
    assert types_of(model) == expected
    assert [value.dtype for value in model.graph.outputs] == [ir.DataType.FLOAT]
    assert [value.name for value in model.graph.outputs] == ["z"]


def test_each_value_is_cast_once():
    model = mixed(parse("y = Conv (x, w) r = Conv (y, w) s = Exp (r) q = Neg (r) z = Add (s, q)"))
    assert casts(model) == [("x", "float16"), ("w", "float16"), ("r_float16", "float")]


def test_a_cast_is_not_followed_back():
    """A float32 pool stays in float32 although its data are cast for a product."""
    model = mixed(parse("y = Conv (x, w) p = MaxPool <kernel_shape = [1, 1]> (x) z = Add (y, p)"))
    assert types_of(model)["MaxPool"] == "float"


def test_doubles_stay():
    model = parse("z = Relu (x)", "double[N,4,6,6] x", "double[N,4,6,6] z")
    assert casts(mixed(model)) == []


def test_a_body_reads_float32():
    body = """y = Conv (x, w) c = Constant <value = bool {1}> ()
        z = If (c) <then_branch = f () => (float[N,4,6,6] p) { p = Exp (y) },
            else_branch = e () => (float[N,4,6,6] q) { q = Neg (y) }>"""
    model = mixed(parse(body))
    (branch,) = (node for node in model.graph if node.op_type == "If")
    values = [node.inputs[0] for attribute in branch.attributes.values() for node in attribute.as_graph()]
    assert [value.dtype for value in values] == [ir.DataType.FLOAT] * 2
    assert casts(model)[-1] == ("y_float16", "float")


def test_a_second_run_changes_nothing():
    model = mixed(onnx.load(DIGITS))
    before = [str(node) for node in model.graph]
    assert not MixedPrecisionPass(ir.DataType.FLOAT16)(model).modified
    assert [str(node) for node in model.graph] == before


@pytest.mark.parametrize("dtype", TYPES)
def test_the_opset_has_the_types_of_every_op(dtype):
    for (domain, name), op in SIXTEEN_BIT_OPS.items():
        for opset in range(MINIMUM_OPSET[TYPES[dtype]], NEWEST_OPSET + 1) if not domain else ():
            schema = onnx.defs.get_schema(name, opset)
            inputs = range(len(schema.inputs)) if op.data is None else (*op.data, *op.limits)
            for index in inputs:
                assert f"tensor({dtype})" in schema.inputs[index].types, (name, opset, index)


def test_an_older_opset_is_refused():
    with pytest.raises(ir.passes.PreconditionError, match=r"imports ai\.onnx 17; bfloat16 needs 22"):
        mixed(parse("z = Conv (x, w)", opset=17), "bfloat16")


def test_the_network():
    """Weights, batch norms' parameters and statistics, and the loss are float32; each weight is cast once."""
    source = onnx.load(DIGITS)
    model = mixed(source)
    counts = Counter((node.op_type, node.outputs[0].dtype) for node in model.graph)
    for op in ("Conv", "BatchNormalization", "Relu", "Add", "Gemm"):
        assert {dtype for name, dtype in counts if name == op} == {ir.DataType.FLOAT16}
    assert (
        counts["GlobalAveragePool", ir.DataType.FLOAT] == counts["SoftmaxCrossEntropyLoss", ir.DataType.FLOAT] == 1
    )
    assert {value.dtype for value in model.graph.initializers.values()} == {ir.DataType.FLOAT}
    for node in model.graph:
        if node.op_type == "BatchNormalization":
            parameters = [*node.inputs[1:], *node.outputs[1:]]
            assert {value.dtype for value in parameters} == {ir.DataType.FLOAT}
    numbers = Counter(name for name, dtype in casts(model) if dtype == "float16")
    products = [node for node in source.graph.node if node.op_type in ("Conv", "Gemm")]
    assert numbers == Counter(
        {"images": 1, "flatten": 1} | {name: 1 for node in products for name in node.input[1:]}
    )


@pytest.mark.parametrize(
    "name",
    [
        "shufflenet",
        *(pytest.param(n, marks=pytest.mark.long) for n in ("resnet50", "densenet121", "inception_v2")),
    ],
)
def test_no_activation_between_products_is_in_float32(name):
    """A cast in the middle of a network would come back after each of its blocks."""
    model = prepare(ir.from_proto(light.prepare(name)), ForwardOptions())
    MixedPrecisionPass(ir.DataType.FLOAT16)(model)
    wide = [
        node.op_type
        for node in model.graph
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and value.shape is not None and len(value.shape) == 4
    ]
    assert len(wide) <= 3, wide


def test_validate_accepts_its_gradients():
    """A forward model in mixed precision is one as any other: `validate` has bounds for its types."""
    report = bngrad.validate(ir.to_proto(mixed(network())), against="reference", batch_size=4)
    assert report.passed
