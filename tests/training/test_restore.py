"""Layers get batch norms again: the same function, the statistics of the data, and they train."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import text_format

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError
from bngrad.io.files import as_ir, to_proto
from statistics_cases import HEADER, initializers

TEXT = """g (float[N,2,6,6] x, int64[N] labels) => (float loss, float[N,3] logits) {
    [conv1] a = Conv (x, w1, c1)
    r = Relu (a)
    [conv2] t = ConvTranspose <strides = [2,2]> (r, w2)
    [bn] n = BatchNormalization (t, s, b, m, v)
    p = GlobalAveragePool (n)
    f = Flatten (p)
    [fc1] g1 = Gemm <beta = 2.0> (f, w3, c3)
    [fc2] logits = Gemm <transB = 1> (g1, w4, c4)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""


def network():
    rng = np.random.default_rng(2)
    shapes = {
        "w1": (4, 2, 3, 3),
        "c1": 4,
        "w2": (4, 5, 2, 2),
        "w3": (5, 6),
        "c3": (1, 6),
        "w4": (3, 6),
        "c4": (3,),
    }
    model = onnx.parser.parse_model(HEADER + TEXT)
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    values |= {"s": np.ones(5), "b": np.zeros(5), "m": np.zeros(5), "v": np.ones(5)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()
    )
    return model


def batches(sizes=(6, 3, 12)):
    rng = np.random.default_rng(7)
    return [
        {"x": (rng.standard_normal((n, 2, 6, 6)) * 3 + 20).astype(np.float32), "labels": rng.integers(0, 3, n)}
        for n in sizes
    ]


def restored(model, layers=None, **options):
    """The model with batch norms, and their names by layer."""
    result = bngrad.restore_batch_norms(model, batches(), layers=layers, **options)
    before = {node.name for node in model.graph.node}
    new = [
        node.name for node in result.graph.node if node.op_type == "BatchNormalization" and node.name not in before
    ]
    return result, {name.removesuffix("/batch_norm"): name for name in new}


def outputs(model, *names):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [session.run(list(names), data) for data in batches()]


def test_the_function_and_the_statistics():
    model = network()
    before = model.SerializeToString()
    result, names = restored(model, ["*"])
    assert model.SerializeToString() == before
    assert names == {layer: f"{layer}/batch_norm" for layer in ("conv1", "fc1", "fc2")}  # conv2 has one
    for was, now in zip(outputs(model, "logits", "loss"), outputs(result, "logits", "loss"), strict=True):
        for first, second in zip(was, now, strict=True):
            np.testing.assert_allclose(second, first, rtol=2e-5, atol=2e-4)
    values = initializers(result)
    assert not {"c1", "c3", "c4"} & set(values)
    shown = network()
    shown.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in ("a", "g1"))
    for layer, value, axes, bias in (("conv1", "a", (0, 2, 3), "c1"), ("fc1", "g1", 0, "c3")):
        whole = np.concatenate([array for (array,) in outputs(shown, value)]).astype(np.float64)
        shift = initializers(model)[bias].reshape(-1) * (2 if layer == "fc1" else 1)
        np.testing.assert_allclose(values[f"{layer}/running_mean"], whole.mean(axes) - shift, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values[f"{layer}/running_var"], whole.var(axes), rtol=1e-4)
        np.testing.assert_allclose(values[f"{layer}/bias"], whole.mean(axes), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values[f"{layer}/scale"] ** 2, whole.var(axes) + 1e-5, rtol=1e-4)


def test_it_trains():
    result, _ = restored(network(), ["conv1", "fc1"])
    step = bngrad.training_step(result, training=["conv1/batch_norm", "fc1/batch_norm"], loss="loss")
    assert {"conv1/scale", "fc1/bias"} <= set(step.info.names("weight"))
    assert {"conv1/running_mean", "fc1/running_var"} <= set(step.info.names("running_statistic"))
    trainer, (data, *_) = bngrad.Trainer(step, learning_rate=0.02), batches((12,))
    losses = [trainer.step(**data) for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    assert {norm.far_off for norm in bngrad.Trainer(step, learning_rate=0).estimate_statistics(batches())} == {
        False
    }


REFUSED = {
    "nothing recorded": (None, {}, ModelError, "the file does not record layers that PyTorch's exporter or"),
    "unknown": (["conv9"], {}, ModelError, "'conv9' is not a Conv, ConvTranspose or Gemm of this model; did you"),
    "has one": (
        ["conv2"],
        {},
        ModelError,
        "ConvTranspose node 'conv2' (outputs t) cannot get a batch norm: a batch",
    ),
    "epsilon": (["conv1"], {"epsilon": 0}, InputError, "epsilon is 0; expected a finite number above 0"),
    "epsilon that float32 rounds to 0": (["conv1"], {"epsilon": 1e-60}, InputError, "epsilon is 1e-60; expected"),
    "epsilon beyond float32": (["conv1"], {"epsilon": 1e60}, InputError, "epsilon is 1e+60; expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    layers, options, kind, message = REFUSED[case]
    with pytest.raises(kind) as error:
        restored(network(), layers, **options)
    assert str(error.value).startswith(message)


def test_data_that_are_not_finite():
    data = batches((3,))
    data[0]["x"][0] = np.inf
    with pytest.raises(InputError, match="the output of layer 'conv1' is not finite in batch 1"):
        bngrad.restore_batch_norms(network(), data, layers=["conv1"])


def test_a_variance_of_one_value_is_refused():
    (data,) = batches((1,))
    assert bngrad.restore_batch_norms(network(), [data], layers=["conv1"])  # 16 values for each channel
    with pytest.raises(
        InputError, match=r"layer 'fc1' has one value for each channel in all data, whose variance is"
    ):
        bngrad.restore_batch_norms(network(), [data], layers=["fc1"])
    assert bngrad.restore_batch_norms(network(), [data, data], layers=["fc1"])


WRONG_BATCHES = {
    "none": ([], "there is no batch"),
    "missing": ([{"labels": np.zeros(3, np.int64)}], "there is no data for 'x'; expected an array for 'x'"),
    "unknown": (
        [{"x": np.zeros((3, 2, 6, 6), np.float32), "y": 0}],
        "'y' is not a data input of this model",
    ),
    "another type": ([{"x": np.zeros((3, 2, 6, 6))}], "'x' is float64; expected float32: convert it with"),
    "another shape": ([{"x": np.zeros((3, 2, 6), np.float32)}], "'x' has shape [3, 2, 6]; expected ["),
}


@pytest.mark.parametrize("case", WRONG_BATCHES)
def test_batches_that_are_refused(case):
    data, message = WRONG_BATCHES[case]
    with pytest.raises(InputError) as error:
        bngrad.restore_batch_norms(network(), data, layers=["conv1"])
    assert str(error.value).startswith(message)


def test_kinds_of_models(tmp_path):
    """A path, a ModelProto and an onnx_ir model give the same model; labels may be left out."""
    path, data = tmp_path / "net.onnx", [{"x": batch["x"]} for batch in batches()]
    onnx.save(network(), path)
    expected = restored(network(), ["fc*"])[0]
    assert bngrad.restore_batch_norms(path, data, layers=["fc*"]) == expected
    result = bngrad.restore_batch_norms(as_ir(network()), iter(data), layers=["fc*"])
    assert to_proto(result) == expected


def test_a_bias_that_another_node_reads_stays():
    model = network()
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("copy"))
    model.graph.node.append(onnx.helper.make_node("Identity", ["c1"], ["copy"]))
    result, _ = restored(model, ["conv1"])
    assert "c1" in initializers(result)


def test_what_bngrad_batchnorm_folded():
    """The file records the layer, which gets a batch norm with the statistics of the data."""
    model = network()
    folded = bngrad.edit_batch_norms(model, fold=True)
    with pytest.raises(
        ModelError, match=r"'\*' is not a batch norm of this model, .*; bngrad restore gives layers"
    ):
        bngrad.training_step(folded, loss="loss", training=["*"])
    result, names = restored(folded)
    assert names == {"conv2": "conv2/batch_norm"}
    for was, now in zip(outputs(model, "logits"), outputs(result, "logits"), strict=True):
        np.testing.assert_allclose(now[0], was[0], rtol=2e-5, atol=2e-4)
    with pytest.raises(ModelError, match="the file does not record layers"):
        restored(result)


FILES = Path(__file__).parents[1] / "from_torch" / "files"


@pytest.mark.parametrize("version", ["2.9", "2.15"])
def test_a_file_in_which_pytorchs_exporter_folded_a_batch_norm(version):
    """It records which layer, and that the batch norm was in training mode: what was refused trains."""
    text = (FILES / f"folded-{version}.textproto").read_text(encoding="utf-8")
    model = text_format.Parse(text, onnx.ModelProto())
    with pytest.raises(ModelError, match="or restore them from data with bngrad restore"):
        bngrad.training_step(model)
    data = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32)
    result = bngrad.restore_batch_norms(model, [{"x": data}])
    (name,) = (node.name for node in result.graph.node if node.name.endswith("/batch_norm"))
    layer = name.removesuffix("/batch_norm")
    with pytest.warns(bngrad.BngradWarning, match="trained as one"):  # equal initializers that the exporter merged
        step = bngrad.training_step(result, training=["*"])
    assert name in {norm.name for norm in step.info.batch_norms}
    assert f"{layer}/scale" in step.info.names("weight")
    labels = np.array([0, 1, 2, 0])
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    losses = [trainer.step(x=data, labels=labels) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(ModelError, match="the file does not record layers"):
        bngrad.restore_batch_norms(result, [{"x": data}])


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "net.onnx")
    np.savez("x.npz", x=np.concatenate([data["x"] for data in batches()]))
    command = ["restore", "net.onnx", "--data", "x.npz", "-o", "out.onnx", "--layer", "fc*"]
    assert run(command) == 0
    assert capsys.readouterr().out == (
        "out.onnx: 2 new batch norms, from 21 samples\n  fc1/batch_norm after fc1\n  fc2/batch_norm after fc2\n"
    )
    assert run([*command, "--json", "--epsilon", "1e-3"]) == 0
    assert json.loads(capsys.readouterr().out)["batch_norms"] == {"fc1": "fc1/batch_norm", "fc2": "fc2/batch_norm"}
    result = onnx.load("out.onnx")
    for was, now in zip(outputs(network(), "logits"), outputs(result, "logits"), strict=True):
        np.testing.assert_allclose(now[0], was[0], rtol=2e-5, atol=2e-4)
