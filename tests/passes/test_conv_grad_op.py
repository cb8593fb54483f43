"""ConvGrad as an op of ``bngrad``: its functions, the nodes that share one, and what runs in which runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

import bngrad
from bngrad.errors import InputError, ModelError
from bngrad.io.well_formed import require_well_formed
from bngrad.opset.conv_grad import NAME
from bngrad.opset.domain import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.lower.conv_grad_op import to_channels_last
from bngrad.validation.float64 import evaluate
from bngrad.validation.training_ops._windows import slide
from bngrad.validation.training_ops.convolution import conv_grad
from test_lower_convolution import ANY, APART, APART_ELSEWHERE, model_of

AUTO_PAD = [
    ("same upper", (3, 7, 8), (4, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ("same lower", (3, 7, 8), (4, 3, 2, 3), {"auto_pad": "SAME_LOWER"}),
    ("valid", (3, 7, 8), (4, 3, 2, 3), {"auto_pad": "VALID", "dilations": [2, 1]}),
]
OUTPUTS = [("dX", "dW", "dB"), ("dX", "dW"), ("dX",), ("", "dW"), ("", "", "dB"), ("dX", "", "dB")]
RUNS_OVERLOADS = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 27)
needs_overloads = pytest.mark.skipif(not RUNS_OVERLOADS, reason="ONNX Runtime below 1.27 has no overloads")


def with_op(model: ir.Model) -> onnx.ModelProto:
    """The model, rewritten with ConvGrad as an op."""
    return ir.to_proto(bngrad.rewrite(model, conv_grad=True))


@pytest.fixture(scope="module")
def digits():
    return onnx.load(Path(__file__).parents[2] / "models" / "digits_resnet20.onnx")


def session_of(model, **options):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    for name, value in options.items():
        setattr(settings, name, value)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def calls(model):
    return [node for node in model.graph.node if (node.domain, node.op_type) == (DOMAIN, NAME)]


def feeds_of(x, w, attributes, rng):
    geometry = {name: value for name, value in attributes.items() if name != "group"}
    shapes = {"dY": (2, w[0], *slide(x[1:], w[2:], **geometry).out), "X": (2, *x), "W": w}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@needs_overloads
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [pytest.param(*case, id=name) for name, *case in [*ANY, *APART, *APART_ELSEWHERE, *AUTO_PAD]],
)
def test_its_functions_are_the_gradients(x, w, attributes, rng):
    model = with_op(model_of(x, w, attributes, OUTPUTS[0]))
    (call,) = calls(model)
    assert {attribute.name for attribute in call.attribute} == {
        "dilations",
        "group",
        "kernel_shape",
        "pads",
        "strides",
    }
    feeds = feeds_of(x, w, attributes, rng)
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    expected = dict(zip(OUTPUTS[0], conv_grad(**wide, **attributes), strict=True))
    exact = evaluate(model, wide)
    results = session_of(model).run(list(expected), feeds)
    for (name, array), result in zip(expected.items(), results, strict=True):
        np.testing.assert_allclose(exact[name], array, rtol=0, atol=1e-12)
        np.testing.assert_allclose(result, array, rtol=0, atol=1e-4)


@needs_overloads
@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
def test_omitted_outputs_are_not_computed(outputs, rng):
    _, x, w, attributes = ANY[-1]
    model, lowered = model_of(x, w, attributes, outputs), model_of(x, w, attributes, outputs)
    model = with_op(model)
    (call,) = calls(model)
    assert tuple(call.output) == outputs
    onnx.checker.check_model(model, full_check=True)
    feeds = feeds_of(x, w, attributes, rng)
    expected = dict(zip(OUTPUTS[0], conv_grad(**feeds, **attributes), strict=True))
    names = [name for name in outputs if name]
    for name, result in zip(names, session_of(model).run(names, feeds), strict=True):
        np.testing.assert_allclose(result, expected[name], rtol=0, atol=1e-4)
    ops = Counter(node.op_type for function in model.functions[:-1] for node in function.node)
    plain = Counter(node.op_type for node in ir.to_proto(bngrad.rewrite(lowered)).graph.node)
    assert ops["Conv"] == plain["Conv"]
    assert ops["ConvTranspose"] == plain["ConvTranspose"]


def channels_last_of(model):
    """The model with channels_last = 1, for arrays of that layout."""
    result = ir.from_proto(model)
    to_channels_last([node for node in result.graph if node.domain == DOMAIN], result)
    # The inputs and outputs still have the shapes of the other layout.
    for value in (*result.graph.inputs, *result.graph.outputs):
        if value.name != "dB":
            value.shape = ir.Shape([value.shape[0], *value.shape[2:], value.shape[1]])
    return ir.to_proto(result)


@needs_overloads
@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [pytest.param(*case, id=name) for name, *case in (ANY[0], ANY[-1], APART[0], AUTO_PAD[0])],
)
def test_channels_last(x, w, attributes, outputs, rng):
    """The functions compute the same, and the schema infers the same shapes."""
    model = channels_last_of(with_op(model_of(x, w, attributes, outputs)))
    (call,) = calls(model)
    assert [attribute.i for attribute in call.attribute if attribute.name == "channels_last"] == [1]
    assert [function.overload for function in model.functions] == ["2", "bngrad.requires"]
    onnx.checker.check_model(model, full_check=True)
    require_well_formed(ir.from_proto(model), "the model")
    feeds = feeds_of(x, w, attributes, rng)
    expected = dict(zip(OUTPUTS[0], conv_grad(**feeds, **attributes), strict=True))
    names = [name for name in outputs if name]
    feeds = {name: np.moveaxis(array, 1, -1) for name, array in feeds.items()}
    for name, result in zip(names, session_of(model).run(names, feeds), strict=True):
        array = expected[name] if name == "dB" else np.moveaxis(expected[name], 1, -1)
        np.testing.assert_allclose(result, array, rtol=0, atol=1e-4)


def test_nodes_of_one_form_share_a_channels_last_function():
    """A function that other nodes call stays."""
    model = ir.to_proto(model_of((3, 6, 6), (4, 3, 3, 3), {}, ("dX",)))
    for name in ("second", "third"):
        model.graph.node.append(grad_node(name))
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3, 6, 6]))
    result = ir.from_proto(bngrad.rewrite(model, conv_grad=True))
    first, *others = nodes = [node for node in result.graph if node.domain == DOMAIN]
    assert [node.overload for node in nodes] == ["1", "1", "1"]
    to_channels_last([first], result)
    assert [node.overload for node in nodes] == ["2", "1", "1"]
    assert [overload for *_, overload in result.functions] == ["1", "2", "bngrad.requires"]
    to_channels_last(others, result)
    assert [node.overload for node in nodes] == ["2", "3", "3"]
    assert [overload for *_, overload in result.functions] == ["2", "3", "bngrad.requires"]


def is_default(attribute):
    """Tests whether a convolution means the same without an attribute, as functions of ops have all."""
    defaults = {"dilations": 1, "output_padding": 0}
    of_all = defaults.get(attribute.name)
    return attribute.name == "kernel_shape" or (of_all is not None and set(attribute.ints) == {of_all})


@needs_overloads
@pytest.mark.parametrize("layout", [pytest.param("named", marks=pytest.mark.long), "flat"])
def test_onnx_runtime_runs_the_same_nodes(layout, digits, tmp_path):
    """A step with the op is the step without it, node for node, after ONNX Runtime has inlined its functions."""
    nodes = []
    for chosen in (False, True):
        step = bngrad.training_step(digits, optimizer=bngrad.SGD(momentum=0.9), layout=layout, conv_grad=chosen)
        path = tmp_path / f"{chosen}.onnx"
        session_of(step.model, optimized_model_filepath=str(path))
        nodes.append(
            Counter(
                (node.op_type, *sorted(str(a) for a in node.attribute if not is_default(a) and a.name != "value"))
                for node in onnx.load(path).graph.node
            )
        )
    assert nodes[0] == nodes[1]


@needs_overloads
def test_a_trainer_has_the_same_bits(digits, rng):
    losses = []
    data = {
        "images": rng.standard_normal((8, 1, 8, 8)).astype(np.float32),
        "labels": np.arange(8, dtype=np.int64),
    }
    for chosen in (False, True):
        step = bngrad.training_step(digits, optimizer="sgd", conv_grad=chosen)
        trainer = bngrad.Trainer(step, learning_rate=0.1)
        losses.append([trainer.step(**data) for _ in range(3)])
    assert losses[0] == losses[1]


def test_nodes_of_one_form_share_a_function(digits):
    model = bngrad.differentiate(digits, conv_grad=True)
    overloads = [node.overload for node in calls(model)]
    functions = [function.overload for function in model.functions if function.name == NAME]
    assert len(set(overloads)) < len(overloads)
    assert sorted({*overloads, "bngrad.requires"}) == sorted(functions)
    assert model.ir_version >= 10


def grad_node(name, **attributes):
    inputs = ["dY", "X", "W"]
    return helper.make_node(NAME, inputs, [name], f"node of {name}", domain=MICROSOFT, **attributes)


def test_pads_of_one_sum_have_functions_of_their_own():
    """All shapes are equal, and the gradients are not."""
    model = ir.to_proto(model_of((3, 6, 6), (4, 3, 3, 3), {"pads": [0, 1, 1, 1]}, ("dX",)))
    model.graph.node.append(grad_node("other", pads=[1, 1, 0, 1]))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", 3, 6, 6]))
    first, second = calls(bngrad.rewrite(model, conv_grad=True))
    assert first.overload != second.overload


@pytest.mark.parametrize(
    ("w", "attributes", "symbolic"),
    [((4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, True), (("M", 3, 3, 3), {}, False)],
    ids=["padding", "weights"],
)
def test_a_form_that_is_unknown_is_lowered(w, attributes, symbolic):
    model = with_op(model_of((3, 7, 8), w, attributes, ("dX", "dW"), symbolic=symbolic))
    assert not calls(model)
    assert not model.functions


@needs_overloads
def test_symbolic_sizes_of_the_data(rng):
    _, x, w, attributes = ANY[-1]
    model = with_op(model_of(x, w, attributes, ("dX", "dW"), symbolic=True))
    assert calls(model)
    feeds = feeds_of(x, w, attributes, rng)
    expected = conv_grad(**feeds, **attributes)
    for result, array in zip(session_of(model).run(["dX", "dW"], feeds), expected, strict=False):
        np.testing.assert_allclose(result, array, rtol=0, atol=1e-4)


def test_a_second_rewrite_adds_no_overload_twice():
    _, x, w, attributes = ANY[0]
    once = bngrad.rewrite(ir.to_proto(model_of(x, w, attributes)), conv_grad=True)
    other = helper.make_node(
        "ConvGrad", ["dY", "X", "W"], ["other"], "other", domain="com.microsoft", **attributes
    )
    once.graph.node.append(other)
    once.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", *x]))
    once.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    twice = bngrad.rewrite(once, conv_grad=True)
    assert [function.overload for function in twice.functions] == ["1", "2", "bngrad.requires"]


def test_a_runtime_that_takes_the_last_overload_refuses_it():
    """ONNX Runtime below 1.27 ignores the overload of a call."""
    _, x, w, attributes = ANY[0]
    model = with_op(model_of(x, w, attributes))
    if RUNS_OVERLOADS:
        for call in calls(model):
            call.overload = model.functions[-1].overload
    with pytest.raises(Exception, match="OnnxRuntime_1_27_or_newer"):
        session_of(model)


def test_a_registered_kernel_is_taken_before_an_overload(rng):
    """As a kernel of ConvGrad would be; this library has those of the other ops."""
    inputs, axes = ["dY", "X", "scale", "mean", "inv_std", "axes"], np.array([0, 2])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    body = [helper.make_node("Identity", ["X"], ["dX"])]
    op = (DOMAIN, "BatchNormalizationGrad")
    function = helper.make_function(*op, inputs, ["dX"], body, imports[:1], ["training_mode"], overload="1")
    node = helper.make_node(op[1], inputs, ["dX"], domain=DOMAIN, training_mode=0, overload="1")
    arrays = {name: rng.standard_normal((2, 3, 4)).astype(np.float32) for name in inputs[:2]}
    arrays |= {name: np.full(3, 2, np.float32) for name in inputs[2:5]} | {"axes": axes}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    result = helper.make_tensor_value_info("dX", TensorProto.FLOAT, (2, 3, 4))
    graph = helper.make_graph([node], "g", values, [result])
    model = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)
    (dX,) = bngrad.session(model).run(None, arrays)
    np.testing.assert_allclose(dX, 4 * arrays["dY"], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda function: setattr(function, "overload", ""), "in the domain bngrad, which has no such op"),
        (lambda function: function.input.append("more"), "does not have the signature of that op"),
        (lambda function: function.attribute.remove("group"), "does not have the signature of that op"),
    ],
    ids=["overload", "inputs", "attributes"],
)
def test_another_function_of_its_name_is_refused(change, message):
    _, x, w, attributes = ANY[0]
    model = with_op(model_of(x, w, attributes))
    change(model.functions[0])
    with pytest.raises(ModelError, match=message):
        bngrad.rewrite(model)


def test_it_needs_functions():
    _, x, w, attributes = ANY[0]
    with pytest.raises(InputError, match=r"--conv-grad \(conv_grad=\) needs the functions of the ops"):
        bngrad.rewrite(model_of(x, w, attributes), conv_grad=True, functions=False)


def test_the_schema_infers_shapes():
    _, x, w, attributes = ANY[-1]
    model = with_op(model_of(x, w, attributes, OUTPUTS[0]))
    del model.functions[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output
    shapes = [[dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inferred]
    assert shapes == [["N", *x], list(w), [w[0]]]
