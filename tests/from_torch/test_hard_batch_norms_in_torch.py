"""PyTorch's batch norm on the suite of hard batch norms."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.validation.hard_batch_norms.case import INPUTS
from bngrad.validation.hard_batch_norms.cases import cases
from bngrad.validation.hard_batch_norms.run import check_hard_batch_norms

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

UNBIASED = {"new_running_var"}
"""PyTorch's running variance is not the one of ONNX."""


def results(case):
    """The outputs of a case by `torch.nn.functional.batch_norm`, layer calls one after the other."""
    tensors = {name: torch.from_numpy(np.array(case.arrays[name])) for name in INPUTS}
    leaves = {name: tensors[name].requires_grad_() for name in ("X", "scale", "bias")}
    mean, var = tensors["running_mean"], tensors["running_var"]
    parts = [tensors["X"]] if case.joint or not case.parts else tensors["X"].split(case.parts)
    Y = torch.cat(
        [
            torch.nn.functional.batch_norm(
                *(part, mean, var, tensors["scale"], tensors["bias"], case.training_mode),
                *(1 - case.momentum, case.epsilon),
            )
            for part in parts
        ]
    )
    gradients = torch.autograd.grad((Y.double() * tensors["dY"].double()).sum(), list(leaves.values()))
    outputs = (Y, *((mean, var) if case.training_mode else ()), *gradients)
    return {name: output.detach().numpy() for name, output in zip(case.outputs, outputs, strict=True)}


def test_what_pytorch_gets_wrong(tmp_path):
    arrays, refused = {}, set()
    for case in cases():
        try:
            arrays |= {f"{case.name}/{name}": value for name, value in results(case).items()}
        except ValueError:
            refused.add(case.name)
    np.savez(tmp_path / "torch.npz", **arrays)
    report = check_hard_batch_norms(str(tmp_path / "torch.npz"))
    wrong = {}
    for row in report.checks[0].failures:
        wrong.setdefault(row.subject, set()).add(row.tensor)
    assert refused == {"one_value"}
    assert {name: tensors - UNBIASED for name, tensors in wrong.items() if tensors - UNBIASED} == {
        "parameters_float16": {"Y"},
        "values_1e20": {"Y", "dX", "dscale"},
    }
    assert {name for name, tensors in wrong.items() if tensors & UNBIASED} >= {"running_var_of_two", "double"}
