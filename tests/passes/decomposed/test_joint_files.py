"""Batch norms in forward and backward graphs of PyTorch are recognized, and the results are PyTorch's."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import pytest
from joint_files import CASES, FILES, batch

import bngrad

BATCH_NORMS = {"conv_bn_relu": 1, "conv_bn_relu_var_mean": 1, "resnet_block": 3, "mobilenet_block": 3}
FUSED = {"conv_bn_relu": 1, "conv_bn_relu_var_mean": 1, "resnet_block": 1, "mobilenet_block": 1}
"""The number of gradients of batch norms that are fused with that of the following ReLU."""


def read(case):
    return onnx.parser.parse_model((FILES / f"joint_{case}.onnxtxt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_every_batch_norm_is_recognized(case):
    names = (node.op_type for node in bngrad.rewrite(read(case)).graph.node if node.domain == "bngrad")
    ops = Counter(name for name in names if name.startswith("BatchNormalization"))
    assert ops == Counter(
        BatchNormalizationTraining=BATCH_NORMS[case],
        BatchNormalizationGrad=BATCH_NORMS[case] - FUSED[case],
        BatchNormalizationReluGrad=FUSED[case],
    )


@pytest.mark.parametrize("recognize", [True, False], ids=["recognized", "in-primitives"])
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_pytorch_in_float64(case, recognize):
    session = bngrad.session(bngrad.rewrite(read(case), recognize=recognize))
    want = {
        name: np.array(values)
        for name, values in json.loads((FILES / f"joint_{case}.json").read_text(encoding="utf-8")).items()
    }
    got = dict(zip(want, session.run(list(want), batch()), strict=True))
    assert {value.name for value in session.get_outputs()} - want.keys() == {"output"}
    for name, value in want.items():
        assert np.linalg.norm(got[name] - value) <= 2e-6 * np.linalg.norm(value) + 1e-7, name
