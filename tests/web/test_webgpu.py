"""A training step on onnxruntime-web's WebGPU provider, with an adapter in software, beside WebAssembly."""

from __future__ import annotations

import json

import numpy as np
import onnx.parser
import pytest
from safetensors.numpy import load_file

import bngrad
from digits_training import prepare
from web.conftest import absent

STEPS = 2
BATCH = 8

INTEGERS = {"Size", "Cast", "Shape", "Unsqueeze", "Gather", "Add"}
"""The ops that compute integers: labels, shapes and the number of steps."""

GROUPED = f"""<ir_version: 8, opset_import: ["" : 18]>
g (float[2,4,8,8] x) => (float loss)
<float[4,1,1] s = {{1, 2, 3, 4}}, float[8,1,3,3] w = {{{", ".join(str(i % 7 - 3) for i in range(72))}}}> {{
    a = Mul (x, s)
    b = Conv <group = 4, pads = [1, 1, 1, 1], strides = [1, 2]> (a, w)
    loss = ReduceSumSquare <keepdims = 0> (b)
}}"""
"""The gradient of ``a`` is a ConvTranspose with groups of two channels."""


@pytest.fixture(scope="module")
def seen(node, chromium, url, folder):
    """The losses, the states and the placement of the nodes; skipped where Chromium has no adapter."""
    prepare(folder / "named", "named")
    (folder / "grouped").mkdir()
    step = bngrad.training_step(onnx.parser.parse_model(GROUPED), optimizer="sgd", layout="flat")
    step.save(folder / "grouped" / "step.onnx")
    result = json.loads(node("webgpu.mjs", url, chromium, STEPS, BATCH))
    return result or absent("Chromium has no WebGPU adapter")


@pytest.mark.parametrize("layout", ["webgpu", "named"])
def test_the_losses_are_those_of_webassembly(seen, layout):
    losses = seen[layout]["losses"]
    assert len(losses) >= STEPS
    assert losses == pytest.approx(seen["wasm"]["losses"][: len(losses)], abs=2e-6)


def test_the_state_and_the_evaluation_are_those_of_webassembly(seen):
    assert seen["difference"] < 1e-4
    np.testing.assert_allclose(seen["webgpu"]["logits"], seen["wasm"]["logits"], atol=1e-3)


@pytest.mark.parametrize("layout", ["webgpu", "named"])
def test_only_integers_and_the_losses_logarithm_are_on_the_cpu(seen, layout):
    placement = seen[layout]["placement"]
    assert placement["nodes"] > 2000
    on_cpu = [op_type for op_type, _ in placement["onCpu"]]
    # ONNX Runtime's provider has no LogSoftmax; with channels first it adds a Transpose for the CPU.
    assert set(on_cpu) - INTEGERS <= {"LogSoftmax", "Transpose"}
    assert on_cpu.count("Transpose") <= 1
    assert len(on_cpu) < 12
    assert placement["copies"] < 12


def test_gradients_of_convolutions_with_groups(seen):
    wasm, webgpu = seen["grouped"]
    assert webgpu["loss"] == pytest.approx(wasm["loss"], rel=1e-5)
    np.testing.assert_allclose(webgpu["state"], wasm["state"], rtol=1e-4, atol=1e-4)


def test_the_state_stays_on_the_gpu(seen):
    assert seen["webgpu"]["refusal"] == 'the state is on the GPU; "await step.pull()" copies it from there'
    assert "refusal" not in seen["wasm"]
    assert seen["named"]["location"] == "gpu-buffer"


@pytest.mark.usefixtures("seen")
def test_the_page(node, chromium, url, training, tmp_path):
    shown = json.loads(node("gpu_page.mjs", url, chromium, tmp_path))
    assert shown["errors"] == []
    assert shown["enabled"]
    assert shown["checked"]
    expected, state = training.step(training.files.state, 0, shown["rate"])
    assert shown["losses"] == [pytest.approx(expected, abs=2e-6)]
    written = load_file(tmp_path / "gpu.safetensors")
    assert written["step"] == 1
    for name, array in state.items():
        np.testing.assert_allclose(written[name], array, atol=1e-3, err_msg=name)
