"""Tests files of ``torch.onnx.export(dynamo=True)`` as they are, without PyTorch: `exported_files` wrote them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad import cli
from bngrad.inspection.inspect import inspect
from bngrad.inspection.model_warnings import model_warnings

FILES = Path(__file__).parent / "files"
VERSIONS = ("2.9", "2.15")
WEIGHTS = ["conv.weight", "bn.weight", "bn.bias", "frozen.weight", "frozen.bias", "head.weight", "head.bias"]
RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.standard_normal((4, 2, 3, 3)).astype(np.float32),
    "labels": np.array([0, 1, 2, 0]),
}


def load(case, version):
    return onnx.load(FILES / f"{case}-{version}.textproto", format="textproto")


def without_metadata(model):
    """The model with only the node names of its record, as onnxsim, onnxslim and ONNX Runtime leave it."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.metadata_props[:]
    for values in (result.graph.node, result.graph.value_info):
        for value in values:
            del value.metadata_props[:]
    return result


def renamed(model):
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for number, node in enumerate(result.graph.node):
        node.name = f"n{number}"
    return result


def run(graph):
    session = bngrad.session(graph)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, DATA), strict=True))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("change", [None, renamed], ids=["as written", "renamed"])
def test_weights_and_statistics_are_the_modules(version, change):
    model = load("raw", version)
    graph = bngrad.differentiate(change(model) if change else model)
    info = bngrad.read_training_graph(graph)
    assert sorted(info.gradients) == sorted(WEIGHTS)
    assert set(info.running_statistics) == {"bn.running_mean", "bn.running_var"}
    assert "SplitToSequence" not in {node.op_type for node in graph.graph.node}


@pytest.mark.parametrize("version", VERSIONS)
def test_statistics_are_updated_twice(version):
    """By the formula of torch: new = (1 - m) old + m batch, once for each call, with the unbiased variance."""
    model = load("raw", version)
    got = run(bngrad.differentiate(model))
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "conv.weight")
    x = np.einsum("nchw,dc->ndhw", DATA["x"].astype(float), weight[:, :, 0, 0].astype(float))
    mean, var = np.zeros(4), np.ones(4)
    for activation in (lambda y: np.maximum(y, 0), None):
        batch_mean, batch_var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        count = x.size // 4
        mean, var = 0.7 * mean + 0.3 * batch_mean, 0.7 * var + 0.3 * batch_var * count / (count - 1)
        if activation:
            x = (x - batch_mean[:, None, None]) / np.sqrt(batch_var + 1e-5)[:, None, None]
            x = activation(x)
    np.testing.assert_allclose(got["bn.running_mean_new"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["bn.running_var_new"], var, rtol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
def test_gradients_are_right(version):
    report = bngrad.validate(load("raw", version), against="numeric", inputs=DATA)
    assert report.passed, [row for check in report.checks for row in check.failures]


@pytest.mark.parametrize("version", VERSIONS)
def test_names_are_enough_for_the_mode(version):
    """The record of the parameters and of the module that is called twice is gone: a warning asks for it."""
    model = without_metadata(load("raw", version))
    with pytest.warns(bngrad.BngradWarning) as warned:
        graph = bngrad.differentiate(model, wrt=WEIGHTS)
    assert "read the same running statistic" in str(warned[0].message)
    assert "'bn.weight' is a weight of 2 nodes" in str(warned[1].message)
    assert len(warned) == 2
    assert len(bngrad.read_training_graph(graph).running_statistics) == 4
    with pytest.warns(bngrad.BngradWarning, match="is a weight of 2 nodes"):
        chained = run(bngrad.differentiate(model, wrt=WEIGHTS, shared_statistics="chain"))
    for name, value in run(bngrad.differentiate(load("raw", version))).items():
        np.testing.assert_array_equal(chained[name], value, name)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_step_trains_and_evaluates(version):
    trainer = bngrad.Trainer(bngrad.training_step(load("raw", version)), learning_rate=0.1)
    losses = [trainer.step(**DATA) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert np.isfinite(trainer.evaluate(**DATA)["loss"])


@pytest.mark.parametrize("version", VERSIONS)
def test_merged_statistics_get_the_names_of_the_buffers(version):
    """The exporter's optimizer merged zeros and ones: running statistics, scales and biases of two batch norms."""
    with pytest.warns(bngrad.BngradWarning, match="is a weight of 2 nodes"):
        info = bngrad.read_training_graph(bngrad.differentiate(load("merged", version)))
    buffers = [f"{module}.running_{kind}" for module in ("bn", "other") for kind in ("mean", "var")]
    assert sorted(info.running_statistics) == buffers


CHOICES = {
    "auto": ({"training": "auto"}, 2, 2),
    "auto in a list": ({"training": ["auto"]}, 2, 2),
    "frozen wins": ({"frozen": ["*legit_functional__0"]}, 1, 2),
    "frozen wins over auto": ({"frozen": ["*legit_functional__0"], "training": "auto"}, 1, 2),
    "all frozen": ({"frozen": ["*"]}, 0, 0),
    "all trained": ({"training": ["*"]}, 3, 4),
    "separate": ({"shared_statistics": "separate"}, 2, 4),
}
"""The options, and the numbers of trained batch norms and of updated running statistics."""


@pytest.mark.parametrize("choice", CHOICES)
def test_choices(choice):
    options, trained, statistics = CHOICES[choice]
    graph = bngrad.differentiate(load("raw", "2.15"), **options)
    assert sum(node.op_type == "BatchNormalizationTraining" for node in graph.graph.node) == trained
    assert len(bngrad.read_training_graph(graph).running_statistics) == statistics


REFUSED = {
    "folded": ("folded", {}, "folded batch norms that were in training mode into 1 layer"),
    "folded, auto": (
        "folded",
        {"training": "auto"},
        "export with torch.onnx.export(..., dynamo=True, optimize=False)",
    ),
    "folded, trained by name": ("folded", {"training": ["*"]}, "bngrad.torch.training_step"),
    "auto without a record": ("no record", {"training": "auto"}, "does not record the mode that 3 batch norms"),
    "read after an update": (
        "evaluated",
        {},
        "was in evaluation mode in PyTorch, and reads the running statistics",
    ),
}


def refused_model(case):
    if case not in ("no record", "evaluated"):
        return load(case, "2.15")
    model = load("raw", "2.15")
    if case == "no record":
        return renamed(without_metadata(model))
    second = [node for node in model.graph.node if node.op_type == "BatchNormalization"][1]
    call = next(entry for entry in second.metadata_props if entry.key == "pkg.torch.onnx.fx_node")
    call.value = call.value.replace("legit_functional", "legit_no_training").replace("True, ", "")
    return model


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    case, options, message = REFUSED[name]
    with pytest.raises(bngrad.ModelError) as raised:
        bngrad.differentiate(refused_model(case), **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_fold_in_training_mode_that_a_second_fold_hides_is_refused():
    """The Conv has only the call of the second batch norm; the module updates a mean that nothing reads."""
    model = load("folded", "2.15")
    for node in model.graph.node:
        for entry in node.metadata_props:
            if entry.key == "pkg.torch.onnx.fx_node":
                entry.value = entry.value.replace("legit_functional", "legit_no_training").replace("True, ", "")
    with pytest.raises(bngrad.ModelError, match="were in training mode"):
        bngrad.differentiate(model)


def test_a_fold_is_accepted_by_frozen():
    with pytest.warns(bngrad.BngradWarning):
        graph = bngrad.differentiate(load("folded", "2.15"), frozen=["*"])
    assert bngrad.read_training_graph(graph).running_statistics == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fold_in_evaluation_mode_is_a_warning(version):
    """Fine-tuning with folded batch norms may be intended."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        graph = bngrad.differentiate(load("evaluation", version))
    assert any("folded batch norms into 1 layer" in str(warning.message) for warning in warned)
    assert "conv.weight" in bngrad.read_training_graph(graph).gradients


def test_inspect_says_what_is_trained():
    report = inspect(ir.from_proto(load("raw", "2.15")))
    assert [batch_norm.mode for batch_norm in report.batch_norms] == ["training", "training", "frozen"]
    assert len(report.notes) == 1
    assert model_warnings(ir.from_proto(load("raw", "2.15"))) == []


def test_the_command_line_says_what_it_puts_in_training_mode(tmp_path, capsys):
    onnx.save(load("raw", "2.15"), tmp_path / "net.onnx")
    code = cli.run(["step", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "step.onnx"), "--training", "auto"])
    printed = capsys.readouterr()
    assert code == 0
    assert printed.err.startswith("bngrad: note: PyTorch had 2 batch norms (first: BatchNormalization node ")
    assert "7 weights, 2 running statistics" in printed.out


@pytest.mark.parametrize("case", ["folded", "no record"])
def test_the_command_line_refuses(case, tmp_path, capsys):
    onnx.save(refused_model(case), tmp_path / "net.onnx")
    code = cli.run(["step", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "step.onnx"), "--training", "auto"])
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err.startswith("bngrad: error: ")
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
