"""The training of docs/examples in Python, which those in other languages are compared with."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file

import bngrad
from bngrad.training.weights_file import load_weights

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
MODEL = EXAMPLES.parents[1] / "models" / "digits_resnet20.onnx"


def prepare(folder, layout):
    """Writes the files of an example."""
    script = EXAMPLES / "prepare.py"
    subprocess.run([sys.executable, script, "-o", folder, "--layout", layout], check=True)


class Training:
    """The training step in a folder that `prepare` wrote, in ONNX Runtime for Python."""

    def __init__(self, folder, *, library=False):
        self.files = bngrad.read_training_step(folder / "step.onnx")
        self.info = self.files.info
        self.digits = load_file(folder / "digits.safetensors")
        # Nothing registered: the functions in the model, as in JavaScript.
        make = bngrad.session if library else onnxruntime.InferenceSession
        self.session = make(folder / "step.onnx")

    def step(self, state, index, rate):
        """The loss and the new state of one step; the state is a tensor each."""
        rows = self.digits["batches"][index]
        feeds = {name: self.digits[f"training/{name}"][rows] for name in self.info.data}
        feeds[self.info.learning_rate] = np.array(rate, np.float32)
        flat = self.info.flat
        feeds |= state if flat is None else {flat.input: self.info.flatten(state)}
        new = [entry.new for entry in self.info.state.values()] if flat is None else [flat.output]
        loss, *arrays = self.session.run([self.info.loss, *new], feeds)
        return float(loss), dict(zip(state, arrays, strict=True)) if flat is None else self.info.unflatten(*arrays)

    def train(self, steps, rate):
        """The loss of each step, and the trained state."""
        state, losses = self.files.state, []
        for index in range(steps):
            loss, state = self.step(state, index, rate)
            losses.append(loss)
        return losses, state

    def check_written(self, file, steps, *, recorded=True):
        """Returns the accuracy of a state that an example wrote; everything that reads states has to take it."""
        trainer = bngrad.Trainer(self.files, learning_rate=0.1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.load(file)
        lines = [str(warning.message) for warning in caught]
        assert len(lines) == (0 if recorded else 1), lines
        assert all("does not record which training step wrote it" in line for line in lines)
        assert trainer.updates == steps
        written = load_weights(file)
        assert written.is_state
        accuracy = self.accuracy(bngrad.finalize(MODEL, written.arrays).SerializeToString())
        assert self.accuracy(trainer.finalize().SerializeToString()) == accuracy
        return accuracy

    def accuracy(self, model):
        """The accuracy of an inference model, bytes, on the test images."""
        (logits,) = onnxruntime.InferenceSession(model).run(["logits"], {"images": self.digits["test/images"]})
        return float(np.mean(logits.argmax(axis=1) == self.digits["test/labels"]))


def losses_in(output):
    """The losses that an example prints."""
    return [float(line.split()[-1]) for line in output.splitlines() if line.startswith("step ")]


def accuracy_in(output):
    """The accuracy that an example prints."""
    return float(output.splitlines()[-1].removeprefix("accuracy "))
