"""The number of times that a model is converted to protobuf, inferred, copied and checked by onnx.

Each call of onnx's inference and checker serializes the whole model once more.
"""

from __future__ import annotations

from collections import Counter

import onnx
import onnx_ir as ir
import pytest

import bngrad
from models.digits_resnet20 import build

COUNTED = {
    "conversions": (ir.serde, "serialize_model"),
    "inferences": (onnx.shape_inference, "infer_shapes"),
    "copies": (ir.Model, "clone"),
    "checks": (onnx.checker, "check_model"),
}

COUNTS = {
    # The forward model, and the training graph. The last conversion is that of the result.
    "differentiate": {"conversions": 3, "inferences": 2, "copies": 1, "checks": 1},
    # The forward model, the evaluation graph and the step. The last two conversions are those of the result.
    "training_step": {"conversions": 5, "inferences": 3, "copies": 2, "checks": 2},
}
"""For a model whose dimensions are numbers or names; where some are unknown, more models are inferred."""


@pytest.fixture
def counts(monkeypatch):
    """The numbers of calls."""
    calls = Counter()

    def counted(what, function):
        def call(*args, **options):
            calls[what] += 1
            return function(*args, **options)

        return call

    for what, (place, name) in COUNTED.items():
        monkeypatch.setattr(place, name, counted(what, getattr(place, name)))
    return calls


@pytest.mark.parametrize("function", COUNTS)
def test_counts(function, counts):
    model = build()
    counts.clear()
    getattr(bngrad, function)(model)
    assert counts == COUNTS[function]


@pytest.mark.parametrize(("function", "copies"), [("differentiate", 2), ("training_step", 2)])
def test_a_loss_function_takes_no_inference_more(function, copies, counts):
    model = build()
    counts.clear()
    getattr(bngrad, function)(model, loss_fn="cross_entropy", prediction="logits")
    assert counts == COUNTS[function] | {"copies": copies}
