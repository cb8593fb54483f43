"""The onnx package's light models, made trainable."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models import light

NAMES = list(light.BATCH_NORMS)


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return light.prepare(name)


@pytest.fixture(scope="module")
def parameters(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.fixture(scope="module")
def session(model):
    return ort.InferenceSession(model.SerializeToString())


def attributes(node):
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def original(name):
    return onnx.load(light._FOLDER / f"light_{name}.onnx")


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="unknown network 'alexnet': expected one of resnet50, densenet121"):
        light.prepare("alexnet")


def test_seed_decides_the_parameters():
    first, again, other = (
        light.prepare("shufflenet", seed).SerializeToString(deterministic=True) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_checker_and_strict_shape_inference_keep_the_batch_symbolic(model):
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    batched = [value for value in inferred.value_info if len(value.type.tensor_type.shape.dim) >= 4]
    assert len(batched) > 100
    assert {value.type.tensor_type.shape.dim[0].dim_param for value in batched} == {"N"}


def test_versions_and_ops(name, model):
    assert model.ir_version == 8
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    before = Counter(node.op_type for node in original(name).graph.node)
    after = Counter(node.op_type for node in model.graph.node)
    assert after["BatchNormalization"] == before["BatchNormalization"] == light.BATCH_NORMS[name]
    assert after["Add"] == before["Add"] + before["Sum"]
    assert {"ConstantOfShape", "Sum", "Softmax"}.isdisjoint(after)
    for kept in ("Conv", "Relu", "Concat", "MaxPool", "AveragePool", "Transpose", "Reshape", "Unsqueeze"):
        assert after[kept] == before[kept], kept
    assert len({node.name for node in model.graph.node} - {""}) == len(model.graph.node)


def test_batch_norms_keep_epsilon_and_return_their_statistics(name, model):
    before = {node.name: node for node in original(name).graph.node if node.op_type == "BatchNormalization"}
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            assert attributes(node) == {**attributes(before[node.name]), "training_mode": 1}
            assert list(node.input) == list(before[node.name].input)
            assert list(node.output[1:]) == [f"{statistic}_new" for statistic in node.input[3:]]
            assert outputs.issuperset(node.output[1:])


def test_parameters_are_overridable_and_distinct(model, parameters):
    floats = {key: array for key, array in parameters.items() if array.dtype == np.float32}
    inputs = [value.name for value in model.graph.input]
    assert inputs[1] == "labels"
    assert set(inputs[2:]) == set(floats)
    assert len({array.tobytes() for array in floats.values()}) == len(floats)


def test_parameters_are_drawn_by_role(model, parameters):
    for node in model.graph.node:
        if node.op_type in {"Conv", "Gemm"}:
            weight = parameters[node.input[1]]
            fan_in = weight[0].size
            expected = np.sqrt(2 / fan_in)
            # the standard error of a standard deviation from n normal draws is sigma / sqrt(2 n)
            assert abs(weight.std() - expected) < 5 * expected / np.sqrt(2 * weight.size), node.name
        elif node.op_type == "BatchNormalization":
            scale, bias, mean, variance = (parameters[key] for key in node.input[1:])
            assert abs(scale - 1).max() < 0.6, node.name
            assert max(abs(bias).max(), abs(mean).max()) < 0.6, node.name
            assert (variance.min() >= 0.5, variance.max() < 1.5) == (True, True), node.name


@pytest.mark.parametrize("batch", [1, 2, pytest.param(5, marks=pytest.mark.long)])
def test_forward_runs_at_every_batch_size(session, batch):
    rng = np.random.default_rng(batch)
    images, labels = session.get_inputs()
    results = session.run(
        None,
        {
            images.name: rng.standard_normal([batch, 3, 224, 224], dtype=np.float32),
            labels.name: rng.integers(0, 1000, [batch]),
        },
    )
    assert results[0].shape == ()
    assert results[1].shape == (batch, 1000)
    assert all(np.isfinite(result).all() for result in results)
