"""Training steps of Keras models, against Keras."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _marked(decorator):
    """The functions of keras_networks.py with a decorator; the module itself needs Keras."""
    tree = ast.parse((HERE / "keras_networks.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if decorator in map(ast.unparse, node.decorator_list)]


@pytest.mark.parametrize("name", _marked("network"))
def test_a_network_trains_as_in_keras(name, results):
    result = results["networks"][name]
    assert result["unchanged"], "the export changed the model"
    for ours, keras in result["losses"]:
        assert ours == pytest.approx(keras, rel=1e-6, abs=1e-6)
    assert result["losses"][0][1] != result["losses"][-1][1]
    assert set(result["moved"]) <= set(result["errors"])
    assert {path: error for path, error in result["errors"].items() if error > 1e-6} == {}
    assert result["inference"] < 4e-6
    assert result["batch_norms"]


MODES = {
    "frozen_layers": [0, 1],
    "layer_called_twice": [1, 1],
    "layer_called_twice_on_the_same": [1, 1],
    "no_scale_no_center": [1],
}


@pytest.mark.parametrize("name", MODES)
def test_the_modes_of_batch_norms(name, results):
    assert results["networks"][name]["batch_norms"] == MODES[name]


def test_frozen_variables_are_no_inputs(results):
    inputs = results["networks"]["frozen_layers"]["inputs"]
    assert len([name for name in inputs if "batch_normalization" in name]) == 4
    assert len([name for name in inputs if "conv2d" in name]) == 2


def test_names_of_several_inputs_and_outputs(results):
    result = results["networks"]["compiled_loss_of_several_outputs"]
    assert {"x_0", "x_1", "y_0", "y_1"} <= set(result["inputs"])
    assert set(result["outputs"]) == {"y_pred_0", "y_pred_1", "loss"}


REFUSED = {
    "renorm": "InputError: the layer 'sequential",
    "masked": "gets a mask; expected a batch norm over all time steps",
    "another_backend": "Keras runs on the backend 'jax'; expected 'tensorflow': save the model",
    "random_noise": "(GaussianNoise) draws random numbers",
    "changes_another_variable": "vector_u'; expected the forward pass to change only the moving",
    "computes_in_float64": "computes in float64; expected float32",
    "two_layers_of_one_name": "two variables with the path",
    "not_a_model": "InputError: model is a Dense; expected a keras.Model",
    "not_built": "has no variables yet; call it once, or model.build",
    "example_without_targets": "example is a ndarray; expected a pair (x, y)",
    "example_of_text": "expected an array of numbers",
    "loss_by_name": "loss is 'mse'; expected a keras.losses.Loss",
    "loss_of_each_sample": "the loss has 1 dimensions; expected a scalar",
    "data_of_another_shape": "cannot be called on the example",
    "load_into_another_model": "has no variable",
    "load_another_shape": "has shape [3]; expected [3, 3, 1, 4]",
    "load_into_no_model": "model is a int; expected a keras.Model",
}


def test_every_refusal_has_its_message():
    assert set(REFUSED) == set(_marked("refused"))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal(name, results):
    kind, message = results["refused"][name]
    assert REFUSED[name] in f"{kind}: {message}"
    assert "\n" not in message


@pytest.mark.parametrize("name", ["Dropout", "SpatialDropout2D", "noise_shape"])
def test_a_dropout(name, results):
    result = results["dropouts"][name]
    assert result["zeros"] == pytest.approx(0.25, abs=0.02)
    assert result["mean"] == pytest.approx(1, abs=0.03)
    assert result["differs"]
    assert result["planes"] == (name != "Dropout")
    assert result["inference"] == 0


def test_the_example_trains(run_in_keras):
    *epochs, last = run_in_keras(ROOT / "docs" / "examples" / "keras" / "train.py").splitlines()
    losses = [float(line.split()[-1]) for line in epochs]
    assert losses[-1] < losses[0] / 3
    accuracy, keras, ours = (float(number) for number in re.findall(r"\d\.\d+", last))
    assert accuracy > 0.8
    assert ours == pytest.approx(keras, abs=2e-6)
