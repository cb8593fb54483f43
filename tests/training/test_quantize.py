"""Quantization-aware training: what a step rounds, and the quantized model that comes of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.federated import average
from bngrad.io.tensor_files import read_tensors, write_tensors
from bngrad.training.step_info import KEY, read_step_info, write_step_info
from trainer_cases import TEXT, batch, network, samples

ALL_KINDS = """<ir_version: 9, opset_import: ["" : 15]>
g (float[N,3,8,8] x, int64[N] labels) => (float loss, float[N,4] logits, float[N,6,4,4] features) {
    first = Conv <pads = [1,1,1,1]> (x, w1, b1)
    [bn1] n1, m1_new, v1_new = BatchNormalization <training_mode = 1> (first, s1, t1, m1, v1)
    r1 = Relu (n1)
    pooled = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r1)
    deep = Conv <pads = [1,1,1,1], group = 6> (pooled, w2)
    [bn2] n2, m2_new, v2_new = BatchNormalization <training_mode = 1> (deep, s2, t2, m2, v2)
    six = Constant <value_float = 6.0> ()
    zero = Constant <value_float = 0.0> ()
    r2 = Clip (n2, zero, six)
    point = Conv (r2, w3)
    [bn3] n3, m3_new, v3_new = BatchNormalization <training_mode = 1> (point, s3, t3, m3, v3)
    sum = Add (n3, pooled)
    features = Relu (sum)
    ratio = Constant <value_float = 0.25> ()
    on = Constant <value_ints = [1]> ()
    dropped = Dropout (features, ratio)
    flat = Flatten (dropped)
    hidden = Gemm (flat, w4, b4)
    [bn4] n4, m4_new, v4_new = BatchNormalization <training_mode = 1> (hidden, s4, t4, m4, v4)
    r4 = Relu (n4)
    turned = Transpose (r4)
    products = MatMul (r4, turned)
    mixed = MatMul (products, r4)
    shared = MatMul (mixed, w5)
    [bn5] n5, m5_new, v5_new = BatchNormalization <training_mode = 1> (shared, s5, t5, m5, v5)
    logits = Add (n5, shared)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""
CHANNELS = {1: 6, 2: 6, 3: 6, 4: 10, 5: 4}
SHAPES = {
    "w1": (6, 3, 3, 3),
    "b1": (6,),
    "w2": (6, 1, 3, 3),
    "w3": (6, 6, 1, 1),
    "w4": (96, 10),
    "b4": (10,),
    "w5": (10, 4),
}


def all_kinds(seed=0, **values):
    """A network with each kind of layer that is quantized, and batch norms after all of them."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=shape) / np.sqrt(np.prod(shape[1:])) for name, shape in SHAPES.items()}
    for index, channels in CHANNELS.items():
        arrays[f"s{index}"] = rng.uniform(0.5, 1.5, channels) * rng.choice([-1, 1], channels)
        arrays |= {f"t{index}": rng.normal(size=channels) / 3, f"m{index}": rng.normal(size=channels) / 3}
        arrays[f"v{index}"] = rng.uniform(0.5, 2, channels)
    model = onnx.parser.parse_model(ALL_KINDS)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)
        for name, array in (arrays | values).items()
    )
    return model


def images(seed, size=8):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(size, 3, 8, 8)).astype(np.float32), "labels": rng.integers(0, 4, size)}


def trained(model, data=images, calls=4, rate=0.01, **options):
    trainer = bngrad.Trainer(bngrad.training_step(model, **options), learning_rate=rate)
    for index in range(calls):
        trainer.step(**data(index))
    return trainer


def run_ops(model, folder):
    """The ops that stock ONNX Runtime runs."""
    options, path = onnxruntime.SessionOptions(), folder / "optimized.onnx"
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(path).graph.node]


def steps_apart(trainer, name, actual, expected):
    """The largest difference of two tensors, in integers of the tensor."""
    low, high = trainer.state_dict()[f"{name}/range"]
    symmetric = trainer.info.quantization.symmetric
    scale = max(-low, high) / 127 if symmetric else (high - low) / 255
    return np.abs(actual - expected).max() / scale


def run_stock(model, x, *outputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(list(outputs), {"x": x})


@pytest.mark.parametrize(
    ("quantize", "symmetric"),
    [
        ("uint8", False),
        pytest.param("uint8", True, marks=pytest.mark.long),
        pytest.param("int8", False, marks=pytest.mark.long),
        pytest.param("int8", True, marks=pytest.mark.long),
    ],
)
def test_the_deployed_model(quantize, symmetric, tmp_path):
    """Computes what the evaluation graph does, within one integer of its output."""
    trainer = trained(all_kinds(), quantize=quantize, symmetric=symmetric)
    model, data = trainer.finalize(), images(99, 64)
    expected = trainer.evaluate(**data)
    features, logits = run_stock(model, data["x"], "features", "logits")
    assert steps_apart(trainer, "features", features, expected["features"]) < 1.01
    assert (features != expected["features"]).mean() < 5e-4  # between two integers
    assert np.abs(logits - expected["logits"]).max() < 0.05 * expected["logits"].std()
    onnx.checker.check_model(model, full_check=True)
    assert {"QuantizeLinear", "DequantizeLinear"} < {node.op_type for node in model.graph.node}
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert not {"w1", "w2", "w3", "w4", "w5", "s1", "x/range"} & set(stored)
    assert list(stored.values()).count(onnx.TensorProto.INT32) == 8  # four biases, and their zero points

    if (quantize, symmetric) == ("uint8", False):
        require_integers(run_ops(model, tmp_path))


def require_integers(ops):
    """ONNX Runtime runs all layers in int8. On x64, it does so for uint8 only."""
    counts = [ops.count(op) for op in ("QLinearConv", "NhwcMaxPool", "QLinearAdd", "QGemm", "QLinearMatMul")]
    assert counts == [3, 1, 1, 1, 3]
    assert not {"Conv", "FusedConv", "Gemm", "MatMul", "MaxPool", "Relu", "Clip"} & set(ops)


def rounded(x, limits):
    """Values rounded to uint8, in NumPy."""
    low, high = limits
    scale = (high - low) / 255
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def rounded_weight(w):
    scale = np.abs(w).max(1, keepdims=True) / 127
    return np.rint(w / scale) * scale


MLP = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,5] x, int64[N] labels) => (float loss, float[N,3] logits) {
    h = Gemm <transB = 1> (x, w1, b1)
    n, mean_new, var_new = BatchNormalization <training_mode = 1> (h, s, t, mean, var)
    r = Relu (n)
    logits = Gemm <transB = 1> (r, w2)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""


def mlp(**changes):
    rng = np.random.default_rng(3)
    values = {"w1": rng.normal(size=(7, 5)), "b1": rng.normal(size=7), "w2": rng.normal(size=(3, 7)) / 2}
    values |= {"s": rng.uniform(0.5, 1.5, 7), "t": rng.normal(size=7), "mean": np.zeros(7), "var": np.ones(7)}
    values |= changes
    model = onnx.parser.parse_model(MLP)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in values.items()
    )
    return model, values


def vectors(seed, size=9):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(size, 5)).astype(np.float32), "labels": rng.integers(0, 3, size)}


def test_the_steps_of_numpy():
    """The losses and ranges of steps, from the formulas in float64."""
    model, values = mlp()
    trainer = bngrad.Trainer(bngrad.training_step(model, quantize="uint8"), learning_rate=0)
    ranges = {}
    for index in range(3):
        data = vectors(index)

        def observed(name, array):
            limits = np.array([min(array.min(), 0), max(array.max(), 0)])
            ranges[name] = limits if name not in ranges else ranges[name] + 0.01 * (limits - ranges[name])
            return rounded(array, ranges[name])

        h = observed("x", data["x"].astype(np.float64)) @ rounded_weight(values["w1"]).T + values["b1"]
        n = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) * values["s"] + values["t"]
        logits = observed("logits", observed("r", np.maximum(n, 0)) @ rounded_weight(values["w2"]).T)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(9), data["labels"]]
        np.testing.assert_allclose(trainer.step(**data), losses.mean(), rtol=1e-5)
    for name, limits in ranges.items():
        np.testing.assert_allclose(trainer.state_dict()[f"{name}/range"], limits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"layout": "flat", "accumulate": 2, "ema": 0.5}, {"frozen": ["*"]}])
def test_other_options_of_a_step(options):
    trainer = trained(mlp()[0], vectors, quantize="uint8", optimizer="adam", **options)
    data = vectors(50)
    (logits,) = run_stock(trainer.finalize(), data["x"], "logits")
    expected = trainer.evaluate(**data)["logits"]
    assert steps_apart(trainer, "logits", logits, expected) < (1.01 if "ema" not in options else 2)
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    np.testing.assert_array_equal(trainer.evaluate(**data)["logits"], expected)


def test_channels_without_a_scale():
    """A scale of the batch norm that is 0 or tiny, and weights that are 0."""
    s, w1 = np.array([0, 1e-20, -1e-6, 1, 1, 1, 1]), mlp()[1]["w1"].copy()
    w1[4] = 0
    model, _ = mlp(s=s, w1=w1, t=np.array([3, 2, 5, -1, 4, 0.5, 1e-3]))
    trainer = trained(model, vectors, rate=0, quantize="uint8")
    data, deployed = vectors(50), trainer.finalize()
    assert "BatchNormalization" not in {node.op_type for node in deployed.graph.node}
    (logits,) = run_stock(deployed, data["x"], "logits")
    assert steps_apart(trainer, "logits", logits, trainer.evaluate(**data)["logits"]) < 1.01


def test_tensors_above_0():
    """A range has 0, which is an integer then."""
    trainer = trained(mlp(t=np.full(7, 20.0))[0], vectors, calls=1, rate=0, quantize="uint8")
    low, high = trainer.state_dict()["r/range"]
    assert low == 0 < high


def test_tensors_that_are_0():
    """A Relu with results of 0 alone has a range without a width."""
    trainer = trained(mlp(t=np.full(7, -99.0))[0], vectors, rate=0, quantize="uint8")
    np.testing.assert_array_equal(trainer.state_dict()["r/range"], [0, 0])
    data = vectors(50)
    (logits,) = run_stock(trainer.finalize(), data["x"], "logits")
    np.testing.assert_array_equal(logits, np.zeros((9, 3)))
    assert trainer.evaluate(**data)["loss"] == pytest.approx(np.log(3))


def test_a_weight_that_two_layers_share():
    """Each has integers of its own, also without a bias: ONNX Runtime converts them to uint8 only once by name."""
    text = MLP.replace("n, mean_new, var_new = BatchNormalization <training_mode = 1> (h, s, t, mean, var)", "")
    text = text.replace("(x, w1, b1)", "(x, w1)").replace("Relu (n)", "Relu (h)").replace("(r, w2)", "(r, w1)")
    model = onnx.parser.parse_model(text.replace("float[N,3]", "float[N,5]"))
    w1 = np.random.default_rng(2).normal(size=(5, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w1, "w1"))
    trainer, data = trained(model, vectors, quantize="uint8"), vectors(50)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    deployed = trainer.finalize().SerializeToString()
    session = onnxruntime.InferenceSession(deployed, options, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"x": data["x"]})
    assert steps_apart(trainer, "logits", logits, trainer.evaluate(**data)["logits"]) < 1.01


def test_before_the_first_step():
    """A tensor has the range of the batch in evaluation; the inference model needs one of its own."""
    trainer, data = trained(mlp()[0], vectors, calls=0, quantize="uint8"), vectors(50)
    in_float = trained(mlp()[0], vectors, calls=0).evaluate(**data)["loss"]
    assert 0 < abs(trainer.evaluate(**data)["loss"] - in_float) < 0.02
    with pytest.raises(ModelError, match=r"no step has set the range 'x/range', 'r/range' and 'logits/range' yet"):
        trainer.finalize()
    ranges = {"x/range": [-2, 2], "r/range": [0, 3], "logits/range": [-2, 2]}
    values = {name: np.array(limits, np.float32) for name, limits in ranges.items()}
    step = bngrad.training_step(mlp()[0], quantize="uint8", values=values)
    calibrated = bngrad.Trainer(step, learning_rate=0)
    (logits,) = run_stock(calibrated.finalize(), data["x"], "logits")
    assert steps_apart(calibrated, "logits", logits, calibrated.evaluate(**data)["logits"]) < 1.01


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "net.onnx")
    np.savez("train.npz", **samples(24))
    assert run(["step", "net.onnx", "-o", "step.onnx", "--quantize", "uint8", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert step["quantization"]["ranges"] == {name: f"{name}/range" for name in ("x", "r", "p", "logits")}
    assert {step["state"][name]["role"] for name in step["quantization"]["ranges"].values()} == {
        "running_statistic"
    }
    options = ["--epochs", "1", "--learning-rate", "0.05", "--state-out", "run.safetensors", "-o", "trained.onnx"]
    assert run(["train", "step.onnx", "--data", "train.npz", *options]) == 0
    assert run(["finalize", "net.onnx", "--weights", "run.safetensors", "-o", "int8.onnx"]) == 0
    x = batch(50)["x"]
    (logits,), (expected,) = (run_stock(onnx.load(name), x, "logits") for name in ("int8.onnx", "trained.onnx"))
    np.testing.assert_array_equal(logits, expected)
    assert "QuantizeLinear" in {node.op_type for node in onnx.load("int8.onnx").graph.node}
    assert run(["finalize", "net.onnx", "--weights", "step.safetensors", "-o", "new.onnx"]) == 2
    assert "no step has set the range" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "mixed"}, r"cannot be combined with --precision"),
        ({"sync": True}, r"cannot be combined with --sync"),
        ({"straight_through": False}, r"cannot be combined with --no-straight-through"),
        ({"quantize": None, "symmetric": True}, r"symmetric is for quantize, which is not given"),
        ({"quantize": "int4"}, r"quantize is 'int4'"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        bngrad.training_step(mlp()[0], **{"quantize": "uint8", **options})


def test_weights_that_are_inputs():
    """Weights without a value in the model get a scale for each channel, as others."""
    model, values = mlp()
    names = ["w1", "w2"]
    expected = trained(model, vectors, calls=2, quantize="uint8")
    for name in names:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        model.graph.initializer.remove(tensor)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    initial = {name: values[name].astype(np.float32) for name in names}
    trainer = trained(model, vectors, calls=2, quantize="uint8", values=initial)
    assert trainer.info.quantization == expected.info.quantization
    for name, array in expected.state_dict().items():
        np.testing.assert_array_equal(trainer.state_dict()[name], array)


@pytest.mark.parametrize("limits", [[0.5, 2], [-2, -1], [-1, np.inf], [np.nan, 1]])
def test_ranges_that_are_refused(limits):
    with pytest.raises(
        InputError, match=r"the range 'x/range' is .*; expected finite numbers, with 0 between them"
    ):
        bngrad.training_step(mlp()[0], quantize="uint8", values={"x/range": np.array(limits, np.float32)})


def test_files_that_are_refused(tmp_path, monkeypatch, capsys):
    """Records of a quantization that no step writes."""
    monkeypatch.chdir(tmp_path)
    trainer = trained(mlp()[0], vectors, calls=1, quantize="uint8")
    onnx.save(mlp()[0], "net.onnx")
    trainer.save("run.safetensors")
    arrays, metadata = read_tensors("run.safetensors")
    changes = [
        (("weights", "h"), [7], "a weight is none of the first two inputs"),
        (("ranges", "x"), "w1", "has a range that is not 2 float32 numbers"),
        (("ranges", "x"), "y", "does not record its quantization"),
        (("activations",), "int4", "does not record its quantization"),
    ]
    for (*path, last), value, message in changes:
        document = json.loads(metadata[KEY])
        place = document["quantization"]
        for key in path:
            place = place[key]
        place[last] = value
        write_tensors(tmp_path / "other.safetensors", arrays, {KEY: json.dumps(document)})
        assert run(["finalize", "net.onnx", "--weights", "other.safetensors", "-o", "int8.onnx"]) == 2
        assert message in capsys.readouterr().err
    step = trainer.info
    broken = replace(step, quantization=replace(step.quantization, ranges={"x": "w1"}))
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=9)
    write_step_info(model, broken)
    with pytest.raises(ModelError, match=r"the range 'w1' is not 2 float32 numbers of its state"):
        read_step_info(model.metadata_props)


def test_a_note_names_batch_norms_in_float(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(all_kinds(), "net.onnx")
    assert run(["step", "net.onnx", "-o", "step.onnx", "--quantize", "uint8"]) == 0
    printed = capsys.readouterr()
    assert "note: 'bn5': not folded into a layer, and not quantized; expected a Conv or a Gemm" in printed.err
    assert "7 quantized layers" in printed.out


def test_models_that_are_refused():
    quantized = trained(mlp()[0], vectors, calls=1, quantize="uint8").finalize()
    with pytest.raises(ModelError, match=r"the model is quantized already: it has DequantizeLinear node"):
        bngrad.training_step(quantized, loss_fn="cross_entropy", quantize="uint8")
    double = network(dtype=np.float64, text=TEXT.replace("float", "double"))
    with pytest.raises(
        UnsupportedNodeError, match=r"Conv node .* cannot be quantized: 'x' is double; expected float"
    ):
        bngrad.training_step(double, quantize="uint8")
    plain = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]> g (float[N,3] x, float[3] w) => (float loss, float[N,3] y) {
        y = Mul (x, w) loss = ReduceMean <keepdims = 0> (y) }"""
    )
    plain.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    with pytest.raises(ModelError, match="the model has no layer to quantize; expected one of Conv, Gemm, MatMul"):
        bngrad.training_step(plain, quantize="uint8")


@pytest.mark.parametrize("statistics", ["merge", pytest.param("mean", marks=pytest.mark.long)])
def test_averages_of_clients(statistics):
    """A range of the average is that of all clients, also of one that has not trained yet."""
    step = bngrad.training_step(mlp()[0], quantize="uint8", ema=0.9)
    states = []
    for client in range(3):
        trainer = bngrad.Trainer(step, learning_rate=0.01)
        for index in range(client):
            trainer.step(**vectors(10 * client + index))
        states.append(trainer.state_dict())
    averaged = average(states, [1, 2, 3], statistics=statistics)
    for name in step.info.quantization.ranges.values():
        limits = np.stack([state[name] for state in states[1:]])
        np.testing.assert_array_equal(averaged[name], [limits[:, 0].min(), limits[:, 1].max()])
        np.testing.assert_array_equal(
            averaged[f"{name}/average"][1], max(state[f"{name}/average"][1] for state in states)
        )
