"""The digits network: its bytes, its structure and its forward pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models import digits_resnet20

COMMITTED = Path(digits_resnet20.__file__).with_name("digits_resnet20.onnx")


@pytest.fixture(scope="module")
def model():
    return digits_resnet20.build()


def test_committed_file_is_what_the_generator_makes(model):
    assert COMMITTED.read_bytes() == model.SerializeToString(deterministic=True)
    assert COMMITTED.stat().st_size < 600_000


def test_seed_changes_every_parameter(model):
    first, second = model.graph.initializer, digits_resnet20.build(seed=1).graph.initializer
    assert [tensor.name for tensor in first] == [tensor.name for tensor in second]
    assert not any(a.raw_data == b.raw_data for a, b in zip(first, second, strict=True))


def test_no_two_parameters_are_equal(model):
    assert len({tensor.raw_data for tensor in model.graph.initializer}) == len(model.graph.initializer)


def test_structure(model):
    assert model.ir_version == 8
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    counts = Counter(node.op_type for node in model.graph.node)
    # ResNet-20: 19 3x3 convolutions, 9 sums, 1 Gemm = 20 weighted layers; 2 projections
    assert (counts["Conv"], counts["BatchNormalization"], counts["Add"]) == (21, 21, 9)
    assert (counts["Relu"], counts["Gemm"], counts["SoftmaxCrossEntropyLoss"]) == (19, 1, 1)


def test_inputs_are_images_labels_and_every_parameter(model):
    names = [value.name for value in model.graph.input]
    assert names == ["images", "labels", *(tensor.name for tensor in model.graph.initializer)]


def test_every_batch_norm_trains_and_returns_its_statistics(model):
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            assert attributes["training_mode"] == 1
            assert list(node.output[1:]) == [f"{name}_new" for name in node.input[3:]]
            assert outputs.issuperset(node.output[1:])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_forward_runs_on_real_digits(batch):
    session = ort.InferenceSession(COMMITTED)
    images, labels = digits_resnet20.digits()
    feeds = {"images": images[:batch], "labels": labels[:batch]}
    names = [value.name for value in session.get_outputs()]
    results = dict(zip(names, session.run(None, feeds), strict=True))
    assert results["logits"].shape == (batch, 10)
    log_prob = results["logits"] - np.log(np.exp(results["logits"]).sum(1, keepdims=True))
    expected = -log_prob[np.arange(batch), labels[:batch]].mean()
    np.testing.assert_allclose(results["loss"], expected, rtol=1e-5)
    assert all(np.isfinite(result).all() for result in results.values())
    assert all((result > 0).all() for name, result in results.items() if "running_var" in name)


def test_digits_are_normalised():
    images, labels = digits_resnet20.digits()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), np.float32)
    assert (labels.shape, labels.dtype) == ((1797,), np.int64)
    np.testing.assert_allclose([images.mean(dtype=np.float64), images.std(dtype=np.float64)], [0, 1], atol=1e-6)
    assert sorted(set(labels.tolist())) == list(range(10))
