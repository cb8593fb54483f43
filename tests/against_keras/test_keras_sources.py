"""Sources of a gradient, a loss or an update in Keras: taken over, or refused by name.

The models are in `gradient_sources.py`; docs/reference/gradient-sources.md has a row for each.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long

TAKEN_OVER = {
    *("keras.ops.stop_gradient", "tf.stop_gradient", "straight-through", "stop in a tf.function"),
    *("keras.ops.custom_gradient", "several results", "gradient reversal", "masked gradient"),
    *("gradient of a product", "recompute_grad", "grad_pass_through", "remat", "clip_by_norm", "moments"),
    *("log1p", "expm1", "erfc", "erfinv", "xlogy", "xdivy", "binary losses", "logits far apart"),
    *("added loss", "regularizers", "overridden compute_loss", "options of a compiled optimizer"),
    *("metric in a layer", "frozen variable", "frozen nested model", "mask of the loss", "mask of an RNN"),
    *("one batch norm in both modes", "a batch norm of two inputs", "TimeDistributed"),
    *("nested model called twice", "model called in the loss", "mixed_float16", "grouped convolution"),
    *("branch on training", "integer division", "where of NaN", "fixed batch"),
    *("cond", "while", "RNN without unroll"),
}
_OWN = "has a gradient of its own"
REFUSED = {
    "clipped gradient": f"{_OWN} (custom_gradient), which is not linear",
    "normalized gradient": f"{_OWN} (custom_gradient), which has a part that does not depend",
    "gradient with noise": f"{_OWN} (custom_gradient), which has a part that does not depend",
    "constant gradient": f"{_OWN} (custom_gradient), which does not depend",
    "weights read in a custom_gradient": f"{_OWN} (custom_gradient), and reads weights",
    "custom_gradient in a tf.function": f"(Apply) {_OWN} (IdentityN",
    "fake_quant": "(Apply) has TensorFlow's FakeQuantWithMinMaxArgs",
    "quantize_and_dequantize": "(Apply) has TensorFlow's QuantizeAndDequantize",
    "PreventGradient": "(Apply) has TensorFlow's PreventGradient",
    "random draw": "(Apply) draws random numbers",
    "noise layer": "(GaussianNoise) draws random numbers",
    "Python": "(Apply) calls Python",
    "bfloat16": "(Apply) computes in bfloat16",
    "mixed_bfloat16": "computes in bfloat16 (dtype policy 'mixed_bfloat16')",
    "constraint": "has the constraint NonNeg",
    "changed variable": "(SpectralNormalization) changes 'sequential",
    "changed counter": "(Counter) changes 'sequential",
    "changed tf.Variable": "(Apply) changes a variable by TensorFlow's AssignAddVariableOp",
    "stateful RNN": "(GRU) changes 'gru",
    "quantized layer": "is quantized (quantization_mode='int8')",
    "call that is a tf.function": "in a tf.function of its own, which was traced before",
    "no gradient": "no gradient of the loss reaches 'sequential",
    "overridden train_step": "overrides train_step, which a training step does not call",
    "loss that tf2onnx does not convert": "the loss CTC has TensorFlow's",
}


def test_every_model_has_its_test(results):
    assert set(results["sources"]["taken over"]) == TAKEN_OVER
    assert set(results["sources"]["refused"]) == set(REFUSED)


@pytest.mark.parametrize("name", sorted(TAKEN_OVER))
def test_taken_over(name, results):
    result = results["sources"]["taken over"][name]
    loose = 500 if name == "mixed_float16" else 1
    assert result["unchanged"], "the export or the comparison changed the model"
    assert result["loss"] < 2e-6 * loose
    assert result["inference"] < 4e-6 * loose
    assert {path: error for path, error in result["off"].items() if error > 4e-6 * loose} == {}
    assert result["left"] == []


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, results):
    message = results["sources"]["refused"][name]
    assert REFUSED[name] in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["keras.ops.stop_gradient", "added loss", "a batch norm of two inputs"])
def test_the_comparison_finds_what_an_export_loses(name, results):
    with_check, without = results["sources"]["lost"][name]
    assert "the step differs from TensorFlow's on the example" in with_check
    assert without == "nothing"


def test_a_method_that_is_not_called_is_said(results):
    (message,) = results["sources"]["warned"]
    assert "overrides compute_loss, which is not called" in message


def test_parts_of_a_batch_norm_are_not_loaded(results):
    said = results["sources"]["loaded"]
    assert "moving_mean', and has other variables of the layer" in said["one statistic"]
    assert "moving_variance', and has other variables of the layer" in said["both statistics"]
    assert said["the batch norm"] == "nothing"


@pytest.mark.parametrize("way", ["tape of stop", "tape of own", "kept stop"])
def test_tf2onnx_keeps(way, results):
    assert results["sources"]["converted"][way] < 2e-6


@pytest.mark.parametrize("way", ["forward of stop", "forward of own"])
def test_tf2onnx_loses(way, results):
    """Nothing in the file shows it; the guide has the remedy."""
    assert results["sources"]["converted"][way] > 0.01
