"""Tests that arguments of wrong types raise an InputError with a helpful message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import pytest

import bngrad

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3,4,5] x) => (float loss)
    <float[4] s = {1,1,1,1}, float[4] b = {0,0,0,0}, float[4] m = {0,0,0,0}, float[4] v = {1,1,1,1}> {
    [bn] y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    q = Mul(y, y)
    loss = ReduceSum<keepdims = 0>(q) }"""


class Wrong(NamedTuple):
    """A function, an invalid argument, and the expected message."""

    function: Callable[..., object]
    arguments: dict[str, Any]
    message: str


WRONG = {
    "differentiate-builder": Wrong(
        bngrad.differentiate, {"builder": "torch"}, "builder is 'torch'; expected one of bngrad, ort"
    ),
    "differentiate-target": Wrong(
        bngrad.differentiate,
        {"target": "any"},
        "target is 'any'; expected one of stock, training, ort",
    ),
    "differentiate-running-variance": Wrong(
        bngrad.differentiate,
        {"running_variance": "none"},
        "running variance is 'none'; expected one of biased, unbiased",
    ),
    "differentiate-shared-statistics": Wrong(
        bngrad.differentiate,
        {"shared_statistics": "all"},
        "shared_statistics is 'all'; expected one of separate, chain",
    ),
    "rewrite-target": Wrong(bngrad.rewrite, {"target": "ort"}, "target is 'ort'; expected one of stock, training"),
    "validate-against": Wrong(
        bngrad.validate,
        {"against": "jax"},
        "against is 'jax'; expected one of ort, reference, numeric, torch",
    ),
    "validate-builder": Wrong(
        bngrad.validate,
        {"against": "numeric", "builder": "torch"},
        "builder is 'torch'; expected one of bngrad, ort",
    ),
    "differentiate-wrt": Wrong(
        bngrad.differentiate, {"wrt": "s"}, "wrt is the string 's'; expected a sequence of names, such as ['s']"
    ),
    "differentiate-frozen": Wrong(
        bngrad.differentiate,
        {"frozen": "*"},
        "frozen is the string '*'; expected a sequence of names, such as ['*']",
    ),
    "differentiate-training": Wrong(
        bngrad.differentiate,
        {"training": "bn"},
        "training is the string 'bn'; expected a sequence of names, such as ['bn']",
    ),
    "differentiate-frozen-none": Wrong(
        bngrad.differentiate,
        {"frozen": None},
        "frozen is None; expected a sequence of names, which may be empty",
    ),
    "validate-wrt": Wrong(
        bngrad.validate,
        {"against": "numeric", "wrt": "s"},
        "wrt is the string 's'; expected a sequence of names, such as ['s']",
    ),
    "finalize-outputs": Wrong(
        bngrad.finalize,
        {"weights": {}, "outputs": "loss"},
        "outputs is the string 'loss'; expected a sequence of names, such as ['loss']",
    ),
}


@pytest.mark.parametrize("wrong", [pytest.param(wrong, id=name) for name, wrong in WRONG.items()])
def test_a_wrong_argument_is_refused(wrong: Wrong) -> None:
    with pytest.raises(bngrad.InputError) as raised:
        wrong.function(onnx.parser.parse_model(FORWARD), **wrong.arguments)
    assert str(raised.value) == wrong.message


@pytest.mark.parametrize("names", [["bn"], ("bn",), ["*"], []], ids=str)
def test_a_sequence_of_names_is_taken(names: list[str]) -> None:
    graph = bngrad.read_training_graph(bngrad.differentiate(onnx.parser.parse_model(FORWARD), training=names))
    assert list(graph.running_statistics) == ["m", "v"]
