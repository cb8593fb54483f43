"""Tests the framework that a model is attributed to."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.graph.framework import framework_of, record_framework

KNOWN = {
    "pytorch": ("pytorch", {}, {}),
    "tf2onnx": ("tensorflow", {}, {}),
    "bngrad.keras": ("tensorflow", {}, {}),
    "jax2onnx": ("jax", {}, {}),
    "": (None, {}, {}),
    "onnxruntime": (None, {}, {}),
    "metadata before the producer": ("jax", {"bngrad.framework": "jax"}, {}),
    "a tool's producer over a record": ("pytorch", {}, {"pkg.torch.onnx.fx_node": "%relu : ..."}),
}
"""The framework, the metadata of the model, and those of its node; the key is the producer."""


def model_of(producer, metadata, record):
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.helper.set_metadata_props(node, record)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), producer_name=producer)
    onnx.helper.set_model_props(model, metadata)
    return model


@pytest.mark.parametrize("producer", KNOWN)
def test_framework(producer):
    framework, metadata, record = KNOWN[producer]
    assert framework_of(ir.from_proto(model_of(producer, metadata, record))) == framework


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_a_recorded_framework_survives_a_file(framework, tmp_path):
    model = ir.from_proto(model_of("other", {}, {}))
    record_framework(model, framework)
    bngrad.save(ir.to_proto(model), tmp_path / "net.onnx")
    assert framework_of(ir.load(tmp_path / "net.onnx")) == framework


def test_an_unknown_framework_is_refused():
    model = ir.from_proto(model_of("pytorch", {"bngrad.framework": "torch" * 100}, {}))
    with pytest.raises(bngrad.ModelError, match="expected one of pytorch, tensorflow, jax") as raised:
        framework_of(model)
    assert len(str(raised.value)) < 200
