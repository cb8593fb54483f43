"""The smallest proof that an environment works: ORT differentiates one batch norm, and runs the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx.parser

from bngrad.errors import OracleError

if TYPE_CHECKING:
    from bngrad.oracle.client import Oracle

# loss = mean(batch norm(X)^2): scale = 1 and bias = 0 make d loss / d scale = 2, up to epsilon.
_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
probe (float[4,1] X, float[1] scale, float[1] bias, float[1] mean, float[1] var) => (float loss) {
  Y, new_mean, new_var = BatchNormalization <training_mode = 1> (X, scale, bias, mean, var)
  square = Mul (Y, Y)
  loss = ReduceMean <keepdims = 0> (square)
}
"""


def check_gradient(oracle: Oracle) -> None:
    """Build the gradient of a batch norm and run it.

    Raises:
        OracleError: the worker does not start, or the gradient is wrong.
    """
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    feeds = {
        "X": np.array([[-2], [-1], [1], [2]], np.float32),
        "scale": one,
        "bias": zero,
        "mean": zero,
        "var": one,
    }
    gradient = oracle.build_gradient(onnx.parser.parse_model(_MODEL), "loss", ["scale"])
    found = oracle.run(gradient, feeds)["scale_grad"]
    if not np.allclose(found, 2, rtol=1e-4):
        raise OracleError(f"the oracle's gradient builder is broken: d loss / d scale is {found} instead of 2")
