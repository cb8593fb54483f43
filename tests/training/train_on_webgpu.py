"""Trains on the CPU and on WebGPU: train_on_webgpu.py MODEL STEPS BATCH, for test_webgpu_plugin.py.

A process of its own: the environment chooses the adapter, and ONNX Runtime keeps the plugin that it has loaded.
A `DeviceError` before anything is trained is printed as ``{"absent": message}``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx

import bngrad
from bngrad.errors import BngradError, DeviceError
from bngrad.inspection.placement import nodes_on_cpu
from bngrad.runtime.environment import environment
from trainer_cases import network

MODEL, STEPS, BATCH = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RATE = bngrad.StepSchedule(0.05, 2, factor=0.5)

GRAPHS = {
    # The gradient has MaxPool with indices, which the plugin takes and cannot compute.
    "pooled": """(float[2,4,8,8] x, float[4,4,1,1] w) => (float loss) {
        a = Conv(x, w) b = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(a)
        c = MaxPool<kernel_shape = [2, 2]>(b) loss = ReduceSumSquare<keepdims = 0>(c) }""",
    # The gradient has a ConvTranspose with groups of two channels, wrong by the plugin's own choice of a layout.
    "grouped": """(float[2,4,8,8] x, float[8,1,3,3] w) => (float loss) {
        a = Mul(x, x) b = Conv<group = 4, pads = [1, 1, 1, 1], strides = [1, 2]>(a, w)
        loss = ReduceSumSquare<keepdims = 0>(b) }""",
}
"""Forward models."""


def data(index):
    """The batch of a step."""
    generator = np.random.default_rng(index)
    images = generator.random((BATCH, 1, 8, 8), np.float32)
    return {"images": images, "labels": generator.integers(0, 10, BATCH)}


def step_of(layout, optimizer=None, **options):
    """The training step."""
    return bngrad.training_step(MODEL, optimizer=optimizer or bngrad.SGD(momentum=0.9), layout=layout, **options)


def difference(arrays, others):
    """The largest difference of two sets of arrays, by the largest element of an array where that is above 1."""
    return max(
        float(
            np.abs(np.subtract(arrays[name], others[name], dtype=float)).max() / max(1, np.abs(others[name]).max())
        )
        for name in others
    )


def train(layout, device, optimizer=None):
    """The losses of each step, the trained state, the evaluation of one batch, and where the state is."""
    trainer = bngrad.Trainer(step_of(layout, optimizer), learning_rate=RATE, device=device)
    losses = [trainer.step(**batch) for batch in trainer.prefetch(map(data, range(STEPS)))]
    places = {value.device_name() for value in trainer.state_values().values()}
    return losses, trainer.state_dict(), trainer.evaluate(**data(0)), sorted(places)


def compare(layout, **options):
    """The differences of a training on both devices."""
    (expected, state, outputs, _), (losses, own, results, places) = (
        train(layout, device, **options) for device in ("cpu", "webgpu")
    )
    return {
        "losses": losses,
        "expected": expected,
        "state": difference(own, state),
        "evaluation": difference(results, outputs),
        "step": int(own["step"]),
        "places": places,
    }


def message(function):
    """The error of a call, with its class."""
    try:
        function()
    except BngradError as error:
        return f"{type(error).__name__}: {error}"
    return None


def gradients_differ(text):
    """The largest difference of the gradients of a model, of GRAPHS."""
    graph, generator = bngrad.differentiate(onnx_model(text), wrt=["x", "w"]), np.random.default_rng(0)
    cpu, own = (bngrad.session(graph, device=device) for device in ("cpu", "webgpu"))
    feeds = {value.name: generator.standard_normal(value.shape).astype(np.float32) for value in cpu.get_inputs()}
    results = [dict(enumerate(session.run(None, feeds))) for session in (own, cpu)]
    return difference(*results)


def resumed(trainer, folder):
    """The losses of the second step, and again from the state that was saved before it."""
    trainer.step(**data(0))
    trainer.save(folder / "webgpu.safetensors")
    loss = trainer.step(**data(1))
    trainer.load(folder / "webgpu.safetensors")
    return [loss, trainer.step(**data(1))]


def refusals(trainer):
    """The errors of what WebGPU does not have."""
    wrong = data(0)
    wrong["images"][0, 0, 0, 0] = np.nan
    bare = bngrad.differentiate(network(), functions=False)
    side = 20_000
    product = onnx_model(
        f"(float[{side},1] a, float[1,{side}] b) => (float[] y) {{ c = Mul(a, b) y = ReduceSum<keepdims=0>(c) }}"
    )
    session, column = bngrad.session(product, device="webgpu"), np.ones((side, 1), np.float32)

    def too_large():
        with trainer.device.errors():
            session.run(None, {"a": column, "b": column.T.copy()})

    return {
        "nan": message(lambda: trainer.step(**wrong)),
        "evaluated nan": message(lambda: trainer.evaluate(**wrong)),
        "functions": message(lambda: bngrad.session(bare, device="webgpu")),
        "sync": message(lambda: bngrad.session(step_of("named", sync=True).model, device="webgpu")),
        "size": message(too_large),
    }


def onnx_model(text):
    """A model from its text."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


def main(folder):
    """The comparisons."""
    try:
        bngrad.session(onnx_model("(float[2] x) => (float[2] y) { y = Relu(x) }"), device="webgpu")
    except DeviceError as error:
        return {"absent": str(error)}
    result = {layout: compare(layout) for layout in ("named", "flat")}
    # Its coefficients are float64, which is computed on the CPU from a rate and a count on the device.
    result["adam"] = compare("named", optimizer=bngrad.Adam())
    flat = step_of("flat")
    flat.save(folder / "step.onnx")
    result["on_cpu"] = sorted({node.op for node in nodes_on_cpu(folder / "step.onnx", "webgpu")})
    trainer = bngrad.Trainer(flat, learning_rate=0.05, device="webgpu")
    result["resumed"] = resumed(trainer, folder)
    result["refusals"] = refusals(trainer)
    report = bngrad.validate(network(), against="reference", dims={"N": 2}, device="webgpu")
    result["validated"] = [report.passed, report.implementations]
    result["graphs"] = {name: gradients_differ(text) for name, text in GRAPHS.items()}
    result["gpu"] = environment("webgpu").machine["GPU"]
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path.cwd())))
