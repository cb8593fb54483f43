"""Generates the artifacts of all cases with a package, or trains them with its Module.

    python run_artifact_cases.py generate PACKAGE FOLDER [TARGET]
    python run_artifact_cases.py train PACKAGE FOLDER
    python run_artifact_cases.py both PACKAGE FOLDER

Each case has a folder, with ``results.npz`` where it was trained.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import numpy as np

from artifact_cases import CASES


def generate(package, folder, *target):
    artifacts, onnxblock = (importlib.import_module(f"{package}.{name}") for name in ("artifacts", "onnxblock"))
    for name, case in CASES.items():
        Path(folder, name).mkdir()
        case.generate(artifacts, onnxblock, str(Path(folder, name)), **({"target": target[0]} if target else {}))


def train(package, folder):
    api = importlib.import_module(f"{package}.api")
    for name, case in CASES.items():
        if case.runs:
            np.savez(Path(folder, name, "results.npz"), **results(api, case, Path(folder, name)))


def both(package, folder):
    generate(package, folder)
    train(package, folder)


def results(api, case, folder):
    """The losses, gradients and parameters after each call, and the loss in evaluation."""
    prefix = case.options.get("prefix", "")
    state = api.CheckpointState.load_checkpoint(str(folder / f"{prefix}checkpoint"))
    evaluation = str(folder / f"{prefix}eval_model.onnx") if case.evaluates else None
    module = api.Module(str(folder / f"{prefix}training_model.onnx"), state, evaluation)
    values = {}
    for call, inputs in enumerate(case.batches()):
        module.train()
        if call != 1:
            module.lazy_reset_grad()
        values[f"loss {call}"] = first(module(*inputs))
        for name, parameter in state.parameters:
            values[f"{name} {call}"] = parameter.data.copy()
            if parameter.requires_grad:
                values[f"{name}_grad {call}"] = parameter.grad.copy()
    if case.evaluates:
        module.eval()
        values["evaluation"] = first(module(*inputs))
    return values


def first(outputs):
    return np.array(outputs[0] if isinstance(outputs, tuple | list) else outputs)


def main():
    what, package, *arguments = sys.argv[1:]
    if package == "onnxruntime.training":  # its `optim` imports torch, and nothing here needs it
        sys.modules[f"{package}.optim"] = types.ModuleType("optim")
    {"generate": generate, "train": train, "both": both}[what](package, *arguments)


if __name__ == "__main__":
    main()
