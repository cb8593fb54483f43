"""Forward values that are computed again: the same bits, in less memory, and what stays as it is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.passes.optimize.recompute import RecomputePass
from pass_models import header, model

DIGITS = Path(__file__).parents[2] / "models" / "digits_resnet20.onnx"
X = "float[N,3,4,4]"
BATCH_NORM = "bngrad.BatchNormalizationTraining <epsilon = 0.001, momentum = 0.9, unbiased_running_var = 0>"


def graph(forward, backward, outputs=f"{X} dx"):
    """A forward pass from x to z, of which y is a batch norm, and a backward pass from dz."""
    inputs = f"{X} x, float[3] s, float[3] b, float[3] m, float[3] v, {X} dz"
    return model(f"""{header(17, "bngrad")}g ({inputs}) => ({outputs}) {{
        axes = Constant <value_ints = [0, 2, 3]> ()
        [f] y, nm, nv, sm, si = {BATCH_NORM} (x, s, b, m, v, axes)
        {forward}
        [AccumulateGrad_l] dl = Neg (dz)
        {backward} }}""")


def copies(ir_model):
    """The ops that are computed again."""
    RecomputePass()(ir_model)
    return Counter(node.op_type for node in ir_model.graph if node.name.startswith("bngrad_again"))


@pytest.fixture(scope="module")
def steps():
    return {memory: bngrad.training_step(DIGITS, memory=memory) for memory in ("full", "lean")}


def results(step, implementation, threads=1):
    rng = np.random.default_rng(0)
    feeds = dict(step.state)
    feeds["images"] = rng.standard_normal((6, 1, 8, 8)).astype(np.float32)
    feeds["labels"] = rng.integers(0, 10, 6)
    feeds["learning_rate"] = np.array(0.1, np.float32)
    return bngrad.session(step.model, implementation, threads=threads).run(None, feeds)


@pytest.mark.parametrize("implementation", ["native", "function"])
def test_a_step_has_the_same_bits(steps, implementation):
    full, lean = (results(steps[memory], implementation) for memory in ("full", "lean"))
    assert [output.name for output in steps["full"].model.graph.output] == [
        output.name for output in steps["lean"].model.graph.output
    ]
    for array, expected in zip(lean, full, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_onnxruntime_keeps_copies_and_edges(steps, tmp_path):
    counts = {}
    for memory, step in steps.items():
        options = onnxruntime.SessionOptions()
        bngrad.register(options)
        options.optimized_model_filepath = str(tmp_path / memory)
        onnxruntime.InferenceSession(step.model.SerializeToString(), options)
        counts[memory] = Counter(node.op_type for node in onnx.load(tmp_path / memory).graph.node)
    assert counts["full"]["BatchNormalizationTraining"] == 21
    assert counts["lean"]["BatchNormalizationTraining"] > 35
    assert counts["lean"]["Relu"] > 30
    # Each of the 20 gradients of data waits for those of the weights; in full, ONNX Runtime drops these edges.
    assert (counts["full"]["Max"], counts["lean"]["Max"]) == (0, 20)


def test_one_copy_for_all_readers():
    backward = "[AccumulateGrad_a] du = Mul (dl, z) [AccumulateGrad_b] dx = Mul (du, z)"
    changed = graph("[r] z = Relu (y)", backward)
    wait = ("Constant", "Size", "Min")
    ops = dict.fromkeys([*wait, "BatchNormalizationTraining", "Relu"], 1)
    assert copies(changed) == {**ops, "Reshape": 2}, "each copy waits by itself"


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("[r] z = Exp (y)", "[AccumulateGrad_a] dx = Mul (dl, z)"),
        ("[c] u = Exp (y) [r] z = Relu (u)", "[AccumulateGrad_a] dx = Mul (dl, z)"),
        ("[r] z = Relu (y)", "[AccumulateGrad_a] t = Sign (z) [AccumulateGrad_b] dx = Mul (dl, t)"),
        ("[r] z = Relu (y)", "[a] dx = Mul (dz, z)"),
    ],
    ids=["no cheap op", "its input is not kept", "no gradient beside it", "no backward pass"],
)
def test_values_that_are_kept(forward, backward):
    assert not copies(graph(forward, backward))


def test_an_output_is_kept():
    assert not copies(graph("[r] z = Relu (y)", "[AccumulateGrad_a] dx = Mul (dl, z)", outputs=f"{X} dx, {X} z"))


def test_a_quantized_step_has_nothing_to_compute_again():
    with pytest.warns(bngrad.BngradWarning, match="memory 'lean' keeps as much as 'full'"):
        bngrad.training_step(DIGITS, memory="lean", quantize="int8")


PEAK = """
import sys

import numpy as np

import bngrad



def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1])


feeds = dict(np.load(sys.argv[2]))
session = bngrad.session(sys.argv[1], threads=1)
before = peak()
session.run(["loss"], feeds)
print(peak() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_a_process_needs_less_memory(steps, tmp_path):
    samples = {"images": np.ones((2048, 1, 8, 8), np.float32), "labels": np.zeros(2048, np.int64)}
    peaks = {}
    for memory, step in steps.items():
        model, feeds = tmp_path / f"{memory}.onnx", tmp_path / f"{memory}.npz"
        onnx.save(step.model, model)
        np.savez(feeds, **step.state, **samples, learning_rate=np.float32(0.1))
        command = [sys.executable, "-c", PEAK, str(model), str(feeds)]
        peaks[memory] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert peaks["lean"] < 0.8 * peaks["full"], peaks
