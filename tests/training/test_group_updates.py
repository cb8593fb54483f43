"""Updates by ops for groups of weights: the same bits as without them, the nodes of each group, and refusals.

The kernels of the ops are for a GPU; tests/ops/test_cuda_group_updates.py has them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

import bngrad
from bngrad.errors import InputError, ModelError
from bngrad.io.well_formed import require_well_formed
from bngrad.opset.group_updates import ADAM, IS_ALL_FINITE, RMSPROP, SGD, TYPES
from bngrad.validation.float64 import evaluate

RUNS_OVERLOADS = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 27)
needs_overloads = pytest.mark.skipif(not RUNS_OVERLOADS, reason="ONNX Runtime below 1.27 has no overloads")

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2] x) => (float loss) <
    float[2,3] a = {1, 2, 3, -1, 2, 5}, float[3] b = {3, 4, 5}, float[1,3] c = {0.5, 1, 2},
    double[3] d = {5, 6, 7}, double[1,3] e = {2, 3, 1}> {
    p = MatMul (x, a)
    q = Add (p, b)
    t = Tanh (q)
    u = Mul (t, c)
    w = Cast <to = 11> (u)
    y = Mul (w, d)
    z = Add (y, e)
    s = ReduceMean <keepdims = 0> (z)
    loss = Cast <to = 1> (s)
}"""
"""Three weights of float and two of double."""
GROUPS = [bngrad.ParameterGroup(max_rank=1, weight_decay=0, learning_rate_scale=2)]
NESTEROV = bngrad.SGD(momentum=0.9, nesterov=True, weight_decay=0.01)
OPTIONS = {
    "sgd": ({"optimizer": "sgd"}, [1]),
    "momentum": ({"optimizer": bngrad.SGD(momentum=0.9)}, [1]),
    "nesterov, groups, clipped": ({"optimizer": NESTEROV, "groups": GROUPS, "clip_norm": 1.0}, [1, 2]),
    "accumulate": ({"optimizer": bngrad.SGD(momentum=0.9), "accumulate": 2}, [1]),
    "ema": ({"optimizer": bngrad.SGD(weight_decay=0.1), "ema": 0.9}, [1]),
    "mixed": ({"optimizer": NESTEROV, "precision": "mixed"}, [1]),
    "mixed, skipped": ({"optimizer": NESTEROV, "precision": "mixed", "init_scale": 2.0**126}, [1]),
    "mixed, skipped, accumulate, ema": (
        {"optimizer": "rmsprop", "precision": "mixed", "init_scale": 2.0**126, "accumulate": 2, "ema": 0.9},
        [1],
    ),
    "rmsprop, groups": ({"optimizer": "rmsprop", "groups": GROUPS}, [1, 2]),
    "rmsprop, momentum": ({"optimizer": bngrad.RMSprop(momentum=0.9, weight_decay=0.01)}, [1]),
    "rmsprop, centered": ({"optimizer": bngrad.RMSprop(centered=True), "clip_norm": 1.0}, [1]),
    "rmsprop, all": ({"optimizer": bngrad.RMSprop(momentum=0.9, centered=True, weight_decay=0.01)}, [1]),
    "lion": ({"optimizer": "lion"}, [1]),
    "lion, groups": ({"optimizer": bngrad.Lion(weight_decay=0.1), "groups": GROUPS, "accumulate": 2}, [1, 2]),
    "adam": ({"optimizer": bngrad.Adam(weight_decay=0.01)}, [1, 2]),
    "adamw, groups": ({"optimizer": "adamw", "groups": GROUPS, "clip_norm": 1.0}, [1, 2, 3, 4]),
}
"""Options of a step, and the overloads of its nodes."""
DATA = {"x": np.array([[1, 2], [3, 5], [-1, 0.5]], np.float32)}
LARGE_DATA = {"x": np.array([[-2.5, 0.5]], np.float32)}
"""Tanh is at 0, and with a scale of 2^126 gradients are infinite."""


@pytest.fixture
def model():
    return onnx.parser.parse_model(MODEL)


def calls(step):
    return [node for node in step.model.graph.node if node.op_type in TYPES]


def trained(model, **options):
    step = bngrad.training_step(model, **options)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    data = LARGE_DATA if options.get("init_scale") else DATA
    losses = [trainer.step(**data) for _ in range(5)]
    return step, losses, trainer.state_dict()


@needs_overloads
@pytest.mark.parametrize("layout", ["named", "flat"])
@pytest.mark.parametrize(("options", "overloads"), OPTIONS.values(), ids=OPTIONS)
def test_the_bits_are_those_of_single_updates(model, options, overloads, layout):
    _, losses, expected = trained(model, layout=layout, **options)
    step, same_losses, state = trained(model, layout=layout, group_updates=True, **options)
    assert sorted(int(node.overload) for node in calls(step)) == overloads
    assert same_losses == losses
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


@needs_overloads
@pytest.mark.parametrize(("name", "skipped"), [("mixed", 0), ("mixed, skipped", 2)])
def test_no_node_of_its_own_keeps_a_weight(model, name, skipped):
    """The condition that all gradients are finite is an input of the op, which keeps weights and slots."""
    step, _, state = trained(model, group_updates=True, **OPTIONS[name][0])
    assert state["scaler/skipped"] == skipped
    assert len(calls(step)) == 1
    assert sum(node.op_type == IS_ALL_FINITE for node in step.model.graph.node) == 2  # of float and of double
    kept = {node.input[2] for node in step.model.graph.node if node.op_type == "Where"}
    assert not kept & {name for name, entry in step.info.state.items() if entry.dtype == "float32" and entry.shape}


@needs_overloads
@pytest.mark.parametrize("name", ["nesterov, groups, clipped", "adamw, groups"])
def test_onnx_runtime_runs_the_same_nodes(model, name, tmp_path):
    """Even the factor 1 of gradients that are not clipped costs nothing."""
    options, nodes = OPTIONS[name][0] | {"clip_norm": None}, []
    for chosen in (False, True):
        step = bngrad.training_step(model, group_updates=chosen, **options)
        settings = onnxruntime.SessionOptions()
        settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        onnxruntime.InferenceSession(step.model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        nodes.append(Counter(node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node))
    assert nodes[0] == nodes[1]


@needs_overloads
def test_implementations(model):
    """The functions of AdamGroupUpdate call AdamUpdate, which has a kernel and a function."""
    step = bngrad.training_step(model, optimizer="adam", group_updates=True)
    feeds = DATA | step.state | {"learning_rate": np.array(0.1, step.info.learning_rate_dtype)}
    expected = evaluate(step.model, feeds)
    for implementation in ("native", "function", "python"):
        session = bngrad.session(step.model, implementation)
        names = [value.name for value in session.get_outputs()]
        for name, result in zip(names, session.run(names, feeds), strict=True):
            np.testing.assert_allclose(result, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["sgd", "adamw, groups", "rmsprop, all", "lion", "mixed"])
def test_the_step_is_valid(model, name, tmp_path):
    step = bngrad.training_step(model, group_updates=True, **OPTIONS[name][0])
    onnx.checker.check_model(step.model, full_check=True)
    require_well_formed(ir.from_proto(step.model), "the step")
    assert step.model.ir_version >= 10
    step.save(tmp_path / "step.onnx")
    assert bngrad.read_training_step(tmp_path / "step.onnx").info == step.info


def test_without_the_option_there_are_no_functions(model):
    assert not bngrad.training_step(model, optimizer="sgd").model.functions


def test_it_needs_functions(model):
    with pytest.raises(InputError, match=r"--group-updates \(group_updates=\) needs the functions of the ops"):
        bngrad.training_step(model, group_updates=True, functions=False)


def test_a_runtime_that_takes_the_last_overload_refuses_it(model):
    """ONNX Runtime below 1.27 ignores the overload of a call."""
    step = bngrad.training_step(model, optimizer="sgd", group_updates=True)
    if RUNS_OVERLOADS:
        (call,) = calls(step)
        call.overload = step.model.functions[-1].overload
    with pytest.raises(Exception, match="OnnxRuntime_1_27_or_newer"):
        onnxruntime.InferenceSession(step.model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "change",
    [lambda function: function.attribute.remove("nesterov"), lambda function: function.ClearField("input")],
    ids=["attributes", "inputs"],
)
def test_another_function_of_its_name_is_refused(model, change):
    step = bngrad.training_step(model, optimizer="sgd", group_updates=True)
    change(step.model.functions[0])
    with pytest.raises(ModelError, match=r"its function bngrad\.SgdGroupUpdate does not have the signature"):
        require_well_formed(ir.from_proto(step.model), "the step")


@pytest.mark.parametrize(
    ("op", "tensors", "new", "message"),
    [
        (SGD, 4, 2, None),
        (SGD, 6, 4, None),
        (SGD, 2, 2, "there are 2 tensors and 2 new ones"),
        (RMSPROP, 10, 8, None),
        (RMSPROP, 10, 6, "there are 10 tensors and 6 new ones"),
        (ADAM, 8, 6, None),
        (ADAM, 8, 5, "there are 8 tensors and 5 new ones"),
    ],
)
def test_inferred_shapes(op, tensors, new, message):
    """A new tensor has the shape of the old one, which comes before the gradients or after them."""
    weights = tensors - new
    scalars = {"a": [9]} if op == ADAM else {"a": [], "b": []}
    types = dict.fromkeys(scalars, TensorProto.DOUBLE if op == ADAM else TensorProto.FLOAT)
    types["is_applied"] = TensorProto.BOOL
    shapes = scalars | {"is_applied": []} | {f"t{i}": [i % weights + 1 if weights else 1] for i in range(tensors)}
    outputs = [f"n{i}" for i in range(new)]
    names = onnx.defs.get_schema(op, 1, "bngrad").attributes
    attributes = {name: 0 if name in ("nesterov", "centered") else 0.5 for name in names}
    graph = helper.make_graph(
        [helper.make_node(op, list(shapes), outputs, domain="bngrad", **attributes)],
        "g",
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("bngrad", 1)])
    if message is not None:
        with pytest.raises(onnx.shape_inference.InferenceError, match=message):
            onnx.shape_inference.infer_shapes(model, strict_mode=True)
        return
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    dims = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inferred.graph.output]
    assert dims == [[i % weights + 1] for i in range(new)]
