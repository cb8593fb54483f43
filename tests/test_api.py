"""Tests the warnings and the file access of the public functions."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import InputError

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
FROZEN = """g (float[N,2,3] x) => (float loss) <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 0},
        float[2] v = {1, 1}> {
    [bn] y = BatchNormalization (x, s, b, m, v)
    loss = ReduceMean <keepdims = 0> (y)
}"""


@pytest.fixture
def model():
    return onnx.parser.parse_model(HEADER + FROZEN)


CALLS = {
    "differentiate": (bngrad.differentiate, {}),
    "inspect": (bngrad.inspect, {}),
    "validate": (bngrad.validate, {"against": "numeric", "implementation": "function"}),
    "training_step": (bngrad.training_step, {"optimizer": "sgd"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_warns_once_at_the_line_of_the_call(name, model):
    function, options = CALLS[name]
    with pytest.warns(bngrad.BngradWarning, match="no batch norm in training mode") as caught:
        function(model, **options)
    (warning,) = caught
    assert warning.filename == __file__


@pytest.mark.parametrize("name", CALLS)
def test_a_warning_can_be_an_error(name, model):
    function, options = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", bngrad.BngradWarning)
        with pytest.raises(bngrad.BngradWarning):
            function(model, **options)


def test_a_training_graph_is_not_warned_of_again(model):
    """Nor is a model with only standard ops, as ``stock`` makes if no batch norm is in training mode."""
    with pytest.warns(bngrad.BngradWarning):
        training_model = bngrad.differentiate(model)
    assert bngrad.inspect(training_model).warnings == []


def test_a_model_of_pytorch_whose_running_variance_is_not_chosen(model):
    bn = model.graph.node[0]
    bn.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    bn.output.extend(["p", "q"])
    bngrad.differentiate(model)
    model.producer_name = "pytorch"
    with pytest.warns(bngrad.BngradWarning, match="ORT's dialect has only the biased one"):
        bngrad.differentiate(model, target="ort")
    bngrad.differentiate(model, target="ort", running_variance="biased")
    assert [_unbiased(model, running_variance=kind) for kind in (None, "biased", "unbiased")] == [1, 0, 1]
    training_model = bngrad.differentiate(model)
    assert bngrad.validate(model, against="numeric", implementation="function", rewritten=training_model).passed
    assert bngrad.validate(model, against="numeric", implementation="function").passed
    model.producer_name = "tf2onnx"
    assert _unbiased(model) == 0


def _unbiased(model, **options):
    training_model = bngrad.differentiate(model, **options)
    (node,) = (node for node in training_model.graph.node if node.op_type == "BatchNormalizationTraining")
    return next(attribute.i for attribute in node.attribute if attribute.name == "unbiased_running_var")


def test_inspect_takes_every_kind_of_model(model, tmp_path, monkeypatch):
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("training_mode", 1))
    model.graph.node[0].output.extend(["p", "q"])
    monkeypatch.chdir(tmp_path)
    path = Path("model.onnx")  # the name of a model without a file, in the command to go on with
    onnx.save(model, path)
    inspections = [bngrad.inspect(kind) for kind in (path, str(path), model, ir.from_proto(model))]
    assert all(inspection == inspections[0] for inspection in inspections)
    assert [batch_norm.mode for batch_norm in inspections[0].batch_norms] == ["training"]


def serialized(model):
    return (ir.to_proto(model) if isinstance(model, ir.Model) else model).SerializeToString(deterministic=True)


KINDS = {"proto": lambda model: model, "ir": ir.from_proto}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("external_data", [None, "copied"])
def test_save(kind, external_data, model, tmp_path):
    big = np.arange(4096, dtype=np.float32).reshape(64, 64)
    model.graph.initializer.append(onnx.numpy_helper.from_array(big, "big"))
    source = KINDS[kind](model)
    path = tmp_path / "out.onnx"
    before = serialized(source)
    bngrad.save(source, path, external_data=external_data)
    assert serialized(source) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "out.onnx",
        *(["out.onnx.data"] if external_data else []),
    ]
    saved = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    np.testing.assert_array_equal(saved["big"], big)


def test_save_copies_a_file_with_its_external_data(model, tmp_path):
    (tmp_path / "a").mkdir()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "big"))
    onnx.save(model, tmp_path / "a" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    bngrad.save(tmp_path / "a" / "m.onnx", tmp_path / "one.onnx")
    assert (
        onnx.load(tmp_path / "one.onnx", load_external_data=False).SerializeToString()
        == onnx.load(tmp_path / "one.onnx").SerializeToString()
    )


REFUSED = {
    "no folder": ("no/out.onnx", {}, "output folder .*no does not exist"),
    "a folder": (".", {}, "is a directory; expected a file"),
    "the model's own file": ("model.onnx", {}, "is the input; choose another file"),
    "no such external data": ("out.onnx", {"external_data": "shard"}, "external data is 'shard'; expected"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_save_refuses(name, model, tmp_path):
    path, options, message = REFUSED[name]
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(InputError, match=message):
        bngrad.save(tmp_path / "model.onnx", tmp_path / path, **options)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
