"""Edits of batch norms: the mode that a training step takes, the momentum, and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError
from statistics_cases import initializers, stacked

FILES = Path(__file__).parents[1] / "from_torch" / "files"


def batch_norms(model):
    return {node.name: node for node in model.graph.node if node.op_type == "BatchNormalization"}


def attributes(node):
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def trained(model, **options):
    """The running statistics that a training step updates."""
    return set(bngrad.training_step(model, loss="loss", **options).info.names("running_statistic"))


def test_some_train():
    model = stacked("float")
    before = model.SerializeToString()
    edited = bngrad.edit_batch_norms(model, mode="training", batch_norms=["layer1.*"])
    assert model.SerializeToString() == before
    assert trained(edited) == {"mean1", "var1"}
    assert [output.name for output in edited.graph.output] == ["loss", "y", "mean1_new", "var1_new"]
    assert trained(edited, training=["*"]) == {"mean1", "var1", "mean2", "var2"}


@pytest.mark.parametrize("opset", [12, 17])
def test_there_and_back(opset):
    """A frozen batch norm has no outputs of training, whose names are free again."""
    model = stacked("float")
    model.opset_import[0].version = opset
    training = bngrad.edit_batch_norms(model, mode="training")
    frozen = bngrad.edit_batch_norms(training, mode="frozen")
    assert [output.name for output in frozen.graph.output] == ["loss", "y"]
    assert [attributes(node)["training_mode"] for node in batch_norms(frozen).values()] == [0, 0]
    assert trained(frozen) == set()  # and no warning that all are in inference mode: it is chosen
    again = bngrad.edit_batch_norms(frozen, mode="training")
    assert [value.name for value in again.graph.output] == [value.name for value in training.graph.output]
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    data = {"x": x, "labels": np.array([0, 1, 1, 0])}
    assert bngrad.session(frozen).run(["loss"], data) == bngrad.session(model).run(["loss"], data)


def test_a_statistic_that_a_node_reads_stays_the_old_one():
    model = bngrad.edit_batch_norms(stacked("float"), mode="training")
    model.graph.node.append(onnx.helper.make_node("Identity", ["mean1_new"], ["copy"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("copy", onnx.TensorProto.FLOAT, [4]))
    frozen = bngrad.edit_batch_norms(model, mode="frozen")
    data = {"x": np.ones((2, 3), np.float32), "labels": np.array([0, 1])}
    np.testing.assert_array_equal(bngrad.session(frozen).run(["copy"], data)[0], np.zeros(4))


@pytest.mark.filterwarnings("ignore::bngrad.BngradWarning")
def test_the_mode_that_pytorchs_exporter_recorded():
    """The exporter writes inference mode, and records that the batch norm was in training mode."""
    text = (FILES / "raw-2.15.textproto").read_text(encoding="utf-8")
    model = text_format.Parse(text, onnx.ModelProto())
    recorded = bngrad.training_step(model).info.names("running_statistic")
    assert recorded
    frozen = bngrad.edit_batch_norms(model, mode="frozen")
    assert not bngrad.training_step(frozen, training="auto").info.names("running_statistic")
    again = bngrad.edit_batch_norms(frozen, mode="training")  # also the one that was in evaluation mode
    assert set(recorded) < set(bngrad.training_step(again).info.names("running_statistic"))


def test_momentum_and_epsilon():
    edited = bngrad.edit_batch_norms(stacked("float"), momentum=0.5, epsilon=0.25, batch_norms=["layer2.bn"])
    first, second = (attributes(node) for node in batch_norms(edited).values())
    assert first == {"epsilon": 0.5}
    assert second == {"epsilon": 0.25, "momentum": 0.5}
    step = bngrad.training_step(edited, loss="loss", training=["layer2.bn"])
    trainer = bngrad.Trainer(step, learning_rate=0)
    data = {
        "x": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32),
        "labels": np.array([0, 1, 1, 0]),
    }
    trainer.step(**data)
    shown = stacked("float")
    shown.graph.output.append(onnx.helper.make_tensor_value_info("h2", onnx.TensorProto.FLOAT, None))
    (h2,) = bngrad.session(shown).run(["h2"], data)
    np.testing.assert_allclose(trainer.state_dict()["mean2"], 0.5 * h2.mean(0), rtol=1e-5)


INSIDE = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N,2] x, bool c) => (float[N,2] y) <float[2] s = {1, 1}, float[2] b = {0, 0}> {
    y = If (c) <then_branch = then () => (float[N,2] t) { [bn] t = BatchNormalization (x, s, b, b, s) },
                else_branch = other () => (float[N,2] e) { e = Identity (x) }>
}"""
REFUSED = {
    "nothing to do": (
        {},
        InputError,
        "there is no edit; expected --mode, --momentum, --epsilon, --ghost or --fold",
    ),
    "momentum": ({"momentum": 1.5}, InputError, "momentum is 1.5; expected a number from 0 to 1"),
    "epsilon": ({"epsilon": 0.0}, InputError, "epsilon is 0.0; expected a finite number above 0 in float32"),
    "ghost": ({"ghost": -1}, InputError, "ghost is -1; expected a number of samples, or 0 for the whole batch"),
    "mode": ({"mode": "eval"}, InputError, "mode is 'eval'; expected one of frozen, training"),
    "fold and train": ({"fold": True, "ghost": 4}, InputError, "--fold (fold=) is combined with --ghost (ghost=)"),
    "fold and mode": ({"fold": True, "mode": "training"}, InputError, "--fold (fold=) is combined with --mode tr"),
    "name": (
        {"mode": "frozen", "batch_norms": ["layer3.bn"]},
        ModelError,
        "'layer3.bn' is not a batch norm of this model; did you mean 'layer",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    options, kind, message = REFUSED[case]
    with pytest.raises(kind) as error:
        bngrad.edit_batch_norms(stacked("float"), **options)
    assert str(error.value).startswith(message)


def test_other_models():
    model = onnx.parser.parse_model(INSIDE)
    for mode in (None, "training"):
        with pytest.raises(ModelError, match=r"^Batch.*'bn' .*given ghost batches: it is in the body of another"):
            bngrad.edit_batch_norms(model, ghost=4, mode=mode)
    trained = bngrad.edit_batch_norms(model, mode="training")
    graph = bngrad.differentiate(trained, loss_fn="mse", wrt=["s"])
    names = {"bn/running_mean": "bn/running_mean_new", "bn/running_var": "bn/running_var_new"}
    assert bngrad.read_training_graph(graph).running_statistics == names
    frozen = bngrad.edit_batch_norms(trained, mode="frozen")
    assert frozen.graph.output == trained.graph.output == model.graph.output
    graph = bngrad.differentiate(frozen, loss_fn="mse", wrt=["s"])
    assert not bngrad.read_training_graph(graph).running_statistics
    with pytest.raises(ModelError, match="the model is a training graph already"):
        bngrad.edit_batch_norms(bngrad.differentiate(stacked("float"), loss="loss", training=["*"]), mode="frozen")
    del model.graph.node[:]
    model.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["y"]))
    with pytest.raises(ModelError, match="the model has no BatchNormalization; bngrad inspect lists"):
        bngrad.edit_batch_norms(model, mode="frozen")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(stacked("float"), "net.onnx")
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((70, 3)).astype(np.float32))


@pytest.mark.usefixtures("folder")
def test_the_command_and_its_errors(capsys):
    command = ["batchnorm", "net.onnx", "-o", "out.onnx", "--fold"]
    assert run(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "out.onnx: 2 batch norms: folded 2",
        "  layer1.bn into h1",
        "  layer2.bn into h2",
        "the errors of the outputs are not measured; --data measures them",
    ]
    assert run([*command, "--data", "x.npz", "--batch-size", "16", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    x = {"x": np.load("x.npz")["x"]}
    before, after = (
        bngrad.session(path).run(["y"], {**x, "labels": np.zeros(70, np.int64)})[0].astype(np.float64)
        for path in ("net.onnx", "out.onnx")
    )
    (error,) = document["errors"]
    assert (error["output"], document["samples"]) == ("y", 70)
    assert error["max_error"] == pytest.approx(np.abs(before - after).max(), abs=1e-6)
    assert 0 < error["mean_error"] <= error["max_error"] < 1e-5
    assert error["relative_error"] == pytest.approx(error["max_error"] / np.abs(before).max(), rel=1e-3)


@pytest.mark.usefixtures("folder")
def test_an_error_that_is_one(capsys):
    """Another epsilon is another function, and the errors are its difference."""
    command = [
        "batchnorm",
        "net.onnx",
        "-o",
        "out.onnx",
        "--epsilon",
        "1",
        "--data",
        "x.npz",
        "--momentum",
        "0.01",
    ]
    assert run(command) == 0
    out, err = capsys.readouterr()
    assert err == (
        "bngrad: note: with --momentum 0.01 a step keeps 0.01 of the old statistics; PyTorch's momentum of 0.01 "
        "is --momentum 0.99\n"
    )
    data = {"x": np.load("x.npz")["x"], "labels": np.zeros(70, np.int64)}
    before, after = (bngrad.session(path).run(["y"], data)[0] for path in ("net.onnx", "out.onnx"))
    first, second = out.splitlines()
    assert first == "out.onnx: 2 batch norms: momentum 0.01, epsilon 1.0"
    largest, mean = np.abs(before - after).max(), np.abs(before - after).mean()
    assert second == (
        f"y: at most {largest:.3g} off, {mean:.3g} on average, {largest / np.abs(before).max():.3g} of its "
        "largest value, on 70 samples"
    )
    assert initializers(onnx.load("out.onnx")).keys() == initializers(onnx.load("net.onnx")).keys()
