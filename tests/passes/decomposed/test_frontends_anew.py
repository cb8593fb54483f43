"""All networks of `jax_graphs.py`, `keras_graphs.py` and `onnxad_graphs.py`, exported anew.

BNGRAD_JAX_PYTHON, BNGRAD_KERAS_PYTHON and BNGRAD_ONNXAD_PYTHON name interpreters that have the packages; else an
environment is made.
"""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections import Counter
from pathlib import Path

import pytest

import bngrad
from bngrad.errors import BngradWarning, ModelError
from bngrad.io.files import as_ir, to_proto
from bngrad.passes import pipeline
from environments import cached_environment
from passes.decomposed.recognition import batch_norms, load, outputs, require_close

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
PACKAGES = {
    "jax": ["jax==0.10.2", "flax==0.12.8", "jax2onnx==0.17.1", "onnx==1.23.2"],
    "keras": ["tensorflow-cpu==2.21.0", "keras==3.15.1", "tf2onnx==1.17.0", "onnx==1.23.2"],
    "onnxad": ["onnx-ad==0.3.0", "onnx==1.23.2"],
}
NUMBERS = {
    "jax_gradient_penalty": None,  # of first and second order
    "jax_stopped_statistics": (1, 1, 0),  # dX is that of a frozen batch norm
    "jax_of_the_input": (1, 1, 0),
    "jax_without_scale": (1, 1, 1),
    "jax_without_scale_and_bias": (1, 1, 1),
    "flax_nnx_no_scale": (2, 2, 2),
    "keras_nothing_step": (1, 1, 1),
    # Not recognized as a whole, though the numbers are right:
    "jax_dense_gelu": None,
    "keras_mixed_step": None,
    "onnxad_matmul_2d": None,
    "tf_conv_fast_forward": None,
    "tf_conv_fast_step": None,
    "tf_conv_with_moments_forward": None,
}
"""The numbers of batch norms, of gradients, and of needed dX, where `_expected` does not determine them."""
HALF = {"flax_nnx_half", "keras_mixed_step", "keras_mixed_forward"}
"""With data in float16."""


@pytest.fixture(scope="module", params=PACKAGES)
def exported(request, tmp_path_factory):
    """The folder of the files that one generator wrote."""
    framework = request.param
    python = os.environ.get(f"BNGRAD_{framework.upper()}_PYTHON")
    if python is None:
        python = cached_environment(request.config.cache.mkdir(f"decomposed_{framework}"), PACKAGES[framework])
    folder = tmp_path_factory.mktemp(framework)
    done = subprocess.run(
        [python, HERE / f"{framework}_graphs.py", folder], capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_network(exported):
    """Recognizes each network, and compares its numbers on stock ONNX Runtime."""
    wrong = {}
    for path in sorted(exported.glob("*.onnx")):
        try:
            _check(path)
        except Exception as error:  # noqa: BLE001 - all networks are tried
            wrong[path.stem] = " ".join(f"{type(error).__name__}: {error}".split())
    assert not wrong, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())


def _check(path):
    model, values = load(path)
    tolerance = 1e-2 if path.stem in HALF else 1e-4
    if path.stem.startswith("not_"):
        _require_none(model, values)
        return
    result = pipeline.rewrite(as_ir(model))
    rewritten = to_proto(result.model)
    require_close(outputs(rewritten, values), values, tolerance)
    kinds = Counter(candidate.kind for candidate in result.candidates if candidate.taken)
    want = NUMBERS.get(path.stem, _expected(path.stem, model))
    if "frozen" in path.stem:
        assert kinds["frozen forward"] + kinds["frozen backward"], f"recognized {dict(kinds)}"
    elif want is not None:
        assert batch_norms(rewritten) == want, f"{batch_norms(rewritten)}, expected {want}"
    if path.stem.endswith("_forward"):
        _check_differentiated(model, values, tolerance, None if "frozen" in path.stem else want)


def _expected(name, model):
    number = sum(
        re.search(r"(^g\d|scale|gamma|moving_mean)$", value.name) is not None for value in model.graph.input
    )
    if name.startswith("keras_"):  # each has a moving mean, and most a gamma
        number = sum(value.name.endswith("moving_mean") for value in model.graph.input)
    if name.endswith("_captured"):
        number = 2
    one_way = name.endswith(("_forward", "_captured"))
    return (number, 0, 0) if one_way else (number, number, number)


def _check_differentiated(model, values, tolerance, want):
    gradients = {key: key.removeprefix("grad.") for key in values if key.startswith("grad.")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BngradWarning)
        result = bngrad.differentiate(model, loss="loss", wrt=list(gradients.values()))
    names = {f"{name}_grad": key for key, name in gradients.items()} | {"loss": "loss"}
    require_close(outputs(result, values), values, tolerance, names)
    if want is not None and want[0]:
        assert batch_norms(result) == (want[0],) * 3, f"differentiated: {batch_norms(result)}, expected {want[0]}"


def _require_none(model, values):
    try:
        result = pipeline.rewrite(as_ir(model))
    except ModelError as error:
        assert "has no batch norm" in str(error)  # noqa: PT017
        return
    assert not [candidate for candidate in result.candidates if candidate.taken]
    require_close(outputs(to_proto(result.model), values), values, 1e-4)
