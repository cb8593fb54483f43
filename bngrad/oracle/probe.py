"""The check of a new environment: ORT differentiates one batch norm there, and runs the result."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.parser

from bngrad.errors import OracleError
from bngrad.oracle.process import Worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

# loss = mean(batch norm(X)^2): scale = 1 and bias = 0 make d loss / d scale = 2, up to epsilon.
_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
probe (float[4,1] X, float[1] scale, float[1] bias, float[1] mean, float[1] var) => (float loss) {
  Y, new_mean, new_var = BatchNormalization <training_mode = 1> (X, scale, bias, mean, var)
  square = Mul (Y, Y)
  loss = ReduceMean <keepdims = 0> (square)
}
"""
_FEEDS = {"X": [[-2], [-1], [1], [2]], "scale": [1], "bias": [0], "mean": [0], "var": [1]}


_OPTIONS = {"patch": None, "library": None, "threads": 0, "optimize": True, "keep": False}
_SECONDS = 1800  # for a job


def check_gradient(python: Path) -> None:
    """Builds the gradient of a batch norm in a worker, and runs it.

    Args:
        python: The interpreter of the environment.

    Raises:
        OracleError: The worker does not start, a job fails, or the gradient is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="bngrad-oracle-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        with Worker(python, folder) as worker:
            gradient = _scale_gradient(worker, folder)
    if not np.allclose(gradient, 2, rtol=1e-4):
        raise OracleError(f"the oracle's gradient builder is broken: d loss / d scale is {gradient}; expected 2")


def _scale_gradient(worker: Worker, folder: Path) -> NDArray[Any]:
    forward, training = folder / "forward.onnx", folder / "training.onnx"
    forward.write_bytes(onnx.parser.parse_model(_MODEL).SerializeToString())
    build = {"job": "gradient", "model": str(forward), "loss": "loss", "wrt": ["scale"], "into": str(training)}
    output = worker.ask(build, "building the gradient of a batch norm", _SECONDS)["gradients"]["scale"]
    feeds = {name: str(folder / f"{name}.npy") for name in _FEEDS}
    for name, values in _FEEDS.items():
        np.save(feeds[name], np.array(values, np.float32))
    session = {"model": str(training), **_OPTIONS}
    run = {"job": "run", "session": session, "feeds": feeds, "outputs": [output], "into": str(folder)}
    answer = worker.ask(run, "running the gradient of a batch norm", _SECONDS)
    return np.asarray(np.load(answer["files"][output], allow_pickle=False))
