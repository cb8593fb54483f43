"""nGraph's own numeric tests of its batch norms: its inputs, its results, its limits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.passes.imports.ngraph import ImportNgraphPass
from dialects import node_model, rewritten, run
from ngraph_nodes import (
    FORWARD,
    FORWARD_OUTPUTS,
)
from ort_values import DTYPES
from pass_models import proto


def all_close(got, want, rtol=1e-5, atol=1e-8):
    np.testing.assert_allclose(got, np.asarray(want).reshape(got.shape), rtol=rtol, atol=atol)


ZERO_EPSILON_INPUT = np.array([0, 1, 1, 3, 3, 0, -1, -1, -3, -3], np.float64)
EIGHT = np.float32([0.54881352, 0.71518934, 0.60276335, 0.54488319, 0.42365479, 0.64589411, 0.4375872, 0.89177299])
EIGHT_NORMED = [-0.30327, 1.1561, -0.0963782, -0.434702, -1.4011, 0.548275, -1.06187, 1.59295]
FPROP = {
    "b1c2h2w2": (
        (1, 2, 2, 2),
        [-0.71498716, 1.48388731, -0.00196938, -0.76693159, -0.91316032, 0.23943391, -0.84090298, 1.51462936],
        [0.602912, 0.599727],
        [0.00472505, 0.0361782],
        1e-6,
    ),
    "b2c2h2w1": ((2, 2, 2, 1), EIGHT_NORMED, [0.583388, 0.619252], [0.0119972, 0.0282681], 1e-8),
    "b2c2d2h1w1": ((2, 2, 2, 1, 1), EIGHT_NORMED, [0.583388, 0.619252], [0.0119972, 0.0282681], 1e-8),
}


def forward(inputs, eps):
    model = node_model(FORWARD, inputs, FORWARD_OUTPUTS, eps=eps)
    return run(rewritten(model, ImportNgraphPass()), inputs)


@pytest.mark.parametrize("dtype", ["double", "float"])
@pytest.mark.parametrize(("gamma", "beta"), [([1, 1, 1], [0, 0, 0]), ([2, 1, 2], [0, 1, 1])], ids=str)
def test_ngraph_batch_norm_training_0eps(dtype, gamma, beta):
    columns = [ZERO_EPSILON_INPUT, ZERO_EPSILON_INPUT + 1, ZERO_EPSILON_INPUT / 4]
    given_ = {"gamma": np.array(gamma), "beta": np.array(beta), "input": np.stack(columns, axis=1)}
    got = forward({name: value.astype(DTYPES[dtype]) for name, value in given_.items()}, 0.0)
    all_close(got["output"], ZERO_EPSILON_INPUT[:, None] / 2 * gamma + beta)
    all_close(got["batch_mean"], [0, 1, 0])
    all_close(got["batch_variance"], [4, 4, 0.25])


@pytest.mark.parametrize("case", FPROP)
def test_ngraph_batch_norm_fprop(case):
    shape, normed, mean, variance, atol = FPROP[case]
    ones = np.ones(2, np.float32)
    got = forward({"gamma": ones, "beta": 0 * ones, "input": EIGHT.reshape(shape)}, 0.001)
    all_close(got["output"], normed, atol=atol)
    all_close(got["batch_mean"], mean, atol=atol)
    all_close(got["batch_variance"], variance, atol=1e-6)


BPROP_INPUT = """
    10.76331902 11.51178265 10.31018162 12.2993021  14.17626667 14.63498497 13.63494492 13.84248161
    11.34602547 13.22014618 10.46686649 10.39842987 12.94806862 11.71670246 14.94438076 13.13236618
    13.40889645 12.76128387 11.34430027 11.86629677 11.11464024 10.93221283 11.95324039 10.96581173
    13.05455494 14.41404247 13.11169434 11.26559448 10.89965153 14.08202171 11.12685776 12.58428574
    12.59247875 13.00187492 12.66310215 10.06655025 12.62048626 14.47942352 13.84950638 10.61425877
    11.47936344 13.06011772 13.63069057 12.31748772 13.84555244 10.95815468 12.78933334 12.75389099"""


def test_ngraph_batch_norm_bprop_n4c3h2w2():
    """The statistics come from the forward node, and the delta is constant, so two gradients are exactly 0."""
    x = np.array(BPROP_INPUT.split(), np.float32).reshape(4, 3, 2, 2)
    twos, ones = np.full(3, 2, np.float32), np.ones(3, np.float32)
    data, c = "float[4,3,2,2]", "float[3]"
    model = ir.from_proto(
        proto(
            f"""g ({data} input, {c} gamma, {c} beta, {data} delta) => (input_delta, gamma_delta, beta_delta) {{
                output, mean, variance = BatchNormTraining<eps = 0.001>(gamma, beta, input)
                input_delta, gamma_delta, beta_delta = BatchNormTrainingBackprop<eps = 0.001>
                    (gamma, beta, input, mean, variance, delta) }}"""
        )
    )
    feeds = {"input": x, "gamma": twos, "beta": ones, "delta": np.full(x.shape, 20, np.float32)}
    got = run(rewritten(model, ImportNgraphPass()), feeds)
    all_close(got["input_delta"], np.zeros(x.shape), 1e-3, 1e-4)
    all_close(got["gamma_delta"], np.zeros(3), 1e-2, 1e-3)
    all_close(got["beta_delta"], np.full(3, 320), 1e-4, 1e-8)
