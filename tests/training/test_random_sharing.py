"""Random forward models whose batch norms share initializers in every way that a deduplication can bring about."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import bngrad
from bngrad.errors import InputError
from bngrad.training.differentiate import differentiate

SEEDS = range(60)
POOL = ("p", "q", "r", "u")
FLOAT = onnx.TensorProto.FLOAT


def forward_model(rng):
    """Two to four batch norms in a row, with parameters from a small pool, perhaps through Identity nodes."""
    copies = [helper.make_node("Identity", [name], [f"{name}_copy"]) for name in POOL]
    nodes, x, outputs = list(copies), "x", ["loss", "z"]
    count = int(rng.integers(2, 5))
    for number in range(count):
        parameters = [str(rng.choice(POOL)) + ("_copy" if rng.random() < 0.25 else "") for _ in range(4)]
        training = bool(rng.random() < 0.75)
        names = [f"y{number}", *([f"m{number}", f"v{number}"] if training else [])]
        name = f"bn{number}" if rng.random() < 0.75 else ""
        attributes = {"training_mode": 1, "momentum": 0.5} if training else {}
        nodes.append(helper.make_node("BatchNormalization", [x, *parameters], names, name=name, **attributes))
        nodes.append(helper.make_node("Sigmoid", names[:1], [f"s{number}"]))
        outputs += [output for output in names[1:] if rng.random() < 0.5]
        x = f"s{number}"
    scale = str(rng.choice(POOL))
    nodes += [
        helper.make_node("Mul", [x, scale], ["z"], name="mul"),
        helper.make_node("ReduceMean", ["z"], ["loss"], keepdims=0, name="loss"),
    ]
    types = {"loss": [], "z": ["N", 2]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 2])],
        [helper.make_tensor_value_info(name, FLOAT, types.get(name, [2])) for name in outputs],
        [numpy_helper.from_array(rng.uniform(0.5, 2, 2).astype(np.float32), name) for name in POOL],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def options_of(rng):
    options = {"shared_statistics": str(rng.choice(["separate", "chain"]))}
    if rng.random() < 0.3:
        options["frozen"] = ["*0"]
    if rng.random() < 0.3:
        options["training"] = ["*1"]
    return options


def read_by(training):
    """The inputs and initializers that each batch norm of a training graph reads, by the name of its output."""
    makers = {name: node for node in training.graph.node for name in node.output if name}

    def source(name, slot):
        while name in makers:
            node = makers[name]
            name = node.input[slot if node.op_type.startswith("BatchNormalization") else 0]
        return name

    kinds = ("BatchNormalization", "BatchNormalizationTraining")
    nodes = [node for node in training.graph.node if node.op_type in kinds]
    return {node.output[0]: [source(node.input[slot], slot) for slot in range(1, 5)] for node in nodes}


def by_hand(model, training, state):
    """The forward model in inference mode, each batch norm with its statistics in the training graph."""
    reads = read_by(training)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in training.graph.initializer} | state
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            for slot, name in enumerate(reads[node.output[0]], 1):
                node.input[slot] = f"{node.output[0]}/{slot}"
                model.graph.initializer.append(numpy_helper.from_array(values[name], node.input[slot]))
            del node.output[1:]
            node.ClearField("attribute")
    for tensor in model.graph.initializer:
        if tensor.name in state:
            tensor.CopyFrom(numpy_helper.from_array(state[tensor.name], tensor.name))
    return model


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed >= 20)) for seed in SEEDS])
def test_what_was_trained_goes_to_what_was_trained(seed):
    rng = np.random.default_rng(seed)
    model, options = forward_model(rng), options_of(rng)
    differentiated = differentiate(ir.from_proto(model), loss="loss", **options)
    training = ir.to_proto(differentiated.model)
    names = {value.name for value in training.graph.input} - {"x"}
    state = {t.name: numpy_helper.to_array(t) for t in training.graph.initializer if t.name in names}
    assert set(state) == names
    session = bngrad.session(training, "function")
    outputs = [value.name for value in session.get_outputs()]
    for _ in range(2):
        x = rng.standard_normal((5, 2)).astype(np.float32)
        values = dict(zip(outputs, session.run(outputs, {**state, "x": x}), strict=True))
        state |= {old: values[new] for old, new in differentiated.running_statistics.items()}
        state |= {w: (state[w] + rng.uniform(0.1, 1, 2)).astype(np.float32) for w in differentiated.gradients}
    (want,) = ReferenceEvaluator(by_hand(forward_model(np.random.default_rng(seed)), training, state)).run(
        ["z"], {"x": x}
    )
    got = z_of(bngrad.finalize(model, state), x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    # Whatever subset is given is right as well, or refused: what is not given has the value that it had.
    subset = {name: state[name] for name in state if rng.random() < 0.8}
    before = {t.name: numpy_helper.to_array(t) for t in training.graph.initializer}
    try:
        got = z_of(bngrad.finalize(model, subset), x)
    except InputError as error:
        assert "which training keeps apart" in str(error)  # noqa: PT017
        return
    (want,) = ReferenceEvaluator(
        by_hand(forward_model(np.random.default_rng(seed)), training, before | subset)
    ).run(["z"], {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def z_of(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["z"], {"x": x})[0]
