"""Graphs of JAX, flax, TensorFlow, Keras and onnx-ad, as these made them, in files/.

`jax_graphs.py`, `keras_graphs.py` and `onnxad_graphs.py` write the files, each with what its framework computes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import bngrad
from bngrad.errors import ModelError
from bngrad.io.files import as_ir, to_proto
from bngrad.passes import pipeline
from passes.decomposed.recognition import batch_norms, load, outputs, primitives, require_close

FILES = Path(__file__).with_name("files")


class Want(NamedTuple):
    """The batch norms recognized in a graph, and the remaining ops of those that batch norms consist of."""

    kinds: dict[str, int]
    left: dict[str, int]


STEP = {"forward": 1, "backward": 1}
RECOGNIZED = {
    "jax_centered": Want(STEP, {"ReduceSumSquare": 1}),
    "jax_fast_n": Want(STEP, {"ReduceSumSquare": 1}),
    "jax_expanded": Want(STEP, {"ReduceSumSquare": 1}),
    "flax_nnx_fast": Want(STEP, {"ReduceSum": 2, "ReduceSumSquare": 1}),
    "flax_linen_centered": Want(STEP, {"ReduceSum": 2, "ReduceSumSquare": 1}),
    "keras_conv2d_step": Want(STEP, {"ReduceMean": 2, "ReduceSum": 1, "Tile": 1}),
    "tf_fast_step": Want(STEP, {"ReduceMean": 1}),
    "onnxad_torch_4d": Want(STEP, {"ReduceSum": 1}),
    "tf_with_moments_forward": Want({"forward": 1}, {"ReduceMean": 1}),
    "keras_conv1d_forward": Want({"forward": 1}, {"ReduceMean": 2}),
}
"""The remaining ops compute losses, means over space, and the gradients of biases."""
OTHERS = ["not_flax_masked", "not_jax_ghost", "not_keras_group_norm_step"]
"""With a mask, of parts of the batch, and of groups of channels."""
DIFFERENTIATED = ["tf_with_moments_forward", "keras_conv1d_forward"]


def rewritten(model):
    result = pipeline.rewrite(as_ir(model))
    return to_proto(result.model), Counter(candidate.kind for candidate in result.candidates if candidate.taken)


@pytest.mark.parametrize("name", RECOGNIZED)
def test_is_recognized(name):
    model, values = load(FILES / f"{name}.onnx")
    result, kinds = rewritten(model)
    want = RECOGNIZED[name]
    assert kinds == want.kinds
    backward = want.kinds.get("backward", 0)
    assert batch_norms(result) == (want.kinds["forward"], backward, backward)
    assert primitives(result) == want.left
    require_close(outputs(result, values), values, 1e-5)


@pytest.mark.parametrize("name", RECOGNIZED)
def test_left_alone_if_asked(name):
    model, values = load(FILES / f"{name}.onnx")
    try:
        result = bngrad.rewrite(model, recognize=False)
    except ModelError:  # nothing to do
        result = model
    assert batch_norms(result) == (0, 0, 0)
    require_close(outputs(result, values), values, 1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_no_batch_norm(name):
    model, values = load(FILES / f"{name}.onnx")
    if name.endswith("_step"):  # has gradient ops of TensorFlow
        result, kinds = rewritten(model)
        assert not kinds
        assert batch_norms(result) == (0, 0, 0)
        require_close(outputs(result, values), values, 1e-5)
    else:
        with pytest.raises(ModelError, match="has no batch norm"):
            bngrad.rewrite(model)


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_is_differentiated_as_a_batch_norm(name):
    model, values = load(FILES / f"{name}.onnx")
    gradients = {key: key.removeprefix("grad.") for key in values if key.startswith("grad.")}
    result = bngrad.differentiate(model, loss="loss", wrt=list(gradients.values()))
    assert batch_norms(result) == (1, 1, 1)
    names = {f"{name}_grad": key for key, name in gradients.items()}
    require_close(outputs(result, values), values, 1e-5, names | {"loss": "loss"})


def test_frozen_in_jax():
    """One batch norm with given statistics, which is ONNX's BatchNormalization."""
    model, values = load(FILES / "jax_frozen.onnx")
    result, kinds = rewritten(model)
    assert kinds == {"frozen forward": 1, "frozen backward": 1}
    require_close(outputs(result, values), values, 1e-5)


def test_frozen_in_onnxad():
    """A BatchNormalization node, of which onnx-ad made the gradient."""
    model, values = load(FILES / "onnxad_frozen.onnx")
    result, kinds = rewritten(model)
    assert kinds["frozen backward"] == 1
    require_close(outputs(result, values), values, 1e-5)
