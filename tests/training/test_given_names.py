"""Which value goes where in a forward model, and which names do not say it."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import bngrad
from bngrad.errors import InputError
from bngrad.training.finalize import finalize
from training.training_cases import ALIASED, BN, CASES, Case, check, data, own

ALIAS = Case(f"[bn] z, mn, vn = {BN} (x, one, zero, zero, one)", [], ALIASED)
ONE, ZERO = np.ones(2, np.float32), np.zeros(2, np.float32)
BOTH = {name: ONE for pair in own("bn1", "bn2") for name in pair}
REFUSALS = {
    "scale-that-is-a-variance": (
        ALIAS,
        {"one": 3 * ONE},
        "'one' is both the running variance of BatchNormalization node 'bn' (outputs z, mn, vn) and",
    ),
    "bias-that-is-a-mean": (
        ALIAS,
        {"one": ONE, "zero": ONE, "bn/running_var": ONE},
        "which training keeps apart: give 'bn/running_mean' as well",
    ),
    "mean-that-is-a-variance": (
        CASES["one-mean-is-another-variance"],
        {"m": ONE, "bn1/running_mean": ONE},
        "which training keeps apart: give 'bn1/running_var' and 'bn2/running_mean' as well",
    ),
    "frozen-as-well": (
        CASES["aliased-all-frozen"],
        {"one": ONE, "bn1/running_var": ONE},
        "which training keeps apart: give 'bn2/running_var' as well",
    ),
    "nothing-reads-it": (
        CASES["shared"],
        {"m": 5 * ONE, **BOTH},
        "'m' has a new value, but all that reads it has its own ('bn1/running_mean' and 'bn2/running_mean')",
    ),
    "nothing-reads-the-chain": (
        CASES["aliased-and-shared"],
        {"one/running_var": ONE, **BOTH},
        "'one/running_var' has a new value, but all that reads it has its own",
    ),
    "an-output-of-two": (
        CASES["shared"],
        {"m2": ONE},
        "not all have a new value: give it as 'bn2/running_mean', for this one only, or as 'm', for all",
    ),
    "twice-own": (
        CASES["shared"],
        {"bn1/running_mean": ONE, "m1": ONE},
        "'bn1/running_mean' is given twice, also as its new value 'm1'; give one of them",
    ),
    "twice-output-first": (
        CASES["one"],
        {"mn": ONE, "m": ONE},
        "'m' is given twice, also as its new value 'mn'; give one of them",
    ),
    "shape": (
        CASES["shared"],
        {"bn1/running_mean": np.ones(3, np.float32)},
        "'bn1/running_mean' has shape [3]; expected [2], the shape of 'bn1/running_mean'",
    ),
    "shape-that-broadcasts": (
        CASES["scale-and-shift-behind"],
        {"shift": np.ones((2, 1), np.float32)},
        "'shift' has shape [2, 1]; expected [1, 2, 1], the shape of 'shift'",
    ),
    "scalar": (
        CASES["shared"],
        {"bn1/running_var": np.float32(1)},
        "'bn1/running_var' has shape []; expected [2]",
    ),
    "type": (CASES["half"], {"bn1/running_mean": np.ones(2, np.float16)}, "is float16; expected float32"),
    "bytes": (CASES["half"], {"s": np.zeros(2, "V2")}, "'s' is |V2; expected float16, the type of 's'"),
    "type-of-a-weight": (CASES["half"], {"s": ONE}, "'s' is float32; expected float16, the type of 's'"),
    "unknown": (
        CASES["shared"],
        {"bn3/running_mean": ONE},
        "did you mean 'bn2/running_mean', 'bn1/running_mean'",
    ),
    "no-such-chain": (CASES["one"], {"m/running_mean": ONE}, "'m/running_mean' is not a weight of this model"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    case, values, message = REFUSALS[name]
    with pytest.raises(InputError, match=re.escape(message)):
        bngrad.finalize(case.model(), values)


KEPT = {
    "nothing": (CASES["shared"], {}, {}),
    "own-of-one": (CASES["shared"], {"bn1/running_mean": 3 * ONE}, {"bn1/running_mean": 3 * ONE}),
    "both-by-the-source": (
        CASES["shared"],
        {"m": 3 * ONE},
        dict.fromkeys(("bn1/running_mean", "bn2/running_mean"), 3 * ONE),
    ),
    "the-other-by-the-source": (
        CASES["shared"],
        {"bn1/running_mean": 3 * ONE, "m": 2 * ONE},
        {"bn1/running_mean": 3 * ONE, "bn2/running_mean": 2 * ONE},
    ),
    "all-and-the-source-as-it-was": (
        CASES["shared"],
        {"m": np.array([0.5, 0], np.float32), **BOTH},
        BOTH,
    ),
    "by-outputs": (
        CASES["shared"],
        {"m1": 3 * ONE, "m2": 2 * ONE},
        {"bn1/running_mean": 3 * ONE, "bn2/running_mean": 2 * ONE},
    ),
    "by-the-output-of-a-chain": (
        CASES["chain-outputs-without-names"],
        {"m_new": 3 * ONE},
        {"m": 3 * ONE},
    ),
    "scale-and-its-twin": (
        CASES["aliased"],
        {"one": 3 * ONE, "bn/running_var": 2 * ONE},
        {"one": 3 * ONE, "bn/running_var": 2 * ONE},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_given_and_what_keeps_its_value(name, rng):
    case, values, state = KEPT[name]
    check(case, bngrad.finalize(case.model(), values), state, data(case, rng))


def test_report():
    case = CASES["shared"]
    values = {"m1": ONE, "m2": ONE, "v": ONE, "s": ONE}
    result = finalize(ir.from_proto(case.model()), values)
    assert (result.weights, result.kept) == (["bn1/running_mean", "bn2/running_mean", "v", "s"], ["b"])


def test_bytes_of_a_type_that_numpy_does_not_have():
    """That is how an .npz file gives bfloat16 back."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (bfloat16[2] x) => (bfloat16[2] y) <bfloat16[2] w = {1, 1}> { y = Mul(x, w) }""")
    array = np.array([2, 3], ml_dtypes.bfloat16)
    (tensor,) = bngrad.finalize(model, {"w": array.view("V2")}).graph.initializer
    assert numpy_helper.to_array(tensor).view(ml_dtypes.bfloat16).tolist() == [2, 3]


def test_the_result_does_not_share_memory_with_the_values():
    """A training loop may go on in place."""
    case, mean = CASES["one"], np.array([1, 2], np.float32)
    result = bngrad.finalize(ir.from_proto(case.model()), {"m": mean})
    mean[:] = 0
    assert result.graph.initializers["m"].const_value.numpy().tolist() == [1, 2]
